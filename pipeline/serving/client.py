"""A client of one served model: over REST, over gRPC, or loaded from its folder.

with Client("http://localhost:8501/v1/models/digits") as digits:
    digits.predict(images=images)["label"]
    digits.predict("image_bytes", image_bytes=[Path("three.png").read_bytes()])
"""

import functools
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.validation import require, require_path
from pipeline.serving import signatures
from pipeline.serving.rest import Rest
from pipeline.serving.signatures import Field, ServingError, Signature, Version
from pipeline.serving.transport import Transport
from pipeline.utils.errors import UsageError, suggest

_REST = re.compile(
    r"https?://[^/\s]+(/[^/\s]+)*/v1/models/[^/:\s]+(/(versions/\d+|labels/[^/:]+))?"
)
_RPC = re.compile(
    r"grpc://(?P<host>[^/\s]+:\d+)/(?P<name>[^/\s]+)"
    r"(/((versions/)?(?P<number>\d+)|labels/(?P<label>[^/\s]+)))?"
)
MEANT = (
    "a folder such as saved_models/digits or saved_models/digits/1, "
    "http://HOST:8501/v1/models/NAME[/versions/N] or grpc://HOST:8500/NAME[/N]"
)
_LONGEST = 10**6  # seconds; sockets take no 10**10
_REGRESSION = {"prediction": Field(np.dtype(np.float32), (None,))}


class Client:
    """Asks one model. A request is sent once: whether to try again is the caller's to decide.

    Args:
        model: `http://HOST:8501/v1/models/NAME` (or https), one version of it by `/versions/N` or
            `/labels/LABEL`; `grpc://HOST:8500/NAME`, one version by `/N` or `/labels/LABEL`
            (needs the extra `serving`); or a folder, which is loaded into this process: a version,
            or of a model the pinned version, else the newest.
        timeout: Seconds that a server may take for a request.

    Raises:
        UsageError: The address is none of these, or a package is missing.
    """

    def __init__(self, model: str | Path, timeout: float = 30.0) -> None:
        self.model, self.timeout = str(model).rstrip("/"), timeout
        good = isinstance(timeout, int | float) and 0 < timeout <= _LONGEST
        require(good, "timeout", repr(timeout), f"seconds, more than 0 and at most {_LONGEST:,}")
        self._transport = self._opened()

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> dict[str, Any]:
        """Answers of one signature, for a batch.

        The signatures are asked for once, so that arrays get the types that they have there.

        Args:
            signature: Its name.
            inputs: Name -> array or nested lists, the batch as the first axis; strings as bytes or
                str.

        Returns:
            Output name -> array; strings as str, but as bytes where the name ends in `_bytes`.
            They are the outputs of the signature, in its order; others are left out.

        Raises:
            ServingError: The server's status and message; or `UNKNOWN`, and what is wrong with the
                reply (`signatures.check`).
            UsageError: No such signature or input, or values that its type cannot hold.
        """
        known = self._known.get(_named(signature))
        if known is None:
            near = suggest(signature, self._known)
            raise UsageError(f"{self.model} has no signature {signature!r}; {near}")
        given = signatures.tensors(known, inputs)
        count = next((len(values) for values in given.values() if values.ndim), 1)
        reply = self._transport.predict(signature, given, known.outputs)
        answer = signatures.answer({name: reply[name] for name in known.outputs if name in reply})
        self._require(signatures.check, answer, known.outputs, count)
        return answer

    def classify(
        self, examples: Sequence[Mapping[str, Any]], signature: str = "classify"
    ) -> list[list[tuple[str, float]]]:
        """(label, probability) pairs of each example, the most probable first.

        Args:
            examples: Feature name -> bytes, str, number, or a list of them:
                `[{"image/encoded": Path("three.png").read_bytes()}]`.
            signature: Its name.

        Raises:
            ServingError: As of `predict`.
            UsageError: A feature is none of these.
        """
        given = _all_features(examples)
        answer = self._transport.classify(_named(signature), given)
        self._require(signatures.check_pairs, answer, len(given))
        return answer

    def regress(
        self, examples: Sequence[Mapping[str, Any]], signature: str = "regress"
    ) -> np.ndarray:
        """One value for each example, float32 (examples,).

        Args:
            examples: As of `classify`: `[{"features": [0.5, 1.0]}]`.
            signature: Its name.

        Raises:
            ServingError: As of `predict`.
            UsageError: A feature is none of these.
        """
        given = _all_features(examples)
        values = self._transport.regress(_named(signature), given)
        self._require(signatures.check, {"prediction": values}, _REGRESSION, len(given))
        return values

    def metadata(self) -> dict[str, Signature]:
        """Signature name -> what it takes and answers; raises ServingError."""
        return self._transport.metadata()

    def status(self) -> list[Version]:
        """The model's versions that the server knows, and how they are; raises ServingError."""
        return self._transport.status()

    @property
    def feature_names(self) -> list[str] | None:
        """What the numbers of a row are, in their order; None for images, and behind a server,
        which does not tell."""
        return self._transport.feature_names

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require(self, check: Callable[..., None], *about: Any) -> None:
        try:
            check(*about)
        except ValueError as error:
            raise ServingError(self.model, "UNKNOWN", str(error)) from None

    @functools.cached_property
    def _known(self) -> dict[str, Signature]:
        return self.metadata()

    def _opened(self) -> Transport:
        if _is_url(self.model):
            return Rest(self.model, self.timeout)
        if found := _RPC.fullmatch(self.model):
            from pipeline.serving.grpc import Rpc

            version = int(found["number"]) if found["number"] else found["label"]
            port = int(found["host"].rpartition(":")[2])
            good = 0 < port < 2**16 and (not found["number"] or version < 2**63)
            require(good, "MODEL", self.model, "an address whose port and version there can be")
            return Rpc(found["host"], found["name"], version, self.timeout)
        if not os.path.isdir(self.model):
            raise UsageError(f"{self.model!r} is no folder and no address of a model; give {MEANT}")
        from pipeline.serving.local import Local

        require_path(Path(self.model), "MODEL")
        return Local(Path(self.model))


def _is_url(text: str) -> bool:
    try:
        return _REST.fullmatch(text) is not None and urllib.parse.urlsplit(text).port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        return False


def _all_features(examples: Sequence[Mapping[str, Any]]) -> list[dict[str, list]]:
    kind = type(examples).__name__
    require(isinstance(examples, Iterable), "examples", kind, "a list of dicts")
    found = [signatures.features(example) for example in examples]
    if not found:
        raise UsageError("there are no examples to ask about")
    return found


def _named(signature: Any) -> str:
    require(isinstance(signature, str), "the signature", repr(signature)[:100], "a name")
    return signature
