"""Broken and hostile requests, and the checks that send them."""

import io

import exports
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.export import bad_requests, malformed_files
from pipeline.serving.savedmodel_session import ServerError, as_strings
from pipeline.utils.errors import Failure


def test_what_is_called_broken_is_broken_and_what_is_odd_is_not():
    """By Pillow, another decoder, which makes up the rows that a PNG lacks."""
    good = exports.requests(1)["image_bytes"]["image_bytes"][0]
    broken = malformed_files.broken_images(good)
    del broken["PNG with fewer rows than it announces"]
    for contents in broken.values():
        with pytest.raises((OSError, SyntaxError, ValueError, Image.DecompressionBombError)):
            Image.open(io.BytesIO(contents)).load()
    for name, contents in malformed_files.odd_images().items():
        if "canvas" not in name:
            Image.open(io.BytesIO(contents)).load()
    bomb = Image.open(io.BytesIO(malformed_files._bomb(700)))
    assert bomb.size == (700, 700) and bomb.getextrema() == (0, 0)


def test_fuzzed_strings_are_the_same_for_a_seed_and_all_sorts():
    good = exports.requests(2)["image_bytes"]["image_bytes"]
    strings = list(malformed_files.fuzzed(good, 300))
    assert (
        strings
        == list(malformed_files.fuzzed(good, 300))
        != list(malformed_files.fuzzed(good, 300, seed=1))
    )
    assert len(set(strings) - set(good)) > 280
    assert {s[:8] == good[0][:8] for s in strings} == {True, False}


def refused(values, answer):
    """Names of the checks that fail for a signature of one input."""
    server, wrong = exports.Server(answer), {}
    for name, check in bad_requests.checks(server, "s", {"x": values}, 20):
        try:
            check(lambda what: None)
        except Failure as failure:
            wrong[name] = str(failure)
    return wrong


def test_whoever_answers_everything_fails_everything():
    def all_fine(x):
        return {"y": np.zeros((max(len(x), 1) if np.ndim(x) else 1,))}

    wrong = refused(np.zeros((4, 3), np.float32), all_fine)
    assert set(wrong) == {
        "refuses s: no batch axis",
        "refuses s: one axis too many",
        "refuses s: axis 1 too long",
        "refuses s: axis 1 empty",
        "refuses s: another type",
        "refuses s: nan",
        "refuses s: inf",
        "empty batch s",
    }
    files = exports.requests(3)
    wrong = refused(as_strings(files["image_bytes"]["image_bytes"]), all_fine)
    assert wrong["refuses s: hostile files"].startswith("empty bytes: it was answered with")
    wrong = refused(as_strings(files["classify"]["inputs"]), all_fine)
    assert {"refuses s: wrong examples", "refuses s: hostile files"} < set(wrong)


def test_another_status_than_invalid_argument_is_none():
    def broken(x):
        raise ServerError(13, "internal")

    wrong = refused(as_strings(exports.requests(3)["image_bytes"]["image_bytes"]), broken)
    assert len(wrong) == 7 and all(
        "status 13 instead of INVALID" in said for said in wrong.values()
    )


def test_examples_of_numbers_are_sent_wrong_too():
    asked = []

    def strict(x):
        if np.ndim(x) != 1 or np.shape(x)[0] == 0 or x.dtype.kind != "O":
            raise ServerError(3, "shape")
        for text in x:
            try:
                example = tf.train.Example.FromString(text)
            except Exception:
                raise ServerError(3, "no example") from None
            values = list(example.features.feature["features"].float_list.value)
            if len(values) != 2 or not np.isfinite(values).all():
                asked.append(values)
                raise ServerError(3, "values")
        return {"y": np.zeros(len(x))}

    good = tf.train.Example()
    good.features.feature["features"].float_list.value.extend([1, 2])
    assert refused(as_strings([good.SerializeToString()] * 2), strict) == {}
    assert {len(values) for values in asked} >= {0, 1, 2, 3}
    assert any(np.isnan(values).any() for values in asked if len(values) == 2)


def test_unfolding_a_bomb_before_refusing_it_is_seen(monkeypatch):
    peaks = iter((100, 1300))
    monkeypatch.setattr(bad_requests, "_peak", lambda: next(peaks))

    def refuse(x):
        raise ServerError(3, "no")

    with pytest.raises(Failure, match="1200 MB"):
        bad_requests._all_refused(refuse, b"good", {"a": b"bad"}, lambda what: None)
