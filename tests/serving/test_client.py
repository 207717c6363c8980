"""The client against stand-ins for the server over REST and gRPC, and a model from its folder."""

import contextlib

import numpy as np
import pytest
import served_models
import serving
import tensorflow as tf
from served_models import SIDE, png

from pipeline.serving import signatures
from pipeline.serving.client import Client
from pipeline.serving.savedmodel_session import Session
from pipeline.serving.signatures import Field, ServingError, Version
from pipeline.utils.errors import UsageError

IMAGES = np.random.default_rng(1).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
pytestmark = pytest.mark.usefixtures("direct")
FLOAT, STRING = Field(np.dtype(np.float32), (None,)), Field(np.dtype(object), (None,))


@pytest.fixture(params=["rest", "rpc", "local"], scope="module")
def address(request, models, backend):
    """Of the models, without their names."""
    with contextlib.ExitStack() as stack:
        if request.param == "rpc":
            serving.needs_stubs()
            yield stack.enter_context(serving.rpc(backend))
        elif request.param == "rest":
            yield stack.enter_context(serving.rest(backend))
        else:
            yield str(models)


@pytest.fixture(scope="module")
def here(models):
    """The classifier, loaded here."""
    return Client(models / "pictures")


@pytest.fixture
def pictures(address):
    with Client(f"{address}/pictures") as client:
        yield client


@pytest.fixture
def rows(address):
    with Client(f"{address}/rows") as client:
        yield client


def wanted(signature, models, **inputs):
    """Answers by Python TensorFlow; strings as str."""
    loaded = tf.saved_model.load(str(models / "pictures/1"))
    outputs = loaded.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {k: signatures.answer({k: v.numpy()})[k] for k, v in outputs.items()}


def test_pixels_are_answered_as_by_tensorflow(pictures, models):
    got = pictures.predict(images=IMAGES)
    serving.assert_same(got, wanted("serving_default", models, images=IMAGES))
    assert set(got["label"]) <= set(served_models.CLASSES)
    serving.assert_same(pictures.predict(images=IMAGES.astype(int).tolist()), got)


def test_encoded_images_are_answered_as_their_pixels(pictures):
    got = pictures.predict("image_bytes", image_bytes=[png(image) for image in IMAGES])
    serving.assert_same(got, pictures.predict(images=IMAGES))


def test_strings_come_back_in_every_byte(pictures):
    raw = [b"", b"\x00\xff\x00", bytes(range(256))]
    text = ["", "fünf\n", 'a "quoted" one']
    got = pictures.predict("text", text=text, raw=raw)
    assert got["text"].tolist() == text
    assert got["raw_bytes"].tolist() == raw


def test_numbers_of_every_type_come_back(pictures):
    values = {}
    for name, field in pictures.metadata()["kinds"].inputs.items():
        kind = field.dtype
        if kind.kind in "iu":
            ends = [np.iinfo(kind).min, np.iinfo(kind).max]
        else:
            ends = [True, False] if kind.kind == "b" else [1 / 3, 1e300]
        values[name] = np.array([ends, ends[::-1]], kind)
    assert len(values) == 9
    got = pictures.predict("kinds", **values)
    for name, array in values.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_the_documented_half_plus_three(pictures):
    """And its only output, whose name the REST interface leaves out."""
    got = pictures.predict("half_plus_three", x=[1.0, 2.0, 5.0])
    np.testing.assert_array_equal(got["y"], np.float32([3.5, 4.0, 5.5]))
    assert got["y"].dtype == np.float32
    strange = pictures.predict("half_plus_three", x=[np.nan, np.inf])["y"]
    assert np.isnan(strange[0]) and strange[1] == np.inf


def altered(monkeypatch, **columns):
    """Each model answers so from now on, behind every transport; None: without that output."""
    real = Session.run

    def run(self, *arguments):
        outputs = {**real(self, *arguments), **columns}
        return {name: array for name, array in outputs.items() if array is not None}

    monkeypatch.setattr(Session, "run", run)


SHARES = np.full((3, 6), 0.1, np.float32)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"probabilities": SHARES * np.float32([[1], [np.nan], [1]])},
            "probabilities[1, 0] is nan, not a probability",
        ),
        ({"probabilities": SHARES - 5}, "probabilities[0, 0] is -4.9, not a probability"),
        ({"top_scores": SHARES[:, :5] + 7}, "top_scores[0, 0] is 7.1, not a probability"),
        ({"class": np.int32([6, 6, 6])}, "class[0] is 6, but the most probable class is "),
        ({"label": np.array([b"six"] * 3, object)}, "label[0] is 'six', but top_labels begin with"),
        ({"label": None}, "the reply lacks the output label"),
        ({"top_scores": None}, "the reply lacks the output top_scores"),
    ],
)
def test_a_reply_that_cannot_be_right_is_refused(pictures, monkeypatch, columns, said):
    pictures.predict(images=IMAGES)
    altered(monkeypatch, **columns)
    with pytest.raises(ServingError) as caught:
        pictures.predict(images=IMAGES)
    assert str(caught.value).startswith(f"{pictures.model}: UNKNOWN: {said}")
    assert "\n" not in str(caught.value)


