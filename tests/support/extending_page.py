"""The examples of docs/extending.md as a module."""

import importlib
import re

from processes import REPOSITORY

PAGE = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
ENGINE = '''
def counting(model, train, validation, callbacks):
    """The loop of `gradient_tape`; writes the number of steps to a file."""
    from pipeline.config import registry

    history = registry.load("engines", "gradient_tape")(model, train, validation, callbacks)
    with open("engine.txt", "w") as file:
        file.write(str(int(model.optimizer.iterations)))
    return history
'''


def write_module(folder, monkeypatch):
    """Writes the examples and an engine to mine.py, which can then be imported."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    (folder / "mine.py").write_text("\n".join([*blocks, ENGINE]))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return folder / "mine.py"
