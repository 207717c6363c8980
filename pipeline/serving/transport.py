"""The interface of the three ways to reach a model: REST, gRPC, and a directory on this machine."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from pipeline.serving.signatures import Field, Signature, Version

Arrays = Mapping[str, np.ndarray]
"""Maps names to arrays of the signature's dtype, batch first; strings as bytes objects."""
Examples = Sequence[Mapping[str, Sequence]]
"""Maps feature names to values, all of the same type."""
LabelScores = list[list[tuple[str, float]]]
"""(label, score) pairs of each example."""


class Transport(Protocol):
    """Sends the requests of a `Client` to one model and reads the replies.

    Every method except `close` raises ServingError, with the server's status and message, if a
    request fails.
    """

    feature_names: list[str] | None = None
    """Columns of a row, in order; None for images, and if the server does not report them."""

    def predict(self, name: str, inputs: Arrays, outputs: Mapping[str, Field]) -> Arrays:
        """Returns the outputs of the signature `name`; `outputs` are their types."""

    def classify(self, name: str, examples: Examples) -> LabelScores:
        """Returns the (label, score) pairs of each example from the signature `name`."""

    def regress(self, name: str, examples: Examples) -> np.ndarray:
        """Returns one value for each example, float32 (examples,), from the signature `name`."""

    def metadata(self) -> dict[str, Signature]:
        """Returns the inputs and outputs of each signature, by name."""

    def status(self) -> list[Version]:
        """Returns the known versions of the model and their states."""

    def close(self) -> None:
        """Closes the connection."""