def test_a_probability_may_be_rounded_above_1(pictures, monkeypatch):
    one = np.zeros((3, 6), np.float32)
    one[:, 4] = 1.0005
    labels = np.array([[b"vier"] * 5] * 3, object)
    columns = {"probabilities": one, "top_scores": one[:, :5], "class": np.int32([4] * 3)}
    altered(monkeypatch, **columns, label=labels[:, 0], top_labels=labels)
    assert pictures.predict(images=IMAGES)["label"].tolist() == ["vier"] * 3


def test_outputs_are_those_of_the_signature_in_its_order(pictures, monkeypatch):
    """Otherwise the columns of a table would change from one request to the next."""
    wanted = list(pictures.metadata()["serving_default"].outputs)
    altered(monkeypatch, other=np.float32([1, 2, 3]))
    assert list(pictures.predict(images=IMAGES)) == wanted


def test_values_that_are_no_numbers_are_refused(rows, pictures, monkeypatch):
    example = {"image/encoded": png(IMAGES[0])}
    rows.regress([{"features": [1.0, 2.0, 0.5]}]), pictures.classify([example])
    altered(monkeypatch, prediction=np.float32([np.inf]), outputs=np.float32([np.nan]))
    for asks in (
        lambda: rows.predict(features=[[1, 2, 3]]),
        lambda: rows.regress([{"features": [1.0, 2.0, 0.5]}]),
    ):
        with pytest.raises(ServingError, match=r"prediction\[0\] is (inf|nan), not a fin"):
            asks()
    altered(monkeypatch, prediction=np.float32([-1e30]))
    assert rows.predict(features=[[1, 2, 3]])["prediction"].tolist() == [np.float32(-1e30)]
    altered(monkeypatch, scores=np.float32([[0.5, 7, 0, 0, 0]]))
    with pytest.raises(ServingError, match=r"scores\[0\] of '.*' is 7.0, not a probability"):
        pictures.classify([example])


def test_examples_are_classified(pictures):
    got = pictures.classify([{"image/encoded": png(image)} for image in IMAGES])
    answer = pictures.predict(images=IMAGES)
    assert [[label for label, _ in pairs] for pairs in got] == answer["top_labels"].tolist()
    scores = np.array([[score for _, score in pairs] for pairs in got])
    np.testing.assert_allclose(scores, answer["top_scores"], rtol=2e-6)


def test_examples_are_regressed(rows):
    got = rows.regress([{"features": [1.0, 2.0, 0.5]}, {"features": np.float32([0, -1, 2.25])}])
    assert got.dtype == np.float32 and got.tolist() == [3.5, 1.25]


def test_the_signatures_are_those_of_the_model(pictures):
    known = pictures.metadata()
    assert {"serving_default", "image_bytes", "classify"} < set(known)
    assert not any(name.startswith("__") for name in known)
    size = (None, SIDE, SIDE, 3)
    assert known["serving_default"].inputs == {"images": Field(np.dtype(np.uint8), size)}
    assert known["image_bytes"].inputs == {"image_bytes": STRING}
    assert known["serving_default"].outputs["top_labels"] == Field(np.dtype(object), (None, 5))
    assert str(known["serving_default"].inputs["images"]) == "uint8 [?, 4, 4, 3]"


def test_the_status_names_the_version(pictures, rows):
    assert pictures.status() == [Version(1, "AVAILABLE")]
    assert rows.status() == [Version(2, "AVAILABLE")]


