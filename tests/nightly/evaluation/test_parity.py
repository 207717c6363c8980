"""Training in every way is compared with Keras's own `fit`."""

import json

from processes import REPOSITORY, run_python


def test_networks_tasks_caches_and_replicas(tmp_path):
    """Dropout and BatchNormalization, with examples that no cache keeps; regression; 1
    and 2 replicas, 1 and 8 steps per call, clipping. A recipe's own training options,
    which stock Keras does not have, do not count.
    """
    result = run_python(REPOSITORY / "tests/support/parity_cases.py", cwd=tmp_path)
    assert result.stdout.startswith("{"), result.stdout + result.stderr[-3000:]
    measured = json.loads(result.stdout)
    assert {error for _, _, error in measured.values()} == {""}
    for name in ("uncached", "regression"):
        engines, stock, _ = measured[name]
        assert engines == 0.0 and stock <= 1e-5, name
    # Sums in another order make 16 steps of SGD differ by up to 3e-6.
    digits = [rows for name, rows in measured.items() if name.startswith("digits")]
    assert [engines for engines, _, _ in digits] == [0.0] * 4
    assert max(stock for _, stock, _ in digits if stock is not None) <= 1e-5
    assert measured["wrong"][1] > 0.1, "a wrong gradient must be noticed"
