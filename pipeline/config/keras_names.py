"""Keras's optimizers, schedules, losses and metrics by name, found without importing Keras."""

import ast
import functools
import importlib.util
from pathlib import Path

FOLDERS = {
    "optimizers": "optimizers",
    "schedules": "optimizers/schedules",
    "losses": "losses",
    "metrics": "metrics",
}
# Base classes, and wrappers of other objects.
_ABSTRACT = {
    *("optimizer", "optimizermap", "lossscaleoptimizer", "multioptimizer", "learningrateschedule"),
    *("loss", "metric", "mean", "sum", "meanmetricwrapper"),
}
_ALIASES = {
    "mse": "meansquarederror",
    "mae": "meanabsoluteerror",
    "mape": "meanabsolutepercentageerror",
    "msle": "meansquaredlogarithmicerror",
    "rmse": "rootmeansquarederror",
}
Found = tuple[str, Path, ast.ClassDef]
"""(module, its file, the class)."""


def find(registry: str, name: str) -> Found | None:
    """A class of Keras by its name in any spelling: `adam_w`, `adamw` or `AdamW`."""
    plain = _plain(name)
    return _classes(registry).get(_ALIASES.get(plain, plain))


def names(registry: str) -> list[str]:
    """The names of the classes in lower case with underscores."""
    return sorted(_snake(node.name) for _, _, node in _classes(registry).values())


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _snake(name: str) -> str:
    """`F1Score` -> `f1_score`, `AUC` -> `auc`, as in Keras."""
    shown = ""
    for before, letter, after in zip(f" {name}", name, f"{name[1:]} ", strict=False):
        starts = letter.isupper() and (before.islower() or before.isdigit() or after.islower())
        shown += ("_" if starts and shown else "") + letter.lower()
    return shown


@functools.cache
def _classes(registry: str) -> dict[str, Found]:
    spec = importlib.util.find_spec("keras") if registry in FOLDERS else None
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0], "src", FOLDERS[registry])
    found: dict[str, Found] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.endswith("_test") or path.stem == "__init__":
            continue
        module = f"keras.src.{FOLDERS[registry].replace('/', '.')}.{path.stem}"
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and _is_exported(node):
                found[_plain(node.name)] = (module, path, node)
    return {name: about for name, about in found.items() if name not in _ABSTRACT}


def _is_exported(node: ast.ClassDef) -> bool:
    return any("keras_export" in ast.unparse(one) for one in node.decorator_list)
