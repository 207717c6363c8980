"""`doctor --parity`: training in every way is compared with Keras's own `fit`."""

import json

import pytest
from processes import REPOSITORY, run_module, run_python


def test_other_networks_tasks_and_caches(tmp_path):
    """Dropout and BatchNormalization, with examples that no cache keeps; regression. A
    recipe's own training options, which stock Keras does not have, do not count.
    """
    result = run_python(REPOSITORY / "tests/support/parity_cases.py", cwd=tmp_path)
    assert result.stdout.startswith("{"), result.stdout + result.stderr[-3000:]
    measured = json.loads(result.stdout)
    assert {error for _, _, error in measured.values()} == {""}
    for name in ("uncached", "regression"):
        engines, stock, _ = measured[name]
        assert engines == 0.0 and stock <= 1e-5, name
    assert measured["wrong"][1] > 0.1, "a wrong gradient must be noticed"


@pytest.mark.long
def test_parity_of_both_engines_with_stock_keras(tmp_path):
    """1 and 2 replicas, 1 and 8 steps per call, clipping."""
    options = "--parity digits --model tiny --precisions float32 --accumulate 4"
    result = run_module("pipeline.doctor", *options.split(), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 of 4 cases passed" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines() if " float32 " in line]
    rows = [words for words in lines if words[0] in ("1", "2")]  # not the legend
    assert {row[4] for row in rows} == {"0.0e+00"} and len(rows) == 4
    assert max(float(row[5]) for row in rows if row[0] == "1") <= 1e-5
