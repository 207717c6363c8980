"""Models and data that no target suits, as the arguments of `fit`, at most 4 lines
after the data.
"""

import keras
import numpy as np
from keras import layers

COUNT = 96


def two_outputs():
    x, y = rows()
    h = layers.Dense(16, activation="relu")(inputs := keras.Input((8,)))
    outputs = [layers.Dense(1, name="price")(h), layers.Dense(3, name="kind")(h)]
    losses = ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)]
    return {
        "model": keras.Model(inputs, outputs),
        "data": (x, y),
        "loss": losses,
        "loss_weights": [0.5, 2.0],
        "metrics": [["mae"], ["accuracy"]],
    }


def image_and_features():
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (COUNT, 8, 8, 3)).astype("uint8")
    x = {"photo": photo, "row": random.normal(size=(COUNT, 4))}
    left, right = keras.Input((8, 8, 3), name="photo"), keras.Input((4,), name="row")
    h = layers.Flatten()(layers.Rescaling(1 / 255)(left))
    h = layers.Dense(6)(layers.Concatenate()([h, right]))
    y = random.normal(size=(COUNT, 2, 3))
    model = keras.Model([left, right], layers.Reshape((2, 3), name="next")(h))
    return {"model": model, "data": (x, y), "loss": "mae", "metrics": ["mse"]}


def autoencoder():
    x = np.random.default_rng(0).random((COUNT, 12, 12, 1))
    down = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")
    up = layers.Conv2DTranspose(1, 3, strides=2, padding="same")
    model = keras.Sequential([keras.Input((12, 12, 1)), down, up])
    return {"model": model, "data": (x, x), "loss": "mse", "metrics": ["mae"]}


def next_token():
    x = np.random.default_rng(0).integers(1, 20, (COUNT, 10))
    x[:, 8:] = 0  # masked: as many in each example, as Keras counts them over the batch
    embed = layers.Embedding(20, 8, mask_zero=True)
    predict = layers.Dense(20, activation="softmax")
    recurrent = layers.GRU(8, return_sequences=True)
    model = keras.Sequential([keras.Input((10,)), embed, recurrent, predict])
    loss = "sparse_categorical_crossentropy"
    data = (x, np.roll(x, -1, axis=1))
    return {"model": model, "data": data, "loss": loss, "metrics": ["accuracy"]}


class Own(keras.Model):
    """A subclassed model with two outputs."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, activation="relu")
        self.second = layers.Dense(3)
        self.third = layers.Dense(1)

    def call(self, x, training=False):
        h = self.first(x)
        return {"low": self.second(h), "high": self.third(h)}


def subclassed():
    x, _ = rows()
    y = {"low": x[:, :3], "high": x[:, 3]}
    losses = {"low": "mse", "high": keras.losses.Huber(delta=0.5)}
    return {"model": Own(), "data": (x, y), "loss": losses}


def compiled():
    arguments = two_outputs()
    model = arguments["model"]
    model.compile(
        keras.optimizers.SGD(0.05),
        loss={"price": "mse", "kind": arguments["loss"][1]},
        loss_weights={"price": 0.1, "kind": 1.0},
        metrics={"price": ["mae"], "kind": "accuracy"},
    )
    return {"model": model, "data": arguments["data"]}


def contrastive(y_true, y_pred):
    """Hadsell et al. 2006: similar pairs are drawn together, others kept apart."""
    apart = keras.ops.maximum(1 - y_pred, 0.0)
    return y_true * y_pred**2 + (1 - y_true) * apart**2


def siamese():
    random = np.random.default_rng(0)
    same = random.integers(0, 2, COUNT)
    left = random.normal(size=(COUNT, 6))
    right = left + (1 - same[:, None]) * random.normal(size=(COUNT, 6))
    encoder = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
    pair = [keras.Input((6,), name="left"), keras.Input((6,), name="right")]
    squares = (encoder(pair[0]) - encoder(pair[1])) ** 2
    distance = keras.ops.sqrt(keras.ops.sum(squares, axis=1, keepdims=True) + 1e-6)
    model = keras.Model(pair, distance)
    return {"model": model, "data": ([left, right], same), "loss": contrastive}


def texts():
    words = ["good fine day", "bad day", "fine é bad good", "good"] * (COUNT // 4)
    stars = np.array([1.0, 0.0, 0.5, 1.0] * (COUNT // 4))
    vectorize = layers.TextVectorization(output_sequence_length=4)
    vectorize.adapt(words)
    scale = layers.Normalization()
    scale.adapt(np.random.default_rng(0).normal(1, 2, size=(64, 4)))
    embed = layers.Embedding(vectorize.vocabulary_size(), 4)
    head = [layers.GlobalAveragePooling1D(), scale]
    stack = [keras.Input((), dtype="string"), vectorize, embed, *head]
    model = keras.Sequential([*stack, layers.Dense(1, activation="sigmoid")])
    data = (np.array(words), stars)
    return {"model": model, "data": data, "loss": "bce", "metrics": ["mse"]}


CASES = [
    two_outputs,
    image_and_features,
    autoencoder,
    next_token,
    subclassed,
    compiled,
    siamese,
    texts,
]


def rows():
    """Features, and numbers and classes that depend on them."""
    x = np.random.default_rng(0).normal(size=(COUNT, 8)).astype("float32")
    kind = (x[:, 0] > 0).astype("int64") + (x[:, 1] > 0)
    return x, {"price": 2 * x[:, 0] + 1, "kind": kind}


def arguments_of(case):
    """The arguments of `fit`, with the same initial weights each time."""
    keras.utils.set_random_seed(0)
    return case()
