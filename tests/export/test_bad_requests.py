"""Malformed requests, and the checks that send them."""

import exports
import numpy as np

from pipeline.export import bad_requests
from pipeline.serving.savedmodel_session import ServerError
from pipeline.serving.signatures import strings
from pipeline.utils import protobuf
from pipeline.utils.errors import Failure

REQUESTS = exports.requests(3)
IMAGES = strings(REQUESTS["image_bytes"]["image_bytes"])
EXAMPLES = strings(REQUESTS["classify"]["inputs"])


def failures(values, answer, fuzz=3):
    """Name -> message of the checks that fail for a signature of one input."""
    found = {}
    for name, check in bad_requests.checks(exports.Server(answer), "s", {"x": values}, fuzz):
        try:
            check(lambda what: None)
        except Failure as failure:
            found[name] = str(failure)
    return found


def test_each_malformed_request_must_be_refused():
    examples = protobuf.example({"features": [1.0, 2.0]}).SerializeToString()
    for values, count in (
        (np.zeros((4, 3), np.float32), 8),
        (IMAGES, 7),
        (EXAMPLES, 10),
        (strings([examples]), 10),
    ):
        malformed = bad_requests.malformed(values)
        assert len(malformed) == count
        for name, wrong in malformed.items():

            def accepts_one(x, wrong=wrong):
                if x is not wrong and not np.array_equal(
                    x, wrong, equal_nan=x.dtype.kind == wrong.dtype.kind == "f"
                ):
                    raise ServerError(3, "no")
                return {"y": np.zeros(3)}

            message = f"{name}: the model answered, with outputs of the shapes {{'y': (3,)}}"
            assert failures(values, accepts_one) == {"refuses s": message}
    assert bad_requests.malformed_strings(b"any text") == {}


def test_every_other_status_than_invalid_argument_fails():
    def broken(x):
        raise ServerError(13, "internal")

    found = failures(IMAGES, broken)
    assert set(found) == {"refuses s", "survives s"}
    assert all("status 13 instead of INVALID_ARGUMENT" in message for message in found.values())


def test_mutated_strings_are_reproducible_and_differ():
    good = IMAGES.tolist()
    texts = list(bad_requests.mutated(good, 300))
    assert texts == list(bad_requests.mutated(good, 300))
    assert texts != list(bad_requests.mutated(good, 300, seed=1))
    assert len(set(texts) - set(good)) > 280
    assert {text[:8] == good[0][:8] for text in texts} == {True, False}
