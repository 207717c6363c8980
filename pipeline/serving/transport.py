"""The interface of the three ways to reach a model: REST, gRPC, and a directory on this machine."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from pipeline.serving.signatures import Field, Signature, Version

Arrays = Mapping[str, np.ndarray]
"""Maps names to arrays of the signature's dtype, batch first; strings as bytes objects."""


class Transport(Protocol):
    """Sends the requests of a `Client` to one model and reads the replies.

    Every method except `close` raises ServingError, with the server's status and message, if a
    request fails.
    """

    feature_names: list[str] | None = None
    """Columns of a row, in order; None for images, and if the server does not report them."""

    def predict(self, name: str, inputs: Arrays, outputs: Mapping[str, Field]) -> Arrays:
        """Returns the outputs of the signature `name`; `outputs` are their types."""

    def metadata(self) -> dict[str, Signature]:
        """Returns the inputs and outputs of each signature, by name."""

    def status(self) -> list[Version]:
        """Returns the known versions of the model and their states."""

    def close(self) -> None:
        """Closes the connection."""
