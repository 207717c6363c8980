"""Warm-up requests, which a server answers while it loads a version.

Without them, the first client would wait until kernels are compiled and allocated.

The file contains `PredictionLog` messages
(tensorflow_serving/apis/prediction_log.proto). If one record fails or the file is
damaged, a server does not load the version at all
(tensorflow_serving/servables/tensorflow/saved_model_warmup_util.cc).
"""

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from pipeline.serving.savedmodel_session import ServerError, Session
from pipeline.serving.signatures import strings
from pipeline.utils import protobuf
from pipeline.utils.errors import Failure

FILE = Path("assets.extra/tf_serving_warmup_requests")
MAX_RECORDS = 1000  # a server does not load a version with more records
_FILE_TYPES = 3  # types of the images that `request_guards.encode_images` creates


def write(
    path: Path,
    name: str,
    requests: Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
) -> None:
    """Writes a record for each signature and batch size, in ascending order of size.

    String inputs get a record of the smallest size for each of the first examples,
    because they are files of different types with different decoders (without it, the
    first JPEG took 20 times as long as the next). `requests` is signature -> input ->
    values of several examples.
    """
    with protobuf.importable():
        from tensorflow_serving.apis import prediction_log_pb2

    smallest, *larger = sorted(set(batch_sizes))
    records = [(smallest, 0, signature) for signature in requests]
    for first in range(1, _FILE_TYPES):
        for signature, inputs in requests.items():
            if any(isinstance(v, list) and first < len(v) for v in inputs.values()):
                records.append((smallest, first, signature))
    records += [(size, 0, signature) for size in larger for signature in requests]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for size, first, signature in records:
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            for key, values in requests[signature].items():
                request.inputs[key].CopyFrom(tensor(values[first:], size))
            record = log.SerializeToString(deterministic=True)
            length = struct.pack("<Q", len(record))
            file.write(length + _checksum(length) + record + _checksum(record))


def tensor(values: Any, size: int) -> Any:
    """Returns a `TensorProto` of `size` rows: the first string repeated, or ones.

    The last value of a tensor stands for all missing ones (tensor.proto), so the file
    is as long as a single example. Ones are enough for arrays, because compilation,
    allocation and run time depend on shapes only; zeros may be padding, and the mean
    over a sequence of padding is not a number. Strings are decoded and must be real, as
    must single numbers, such as that of a class.
    """
    texts = isinstance(values, list)
    message = protobuf.to_tensor(strings(values[:1]) if texts else values[:1])
    if not message.string_val:
        is_single = np.ndim(values) == 1
        protobuf.fill(message, values[0] if is_single else 1)
    message.tensor_shape.dim[0].size = size
    return message


def check(session: Session, directory: Path) -> str:
    """Sends every record of a warm-up file; raises Failure if a request fails."""
    with protobuf.importable():
        from tensorflow_serving.apis import prediction_log_pb2

    start = time.monotonic()
    answered: list[str] = []
    for number, record in enumerate(records(directory / FILE)):
        if number == MAX_RECORDS:
            raise Failure(
                f"the file has more than {MAX_RECORDS} records; servers do not load it"
            )
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request = log.predict_log.request
        signature = request.model_spec.signature_name
        inputs = {
            name: protobuf.to_array(value) for name, value in request.inputs.items()
        }
        size = max(map(len, inputs.values()), default=0)
        name = f"record {number} ({signature}, {size} examples)"
        try:
            session.run(signature, inputs)
        except (KeyError, ServerError) as error:
            raise Failure(f"{name}: {error}") from None
        answered.append(signature)
    for signature in session.signatures:
        if not signature.startswith("__") and signature not in answered:
            raise Failure(f"no record for {signature}: its first request would be slow")
    return f"{len(answered)} requests, {time.monotonic() - start:.1f} s"


def records(path: Path) -> Iterator[bytes]:
    """Yields the records of an uncompressed TFRecord file.

    Raises Failure for a wrong checksum.
    """
    raw = path.read_bytes()
    at = 0
    while at < len(raw):
        length = raw[at : at + 8]
        end = at + 12 + int.from_bytes(length, "little")
        record = raw[at + 12 : end]
        checksums = raw[at + 8 : at + 12] + raw[end : end + 4]
        if checksums != _checksum(length) + _checksum(record):
            raise Failure(f"{FILE} is damaged or truncated at byte {at}")
        yield record
        at = end + 4


def _checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of RFC 3720, masked as in TFRecord files."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")
