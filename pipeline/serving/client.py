"""A client of a served model: over REST, over gRPC, or loaded from its directory.

with Client("http://localhost:8501/v1/models/digits") as digits:
    digits.predict(images=images)["label"]
    digits.predict("image_bytes", image_bytes=[Path("three.png").read_bytes()])
"""

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.validation import require, require_path
from pipeline.serving import signatures
from pipeline.serving.arguments import Argument
from pipeline.serving.signatures import Signature
from pipeline.utils.errors import UsageError, suggest

if TYPE_CHECKING:
    from pipeline.serving.grpc import Rpc
    from pipeline.serving.local import Local
    from pipeline.serving.rest import Rest

EXPECTED = (
    "a directory such as saved_models/digits or saved_models/digits/1, "
    "http://HOST:8501/v1/models/NAME[/versions/N] or grpc://HOST:8500/NAME[/N]"
)
"""The addresses that a client accepts, for messages."""
_REST = re.compile(
    r"https?://[^/\s]+(/[^/\s]+)*/v1/models/[^/:\s]+(/(versions/\d+|labels/[^/:]+))?"
)
_RPC = re.compile(
    r"grpc://(?P<host>[^/\s]+:\d+)/(?P<name>[^/\s]+)"
    r"(/((versions/)?(?P<number>\d{1,18})|labels/(?P<label>[^/\s]+)))?"
)
_MAX_TIMEOUT = 10**6  # seconds; sockets do not accept 10**10


class Client:
    """Sends requests to a model.

    Over REST, requests are retried until the timeout while the server replies that it
    is busy (429, 503). Other errors are raised immediately.

    Args:
        model: `http://HOST:8501/v1/models/NAME` (or https), optionally with
            `/versions/N` or `/labels/LABEL`; `grpc://HOST:8500/NAME`, optionally with
            `/N` or `/labels/LABEL`; or a directory, which is loaded into this process:
            the directory of a version, or of a model, to use its pinned or else its
            newest version.
        timeout: Timeout of a request, in seconds.

    Attributes:
        feature_names: Columns of a row, in order; None if the model takes no rows, and
            if a server is used.
        suffixes: Signature -> suffixes of the files that it takes; empty if a server is
            used.
        arguments: Name of an argument of a model that takes numbers instead of files ->
            its default and meaning; empty if it takes files, and if a server is used.
        input_column: Column of texts or files in the table of the training; None if
            there was none, and if a server is used.

    Raises:
        UsageError: The address is invalid, or the directory contains no model.
    """

    def __init__(self, model: str | Path, timeout: float = 30.0) -> None:
        self.model = str(model).rstrip("/")
        self.timeout = timeout
        expected = f"seconds, more than 0 and at most {_MAX_TIMEOUT:,}"
        require(0 < timeout <= _MAX_TIMEOUT, "timeout", timeout, expected)
        self._transport = self._open()
        self.feature_names: list[str] | None = getattr(
            self._transport, "feature_names", None
        )
        self.suffixes: dict[str, tuple[str, ...]] = getattr(
            self._transport, "suffixes", {}
        )
        self.arguments: dict[str, Argument] = getattr(self._transport, "arguments", {})
        self.input_column: str | None = getattr(self._transport, "input_column", None)

    def predict(
        self, signature: str = "serving_default", /, **inputs: Any
    ) -> dict[str, Any]:
        """Returns the outputs of a signature for a batch.

        The signatures are requested once, to convert inputs to their types.

        Args:
            signature: Name of the signature.
            inputs: An array or nested lists for each input, with the batch as the first
                axis; strings as bytes or str.

        Returns:
            Maps output names to arrays, in the order of the signature; strings as str,
            or as bytes if the name ends in `_bytes`.

        Raises:
            ServingError: With the server's status and message; or with `UNKNOWN` and
                the problem, if the reply is invalid (`signatures.check`).
            UsageError: The signature or input does not exist, or a value does not fit
                its type.
        """
        if not isinstance(signature, str):
            default = self._signatures.get("serving_default", Signature({}, {}))
            words = ", ".join(f"{name}=..." for name in default.inputs)
            raise UsageError(f"give inputs by their names: predict({words})")
        definition = self._signatures.get(signature)
        if definition is None:
            hint = suggest(signature, self._signatures)
            raise UsageError(f"{self.model} has no signature {signature!r}; {hint}")
        self._require_inputs_of(signature, inputs)
        tensors = signatures.tensors(definition, inputs)
        reply = self._transport.predict(signature, tensors, definition.outputs)
        count = next((len(values) for values in tensors.values() if values.ndim), 1)
        with signatures.reading_reply(self.model):
            names = [name for name in definition.outputs if name in reply]
            prediction = signatures.to_prediction({name: reply[name] for name in names})
            signatures.check(prediction, definition.outputs, count)
        return prediction

    def metadata(self) -> dict[str, Signature]:
        """Returns the inputs and outputs of each signature; raises ServingError."""
        return self._transport.metadata()

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @functools.cached_property
    def _signatures(self) -> dict[str, Signature]:
        return self.metadata()

    def _require_inputs_of(self, signature: str, inputs: Mapping[str, Any]) -> None:
        """Names the signature that takes these inputs, if it is another one."""
        if inputs.keys() == self._signatures[signature].inputs.keys():
            return
        for name, definition in self._signatures.items():
            if inputs.keys() == definition.inputs.keys():
                words = ", ".join(f"{key}=..." for key in inputs)
                raise UsageError(
                    f"{signature} does not take {', '.join(inputs)}, which the"
                    f" signature {name} does; write predict({name!r}, {words})"
                )

    def _open(self) -> "Rest | Rpc | Local":
        if _REST.fullmatch(self.model):
            from pipeline.serving.rest import Rest

            return Rest(self.model, self.timeout)
        if match := _RPC.fullmatch(self.model):
            from pipeline.serving.grpc import Rpc

            version = int(match["number"]) if match["number"] else match["label"]
            return Rpc(match["host"], match["name"], version, self.timeout)
        if not os.path.isdir(self.model):
            raise UsageError(
                f"{self.model!r} is not a directory or address; pass {EXPECTED}"
            )
        from pipeline.serving.local import Local

        require_path(Path(self.model), "MODEL")
        return Local(Path(self.model))
