"""Columns beside a text or an image: fields, requests and the network."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import TableColumn
from pipeline.data.array_source import ArraySource
from pipeline.data.raw_split import RawSplit
from pipeline.tasks.supervised import supervised
from pipeline.utils.errors import UsageError

COUNT = 12
NUMBERS = np.array([[n / 2, np.nan if n == 3 else n] for n in range(COUNT)])
WORDS = [f"w{n % 3}".encode() for n in range(COUNT)]
COLUMNS = (
    TableColumn("age", "number"),
    TableColumn("Unit Price", "number"),
    TableColumn("ward", "category"),
)
TEXTS = np.array([f"a short text {n % 5}".encode() for n in range(COUNT)], object)
IMAGES = np.arange(COUNT * 48, dtype=np.uint8).reshape(COUNT, 4, 4, 3)
LABELS = np.arange(COUNT) % 2


def task_of(field, values):
    """The task for a field with columns beside it, and its examples, decoded."""
    strings = np.array([[word] for word in WORDS], object)
    fields = {"numbers": NUMBERS, "strings": strings, "label": LABELS}
    source = ArraySource({field: values, **fields}, class_names=("no", "yes"))
    info = {"columns": COLUMNS, "input_name": "content"}
    source.info = dataclasses.replace(source.info, **info)
    examples = RawSplit(source, "train", np.arange(COUNT), source.columns("train"))
    before = supervised(source.info)
    task = before.with_metadata(before.learn(examples))
    decoded = [task.decode(example) for example in source.examples("train")]
    batch = {
        name: tf.stack([row[name] for row in decoded])
        for name in decoded[0]
        if name != "geometry"
    }
    return task, batch


@pytest.fixture(scope="module", params=["text", "image"])
def made(request):
    return task_of(request.param, {"text": TEXTS, "image": IMAGES}[request.param])


def test_decoded_examples_have_the_fields_of_both(made):
    task, batch = made
    assert batch.keys() >= {"numbers", "gaps", "codes", "label"}
    assert {"text", "tokens"} <= batch.keys() or "image" in batch
    np.testing.assert_allclose(np.mean(batch["numbers"], axis=0), 0, atol=1e-6)
    assert np.argmax(batch["gaps"]) == 3
    kinds = [(column.name, column.kind) for column in task.input.learned_columns()]
    assert kinds == [(column.name, column.kind) for column in COLUMNS]


def test_requests_of_decoded_examples_are_decoded_alike(made):
    task, batch = made
    columns = {name: value.numpy() for name, value in batch.items()}
    for signature in task.input.signatures():
        request = signature.request(columns)
        assert list(request)[1:] == ["age", "Unit_Price", "ward"]
        values = []
        for name, spec in signature.specs.items():
            values.append(tf.constant(request[name], spec.dtype))
        again = signature.read(*values)
        for name in again.keys() & batch.keys():
            if name == "text" or (name, signature.name) == ("image", "image_bytes"):
                continue  # sent in upper case, and as JPEG
            np.testing.assert_allclose(
                again[name], batch[name], atol=1e-5, err_msg=name
            )


def test_a_text_is_an_argument_with_the_name_of_its_column():
    task, _ = task_of("text", TEXTS)
    (signature,) = task.input.signatures()
    assert list(signature.specs) == ["content", "age", "Unit_Price", "ward"]
    assert signature.files == ()


def test_a_request_with_another_number_of_rows_is_refused(made):
    task, batch = made
    signature = task.input.signatures()[0]
    columns = {name: value.numpy() for name, value in batch.items()}
    request = signature.request(columns)
    values = [
        tf.constant(request[name], spec.dtype) for name, spec in signature.specs.items()
    ]
    values[1] = values[1][:5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="age must have as many"):
        signature.read(*values)


def test_a_model_reads_the_file_and_the_columns_join_its_features(made):
    task, batch = made
    inputs = task.input.inputs()
    part = task.input.model_inputs(inputs)
    names = {tensor.name for tensor in keras.tree.flatten(part)}
    assert names == {"image"} or names == {"text", "tokens"}
    tensors = [keras.layers.Flatten()(x) for x in keras.tree.flatten(part)]
    tensors = [keras.ops.cast(x, "float32") for x in tensors]
    features = keras.layers.Concatenate()(tensors) if len(tensors) > 1 else tensors[0]
    network = keras.Model(inputs, task.head(features, inputs))
    values, _, _ = task.step_inputs(
        task.input.prepare({**batch, "weight": tf.ones(COUNT)}), batch["id"]
    )
    before = network(values)
    assert before.shape == (COUNT, 2)
    other = {**values, "features": tf.reverse(values["features"], [0])}
    assert np.abs(network(other) - before).max() > 0.01, "the columns count"


def test_features_that_are_no_vectors_are_refused(made):
    task, _ = made
    with pytest.raises(UsageError, match="needs a model that returns one vector"):
        task.head(keras.Input((4, 4, 8)), task.input.inputs())
