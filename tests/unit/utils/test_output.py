"""Quiet and machine-readable output: `--log.quiet`, `--log.json`."""

import json
import time

import pytest
from run_output import printed

from pipeline.fit import main
from pipeline.utils import console, output
from pipeline.utils.errors import UsageError


def test_text_is_printed_as_it_is(capsys):
    assert printed("text", capsys).out.splitlines() == [
        "note       a\\nb",
        "one",
        "two",
        "epoch 1/2",
        "a callback of the user",
        "test       accuracy 1",
    ]


def test_each_line_of_json_is_an_object_and_the_rest_goes_to_stderr(capsys):
    start = time.time()
    shown = printed("json", capsys)
    lines = list(map(json.loads, shown.out.splitlines()))
    times = [line.pop("time") for line in lines]
    assert times == sorted(times) and start - 1 < times[0] <= time.time() + 1
    assert lines == [
        {"event": "note", "text": "a\nb"},
        {"event": "table", "text": "one\ntwo", "metrics": {"loss": None}},
        {"event": "epoch", "text": "epoch 1/2", "epoch": 1},
        {"event": "test", "text": "accuracy 1"},
    ]
    assert shown.err == "a callback of the user\n"


def test_warnings_are_printed_even_if_silent(capsys):
    assert printed("silent", capsys).out == "a callback of the user\n"
    with output.using("silent"), output.using("text"):
        console.say("warning", "the disk is full")
        console.say_result("FAILED", "digests: changed")
    assert capsys.readouterr().out.splitlines() == [
        "warning    the disk is full",
        "FAILED     digests: changed",
    ]


def test_only_one_of_them_is_accepted():
    with pytest.raises(UsageError, match="--log.quiet.*--log.json"):
        main(["digits", "--log.quiet", "--log.json"])
