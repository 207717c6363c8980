"""The warm-up file of a version, read and asked as a server does while it loads the version.

One record that fails, or a damaged file, and the server does not load the version at all
(tensorflow_serving/servables/tensorflow/saved_model_warmup_util.cc).
"""

import collections
import math
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pipeline.serving.savedmodel_session import ServerError, Session, as_strings
from pipeline.utils import crc32c, safe_io, wire
from pipeline.utils.errors import Failure

FILE = Path("assets.extra/tf_serving_warmup_requests")
MOST_RECORDS = 1000
_MOST_BYTES = 2**31  # of the file, and of one tensor
# Of a PredictionLog: calls on a signature that a record may hold, by field number.
_PREDICT, _CLASSIFY, _REGRESS = 6, 2, 3
# TensorFlow's type -> (field of a TensorProto with such values, NumPy's type)
# (tensorflow/core/framework/tensor.proto).
_VALUES = {
    1: (5, "<f4"), 2: (6, "<f8"), 3: (7, "<i4"), 4: (7, "u1"), 5: (7, "<i2"), 6: (7, "i1"),
    9: (10, "<i8"), 10: (11, "?"), 17: (7, "<u2"), 22: (16, "<u4"), 23: (17, "<u8"),
}  # fmt: skip
_STRING, _STRING_VAL = 7, 8

Request = tuple[str, dict[str, np.ndarray], list[str] | None]
"""Name of a signature, its inputs, and the outputs that are wanted; None: all."""


def check(session: Session, directory: Path, now: Callable[[str], None]) -> str:
    """Asks every record of the version's warm-up file.

    Args:
        session: Of the version.
        directory: The version.
        now: Told of each request before it is asked.

    Raises:
        Failure: The file is damaged, has too many records or none for a signature, or a record is
            not answered.
    """
    path = directory / FILE
    start = time.monotonic()
    asked: dict[str, list[int]] = collections.defaultdict(list)
    for number, record in enumerate(records(path)):
        try:
            signature, inputs, wanted_outputs = request(record)
        except ValueError as error:
            raise Failure(f"record {number} cannot be read: {error}") from None
        size = max(len(values) for values in inputs.values())
        place = f"record {number} ({signature}, {size} examples)"
        now(place)
        if signature not in session.signatures:
            raise Failure(f"{place}: there is no such signature")
        wanted = set(session.signatures[signature].inputs)
        if set(inputs) != wanted:
            raise Failure(f"{place}: it gives {sorted(inputs)} and not {sorted(wanted)}")
        unknown = set(wanted_outputs or ()) - set(session.signatures[signature].outputs)
        if unknown:
            raise Failure(f"{place}: there is no output {min(unknown)!r}, which it asks for")
        try:
            session.run(signature, inputs, wanted_outputs)
        except ServerError as error:
            raise Failure(f"{place}: status {error.code}, {error}") from None
        asked[signature].append(size)
    for signature in session.signatures:
        if not signature.startswith("__") and signature not in asked:
            raise Failure(f"no record asks {signature}, so that its first request is slow")
    each = ((name, " ".join(map(str, sorted(set(given))))) for name, given in asked.items())
    sizes = "; ".join(f"{name} {given}" for name, given in each)
    return f"batches of {sizes}; {time.monotonic() - start:.1f} s"


def records(path: Path) -> Iterator[bytes]:
    """The records of an uncompressed TFRecord file, each compared with its checksums.

    Raises:
        Failure: It cannot be read, is damaged, or has more records than a server takes.
    """
    try:
        raw = safe_io.read_bytes(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise Failure(f"{FILE} cannot be read: {error}") from None
    at = number = 0
    while at < len(raw):
        if number == MOST_RECORDS:
            raise Failure(f"a server takes at most {MOST_RECORDS} records, and there are more")
        head, tail = raw[at : at + 12], b""
        if len(head) == 12 and _matches(head[:8], head[8:]):
            (size,) = struct.unpack("<Q", head[:8])
            tail = raw[at + 12 : at + 16 + size]
            at += 16 + size
        if len(tail) < 4 or not _matches(tail[:-4], tail[-4:]) or at > len(raw):
            raise Failure(f"record {number} is damaged or cut off")
        yield tail[:-4]
        number += 1


def _matches(data: bytes, checksum: bytes) -> bool:
    return crc32c.of_bytes(data) == int.from_bytes(checksum, "little")


def request(record: bytes) -> Request:
    """What a PredictionLog asks (tensorflow_serving/apis/prediction_log.proto).

    Raises ValueError if it is none, or none of the kinds that ask one signature.
    """
    log = wire.read(record)
    kinds = [kind for kind in (_PREDICT, _CLASSIFY, _REGRESS) if kind in log]
    if len(kinds) != 1:
        raise ValueError("it is no log of Predict, Classify or Regress")
    asked = wire.read(wire.message(wire.read(wire.message(log, kinds[0])), 1))
    name = wire.message(wire.read(wire.message(asked, 1)), 3).decode() or "serving_default"
    outputs: list[str] | None = None
    if kinds == [_PREDICT]:
        outputs = [output.decode() for output in wire.messages(asked, 3)] or None
        entries = [wire.read(entry) for entry in wire.messages(asked, 2)]
        inputs = {wire.message(e, 1).decode(): tensor(wire.message(e, 2)) for e in entries}
    else:
        examples = wire.read(wire.message(wire.read(wire.message(asked, 2)), 1))
        inputs = {"inputs": as_strings(wire.messages(examples, 1))}
    if not inputs or not all(values.ndim for values in inputs.values()):
        raise ValueError("it has no inputs, or one without a batch axis")
    return name, inputs, outputs


def tensor(serialized: bytes) -> np.ndarray:
    """The array of a TensorProto, strings as bytes objects.

    The last value stands for all that are missing, zero for all where there is none.

    Raises ValueError if it is none, or too large.
    """
    fields = wire.read(serialized)
    code = (wire.numbers(fields, 1) or [0])[-1]
    told = wire.read(wire.message(fields, 2))
    dims = wire.messages(told, 2)
    if any(wire.numbers(told, 3)):
        raise ValueError("a tensor of unknown rank")
    shape = [(wire.numbers(wire.read(dim), 1) or [0])[-1] for dim in dims]
    count = math.prod(shape)
    if count * 8 > _MOST_BYTES:
        raise ValueError(f"a tensor of the shape {shape}")
    if code == _STRING:
        values = as_strings(wire.messages(fields, _STRING_VAL) or [b""])
    elif code in _VALUES:
        values = _values(fields, *_VALUES[code])
    else:
        raise ValueError(f"a tensor of the type {code}")
    short = len(values) < count and wire.message(fields, 4)
    if len(values) > max(count, 1) or short:
        raise ValueError(f"{len(values)} values for the shape {shape}")
    return values[np.minimum(np.arange(count), len(values) - 1)].reshape(shape)


def _values(fields: wire.Fields, number: int, kind: str) -> np.ndarray:
    """The values that are given; one zero where none is."""
    if content := wire.message(fields, 4):
        return np.frombuffer(content, kind)
    if kind in ("<f4", "<f8"):  # packed, or each as the whole number of its bits
        size = int(kind[-1])
        parts = fields.get(number, [])
        raw = b"".join(p.to_bytes(size, "little") if isinstance(p, int) else p for p in parts)
        values = np.frombuffer(raw, kind)
    else:  # of whole numbers below zero, the lower bits
        values = np.array(wire.numbers(fields, number), np.uint64).astype(kind)
    return values if len(values) else np.zeros(1, kind)
