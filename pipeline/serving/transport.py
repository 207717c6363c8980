"""The interface of the three ways to reach a model: REST, gRPC, and a directory on this machine."""

import abc
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.serving.signatures import Field, Signature, Version

Arrays = Mapping[str, np.ndarray]
"""Maps names to arrays of the signature's dtype, batch first; strings as bytes objects."""
Examples = Sequence[Mapping[str, Sequence]]
"""Maps feature names to values, all of the same type."""
LabelScores = list[list[tuple[str, float]]]
"""(label, score) pairs of each example."""


class Transport(abc.ABC):
    """Sends the requests of a `Client` to one model and reads the replies.

    Every method except `close` raises ServingError, with the server's status and message, if a
    request fails.
    """

    feature_names: list[str] | None = None
    """Columns of a row, in order; None for images, and if the server does not report them."""

    @abc.abstractmethod
    def predict(self, name: str, inputs: Arrays, outputs: Mapping[str, Field]) -> Arrays:
        """Returns the outputs of the signature `name`; `outputs` are their types."""

    @abc.abstractmethod
    def classify(self, name: str, examples: Examples) -> LabelScores:
        """Returns the (label, score) pairs of each example from the signature `name`."""

    @abc.abstractmethod
    def regress(self, name: str, examples: Examples) -> np.ndarray:
        """Returns one value for each example, float32 (examples,), from the signature `name`."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, Signature]:
        """Returns the inputs and outputs of each signature, by name."""

    @abc.abstractmethod
    def status(self) -> list[Version]:
        """Returns the known versions of the model and their states."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection."""