def test_a_refusal_is_one_line_with_its_status(pictures):
    with pytest.raises(ServingError, match="pictures.*: INVALID_ARGUMENT: .*[Ss]hape") as caught:
        pictures.predict(images=IMAGES[:, :, :2])
    assert caught.value.status == "INVALID_ARGUMENT" and "\n" not in str(caught.value)
    broken = [png(IMAGES[0]), b"no image"]
    with pytest.raises(ServingError) as caught:
        pictures.predict("image_bytes", image_bytes=broken)
    assert caught.value.message == "the file is not a JPEG, PNG, GIF, BMP or WebP image"
    assert pictures.predict(images=IMAGES)["class"].shape == (3,), "the model stays up"
    with pytest.raises(ServingError, match="FAILED_PRECONDITION|INVALID_ARGUMENT"):
        pictures.classify([{"image/encoded": b"x"}], signature="other")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"image": IMAGES}, "there is no input 'image'; did you mean 'images'"),
        ({}, r"the input 'images' is missing; it is uint8 \[\?, 4, 4, 3\]"),
        ({"images": IMAGES / 255}, "images must be uint8 .* received float64"),
        ({"images": IMAGES > 127}, "images must be uint8 .* received bool"),
        ({"images": IMAGES.astype(np.int16) + 1}, "images must be uint8 .* out of its range"),
        ({"images": [[1], [2, 3]]}, "its lists differ in length"),
        ({"images": [["a"]]}, "received str"),
    ],
)
def test_what_the_types_cannot_hold_is_not_sent(here, inputs, message):
    with pytest.raises(UsageError, match=message) as caught:
        here.predict(**inputs)
    assert not isinstance(caught.value, ServingError)


def test_other_wrong_calls_are_told_before_they_are_sent(here):
    with pytest.raises(UsageError, match="no signature 'image_byte'; did you mean 'image_bytes'"):
        here.predict("image_byte", image_bytes=[b""])
    with pytest.raises(UsageError, match=r"image_bytes must be string \[\?\], received int"):
        here.predict("image_bytes", image_bytes=[1])
    with pytest.raises(UsageError, match="lists differ in length"):
        here.predict("image_bytes", image_bytes=[[b"a"], [b"b", b"c"]])
    with pytest.raises(UsageError, match="feature 'a' must be bytes, text or numbers"):
        here.classify([{"a": [1, "b"]}])
    with pytest.raises(UsageError, match="no examples"):
        here.regress([])


def test_features_are_of_one_type():
    example = {"a": "ü", "b": [1, 2.5], "c": np.arange(2), "d": [b"\x00", "x"], "e": True, "f": []}
    assert signatures.features(example) == {
        "a": ["ü".encode()],
        "b": [1.0, 2.5],
        "c": [0, 1],
        "d": [b"\x00", b"x"],
        "e": [1],
        "f": [],
    }


def test_what_is_not_there_is_said(address, tmp_path):
    if "://" not in address:
        with pytest.raises(UsageError, match="nowhere' is no folder and no address"):
            Client(f"{address}/nowhere")
        (tmp_path / "1").mkdir()
        (tmp_path / "1/saved_model.pb").write_bytes(b"\xff")
        with pytest.raises(UsageError, match=r"pipeline\.verify .*1 says what is wrong"):
            Client(tmp_path)
        return
    with Client(f"{address}/pictures/labels/stable") as client:
        assert client.status() == [Version(1, "AVAILABLE")]
    with (
        Client(f"{address}/pictures/labels/canary") as client,
        pytest.raises(ServingError, match="INVALID_ARGUMENT: Unrec.* label: canary"),
    ):
        client.metadata()
    parts = ("nowhere", "pictures/versions/7", "rows/versions/1")
    for part in parts:
        with (
            Client(f"{address}/{part}") as client,
            pytest.raises(ServingError, match="NOT_FOUND: Servable not found for request"),
        ):
            client.predict(images=IMAGES)
    with Client(f"{address}/rows/versions/2/") as client:
        assert client.predict(features=[[1, 2, 3]])["prediction"].tolist() == [6.0]


def test_the_short_form_of_a_version(backend):
    serving.needs_stubs()
    with serving.rpc(backend) as address, Client(f"{address}/rows/2") as client:
        assert client.status() == [Version(2, "AVAILABLE")]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://localhost:8501",
        "http://localhost:8501/v1/models/digits:predict",
        "http://localhost:8501/v1/models/digits/versions/x",
        "grpc://localhost/digits",
        "grpc://localhost:8500/digits/x",
        "http://localhost:x/v1/models/digits",
        "http://localhost:99999/v1/models/digits",
        "http://[::1/v1/models/digits",
        "ftp://localhost/digits",
        "localhost:8501/v1/models/digits",
    ],
)
def test_an_address_that_is_none_shows_a_good_one(address):
    with pytest.raises(UsageError, match="digits/1"):
        Client(address)


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan"), 1e10, "5", None])
def test_a_timeout_is_a_positive_number(timeout):
    with pytest.raises(UsageError, match="timeout must be seconds, more than 0"):
        Client("http://localhost:8501/v1/models/digits", timeout)
