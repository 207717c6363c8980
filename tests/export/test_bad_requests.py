"""Malformed requests, and the checks that send them."""

import io

import exports
import numpy as np
import pytest
from PIL import Image

from pipeline.export import bad_requests
from pipeline.serving.savedmodel_session import ServerError, as_strings
from pipeline.utils import protobuf
from pipeline.utils.errors import Failure

FILES = exports.requests(3)


def failures(values, answer, fuzz=0):
    """Name -> message of the checks that fail for a signature of one input."""
    found = {}
    for name, check in bad_requests.checks(exports.Server(answer), "s", {"x": values}, fuzz):
        try:
            check(lambda what: None)
        except Failure as failure:
            found[name] = str(failure)
    return found


def test_a_model_that_answers_everything_fails_every_check():
    def answer(x):
        return {"y": np.zeros((max(len(x), 1) if np.ndim(x) else 1,))}

    arrays = ("no batch axis", "one axis too many", "axis 1 too long", "axis 1 empty")
    expected = [*arrays, "wrong type", "nan", "inf"]
    found = failures(np.zeros((4, 3), np.float32), answer)
    assert set(found) == {"empty batch s", *(f"refuses s: {what}" for what in expected)}
    for kind, first in (("image_bytes", "empty string"), ("classify", "empty example")):
        (values,) = FILES[kind].values()
        message = failures(as_strings(values), answer, fuzz=3)["refuses s: malformed strings"]
        assert message.startswith(f"{first}: the model answered")


def test_every_other_status_than_invalid_argument_fails():
    def answer(x):
        raise ServerError(13, "internal")

    found = failures(as_strings(FILES["image_bytes"]["image_bytes"]), answer, fuzz=3)
    assert len(found) == 6
    assert all("status 13 instead of INVALID_ARGUMENT" in message for message in found.values())


def test_malformed_strings_are_malformed():
    """Pillow reads none of the images; the examples lack, or have more than, what a model reads."""
    for image in FILES["image_bytes"]["image_bytes"]:
        for wrong in bad_requests.malformed_strings(image).values():
            with pytest.raises((OSError, SyntaxError)):
                Image.open(io.BytesIO(wrong)).load()
    image = FILES["classify"]["inputs"][0]
    names = bad_requests.malformed_strings(image)
    assert {"a length of 2**31", "image/encoded occurs twice", "image/encoded half an image"} < set(
        names
    )
    numbers = protobuf.example({"features": [1.0, 2.0]}).SerializeToString()
    wrong = bad_requests.malformed_strings(numbers)
    lists = [
        list(
            type(protobuf.example({}))
            .FromString(wrong[f"features {what}"])
            .features.feature["features"]
            .float_list.value
        )
        for what in ("is a string", "is short", "is long", "inf")
    ]
    assert lists == [[], [2.0], [1.0, 2.0, 0.0], [np.inf, 2.0]]
    assert bad_requests.malformed_strings(b"any text") == {}


def test_mutated_strings_are_reproducible_and_differ():
    good = FILES["image_bytes"]["image_bytes"]
    strings = list(bad_requests.mutated(good, 300))
    assert strings == list(bad_requests.mutated(good, 300))
    assert strings != list(bad_requests.mutated(good, 300, seed=1))
    assert len(set(strings) - set(good)) > 280
    assert {text[:8] == good[0][:8] for text in strings} == {True, False}
