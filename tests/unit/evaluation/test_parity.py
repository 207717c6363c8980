"""`doctor --parity`: training in every way is compared with Keras's own `fit`."""

import dataclasses

from pipeline.evaluation.parity import Case, Result

CASE = Case(replicas=1, precision="float32", accumulate=1, clip=False)


def test_only_float32_must_be_close_to_stock_keras():
    assert Result(CASE, 0.0, 1e-6).passed
    assert not Result(CASE, 1e-12, 1e-6).passed
    assert not Result(CASE, 0.0, 2e-5).passed
    assert Result(dataclasses.replace(CASE, precision="mixed_float16"), 0.0, 0.1).passed
    assert Result(CASE).passed and not Result(CASE, error="died").passed


def test_not_a_number_does_not_pass():
    nan = float("nan")
    assert not Result(CASE, nan, 1e-6).passed and not Result(CASE, 0.0, nan).passed
