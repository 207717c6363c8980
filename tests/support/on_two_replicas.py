"""Runs the body of a test with two replicas on logical devices of the CPU.

It runs in a forked process: logical devices can be made only once, and a failed
collective spoils the process it happens in.

    @on_two_replicas
    def test_both_get_the_same_examples(one, two):
        ...

`one` and `two` are the machines with one replica and with two.
"""

import importlib.util
import inspect
import sys
from pathlib import Path

from processes import run_python


def on_two_replicas(body):
    def test(tmp_path):
        file = inspect.getfile(body)
        done = run_python(__file__, file, body.__name__, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    test.body = body
    return test


def main(file: str, name: str) -> None:
    import toy_problem

    from pipeline.config import command_line
    from pipeline.runtime import environment

    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = command_line.recipe("digits").changed(runtime={"replicas": 2})
    two = environment.start(config.runtime)
    getattr(module, name).body(toy_problem.machine(), two)


if __name__ == "__main__":
    main(*sys.argv[1:])
