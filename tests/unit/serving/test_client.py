"""The client over REST, over gRPC, and with a model from its directory."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import fake_serving
import numpy as np
import pytest
import served_models
import tensorflow as tf
from served_models import SIDE, png

from pipeline.serving import signatures
from pipeline.serving.client import Client
from pipeline.serving.savedmodel_session import Session
from pipeline.serving.signatures import Field, ServingError
from pipeline.utils.errors import UsageError

IMAGES = np.random.default_rng(1).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture(params=["rest", "rpc", "local"], scope="module")
def address(request, models, backend):
    """Address of the models, without their names."""
    with contextlib.ExitStack() as stack:
        if request.param == "local":
            yield str(models)
        else:
            yield stack.enter_context(getattr(fake_serving, request.param)(backend))


@pytest.fixture
def pictures(address):
    with Client(f"{address}/pictures") as client:
        yield client


@pytest.fixture
def rows(address):
    with Client(f"{address}/rows") as client:
        yield client


@pytest.fixture(scope="module")
def here(models):
    """The classifier, loaded into this process."""
    return Client(models / "pictures")


@pytest.fixture(scope="module")
def wanted(models):
    """The predictions of Python TensorFlow to the images."""
    loaded = tf.saved_model.load(str(models / "pictures/1"))
    outputs = loaded.signatures["serving_default"](images=tf.constant(IMAGES))
    return signatures.to_prediction(
        {name: tensor.numpy() for name, tensor in outputs.items()}
    )


def test_answers_match_those_of_tensorflow(pictures, wanted):
    got = pictures.predict(images=IMAGES)
    fake_serving.assert_same(got, wanted)
    assert set(got["label"]) <= set(served_models.CLASSES)
    for same in (
        pictures.predict(images=IMAGES.astype(int).tolist()),
        pictures.predict("image_bytes", image_bytes=[png(image) for image in IMAGES]),
    ):
        fake_serving.assert_same(same, wanted)


def test_metadata_describes_the_model(pictures):
    known = pictures.metadata()
    assert set(known) == {"serving_default", "image_bytes"}
    size, string = (None, SIDE, SIDE, 3), np.dtype(object)
    assert known["serving_default"].inputs == {
        "images": Field(np.dtype(np.uint8), size)
    }
    assert known["image_bytes"].inputs == {"image_bytes": Field(string, (None,))}
    assert known["serving_default"].outputs["top_labels"] == Field(string, (None, 5))
    assert str(known["serving_default"].inputs["images"]) == "uint8 [?, 4, 4, 3]"


def test_errors_of_the_server_are_one_line_with_a_status(pictures):
    with pytest.raises(
        ServingError, match="pictures.*: INVALID_ARGUMENT: .*[Ss]hape"
    ) as caught:
        pictures.predict(images=IMAGES[:, :, :2])
    assert caught.value.status == "INVALID_ARGUMENT" and "\n" not in str(caught.value)
    with pytest.raises(ServingError) as caught:
        pictures.predict("image_bytes", image_bytes=[png(IMAGES[0]), b"no image"])
    assert "JPEG, PNG, GIF, BMP or WebP" in caught.value.message
    assert pictures.predict(images=IMAGES)["class"].shape == (3,), "the model stays up"


SHARES = np.full((3, 6), 0.1, np.float32)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            {"probabilities": SHARES * np.nan},
            "probabilities[0, 0] is nan, not a probability",
        ),
        (
            {"probabilities": SHARES - 5},
            "probabilities[0, 0] is -4.9, not a probability",
        ),
        ({"probabilities": SHARES[:, :5]}, "probabilities must be float32 "),
        (
            {"top_scores": SHARES[:, :5] + 7},
            "top_scores[0, 0] is 7.1, not a probability",
        ),
        (
            {"class": np.int32([6, 6, 6])},
            "class[0] is 6, but another class is the most probable",
        ),
        (
            {"class": np.int32([-1, 0, 0])},
            "class[0] is -1, but another class is the most",
        ),
        ({"class": np.float32([0, 1.5, 0])}, "class "),
        (
            {"class": np.int32([0])},
            "class must be int32 [?] for 3 examples; got int32 [1]",
        ),
        ({"class": np.int32(0)}, "class must be int32 [?] for 3 examples"),
        (
            {"label": np.array([b"six"] * 3, object)},
            "label[0] is six, but top_labels begins with",
        ),
        ({"label": None}, "the output label is missing"),
    ],
)
def test_a_reply_that_contradicts_itself_is_rejected(
    pictures, monkeypatch, outputs, message
):
    real = Session.run

    def run(self, *arguments):
        changed = {**real(self, *arguments), **outputs}
        return {name: array for name, array in changed.items() if array is not None}

    monkeypatch.setattr(Session, "run", run)
    with pytest.raises(ServingError) as caught:
        pictures.predict(images=IMAGES)
    start = ": UNKNOWN: not a valid reply from TensorFlow Serving: "
    assert str(caught.value).partition(start)[2].startswith(message)


def test_a_prediction_that_is_not_finite_is_rejected(models, monkeypatch):
    with Client(models / "rows") as rows:
        outputs = {"prediction": np.float32([np.inf])}
        monkeypatch.setattr(Session, "run", lambda *_: outputs)
        with pytest.raises(ServingError, match=r"prediction\[0\] is inf, not a finite"):
            rows.predict(features=[[1, 2, 3]])


def test_outputs_are_in_the_order_of_the_signature(here, monkeypatch):
    real = Session.run
    monkeypatch.setattr(
        Session, "run", lambda *given: {"a": 0, **dict(reversed(real(*given).items()))}
    )
    order = list(here.metadata()["serving_default"].outputs)
    assert list(here.predict(images=IMAGES)) == order


@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("serving_default", {"image": IMAGES}, "'image'; did you mean 'images'"),
        ("serving_default", {}, r"'images' is missing; .*uint8 \[\?, 4, 4, 3\]"),
        (
            "serving_default",
            {"images": IMAGES / 255},
            "images must be uint8 .* got float64",
        ),
        (
            "serving_default",
            {"images": IMAGES.astype(int) + 1},
            "values are out of range",
        ),
        ("image_byte", {"image_bytes": [b""]}, "'image_byte'; did you mean 'image_b"),
        (
            "image_bytes",
            {"image_bytes": [1]},
            r"image_bytes must be string \[\?\]; got int",
        ),
        (
            "image_bytes",
            {"image_bytes": b"a picture"},
            "image_bytes .*a batch; got a single value",
        ),
        (
            "serving_default",
            {"image_bytes": [b""]},
            r"write predict\('image_bytes', image_bytes=",
        ),
        ([b"a picture"], {}, r"inputs by their names: predict\(images="),
    ],
)
def test_wrong_requests_are_not_sent(here, signature, inputs, message):
    with pytest.raises(UsageError, match=message) as caught:
        here.predict(signature, **inputs)
    assert not isinstance(caught.value, ServingError)


def test_missing_models_and_versions(address, tmp_path):
    if "://" not in address:
        with pytest.raises(UsageError, match="nowhere.*directory or address"):
            Client(f"{address}/nowhere")
        (tmp_path / "1").mkdir()
        (tmp_path / "1/saved_model.pb").write_bytes(b"\xff")
        with pytest.raises(
            UsageError, match=r"pipeline verify .*1 lists what is wrong"
        ):
            Client(tmp_path)
        return
    for part in ("nowhere", "rows/versions/1"):
        with (
            Client(f"{address}/{part}") as client,
            pytest.raises(ServingError, match="NOT_FOUND"),
        ):
            client.metadata()
    for part in ("rows/versions/2/", "rows/labels/stable"):
        with Client(f"{address}/{part}") as client:
            assert client.predict(features=[[1, 2, 3]])["prediction"].tolist() == [6.0]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://localhost:8501",
        "http://localhost:8501/v1/models/digits/versions/x",
        "grpc://localhost/digits",
        f"grpc://h:1/m/{10**20}",
    ],
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(UsageError, match="digits/1"):
        Client(address)


@pytest.mark.parametrize("timeout", [0, float("nan"), 1e10])
def test_a_timeout_is_a_positive_number(timeout):
    with pytest.raises(UsageError, match="timeout must be seconds, more than 0"):
        Client("http://localhost:8501/v1/models/digits", timeout)


def test_threads_may_share_a_client(pictures):
    """With one status for all requests, the prediction for a failed request was read."""

    def ask(good):
        for _ in range(30):
            if good:
                assert len(pictures.predict(images=IMAGES)["label"]) == 3
            else:
                with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
                    pictures.predict(images=IMAGES[0])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, (True, False, False)))
