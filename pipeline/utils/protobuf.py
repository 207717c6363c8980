"""TensorFlow's protobuf messages without the seconds and the memory that TensorFlow takes."""

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Inside, `from tensorflow.core... import ..._pb2` does not run `tensorflow/__init__.py`.

    An empty package stands for TensorFlow meanwhile. Afterwards `import tensorflow` gives the whole
    one, as ever; where that has been imported before, it is used.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    empty = types.ModuleType("tensorflow")
    empty.__path__ = [str(wheel())]
    sys.modules["tensorflow"] = empty
    try:
        yield
    finally:
        del sys.modules["tensorflow"]


def wheel() -> Path:
    """Folder of the installed TensorFlow; nothing is imported.

    Raises:
        ModuleNotFoundError: There is none.
    """
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("TensorFlow is not installed", name="tensorflow")
    return Path(found.origin).parent


def example(features: Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]]) -> Any:
    """A `tf.train.Example`: feature name -> values, all of one type."""
    with importable():
        from tensorflow.core.example import example_pb2

    message = example_pb2.Example()
    for name, values in features.items():
        feature = message.features.feature[name]
        kind = type(values[0]) if values else bytes
        lists = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}
        lists[kind].value.extend(values)
    return message
