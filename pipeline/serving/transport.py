"""The interface of the three ways to reach a model: REST, gRPC, and a directory on this machine."""

import abc
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.serving.signatures import Field, Signature, Version


class Transport(abc.ABC):
    """Sends the requests of a `Client` to one model and reads the replies.

    Every method but `close` raises ServingError, with the server's status and message, where the
    model does not answer.
    """

    feature_names: list[str] | None = None
    """The columns of a row, in order; None for images, and where the server does not tell."""

    @abc.abstractmethod
    def predict(
        self, name: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Field]
    ) -> dict[str, np.ndarray]:
        """Returns output name -> array, strings as bytes objects.

        Args:
            name: Of the signature.
            inputs: Input name -> array of the signature's dtype, batch first.
            outputs: Output name -> dtype and shape, as the signature has them.
        """

    @abc.abstractmethod
    def classify(
        self, name: str, examples: Sequence[Mapping[str, Sequence]]
    ) -> list[list[tuple[str, float]]]:
        """Returns the (label, score) pairs of each example.

        Args:
            name: Of the signature.
            examples: Feature name -> values, all of one type.
        """

    @abc.abstractmethod
    def regress(self, name: str, examples: Sequence[Mapping[str, Sequence]]) -> np.ndarray:
        """Returns one value for each example, float32 (examples,); arguments as of `classify`."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, Signature]:
        """Returns signature name -> its inputs and outputs."""

    @abc.abstractmethod
    def status(self) -> list[Version]:
        """Returns the versions of the model that are known, and their states."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection."""
