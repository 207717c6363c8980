"""An exported model on the disk, asked as one behind a server: no server, no Python TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.serving import repository, signatures, version_manifest
from pipeline.serving.savedmodel_session import ServerError, Session, as_strings
from pipeline.serving.signatures import Field, ServingError, Signature, Version
from pipeline.serving.transport import Transport
from pipeline.utils import files, protobuf
from pipeline.utils.errors import UsageError, suggest


class Local(Transport):
    """One version, loaded by TensorFlow's own C++ loader.

    Args:
        directory: A version, or a model's folder: the version that a server would answer with,
            which is the pinned one or the newest.

    Raises:
        UsageError: There is none, or it cannot be loaded.
    """

    def __init__(self, directory: Path) -> None:
        self._version = repository.chosen(directory)
        names = version_manifest.about(self._version).get("feature_names")
        good = isinstance(names, list) and all(isinstance(name, str) for name in names)
        self.feature_names = names if good else None
        try:
            self._session = Session(self._version)
        except ServerError as error:
            said = ServingError(str(self._version), signatures.CODES[error.code], str(error))
            raise UsageError(
                f"{said}; python -m pipeline.verify {self._version} says what is wrong"
            ) from None

    def predict(
        self, name: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Field]
    ) -> dict[str, np.ndarray]:
        """Outputs of the signature `name`."""
        try:
            return self._session.run(name, inputs)
        except ServerError as error:
            code = signatures.CODES[error.code]
            raise ServingError(str(self._version), code, str(error)) from None

    def classify(
        self, name: str, examples: Sequence[Mapping[str, Sequence]]
    ) -> list[list[tuple[str, float]]]:
        """(label, score) pairs of each example."""
        answer = self._examples(name, examples, {"classes", "scores"})
        return [
            [
                (label.decode(errors="backslashreplace"), signatures.shortest(score))
                for label, score in zip(labels, scores, strict=True)
            ]
            for labels, scores in zip(answer["classes"], answer["scores"], strict=True)
        ]

    def regress(self, name: str, examples: Sequence[Mapping[str, Sequence]]) -> np.ndarray:
        """One value for each example, float32 (examples,)."""
        return self._examples(name, examples, {"outputs"})["outputs"]

    def metadata(self) -> dict[str, Signature]:
        """Its signatures."""
        return signatures.signatures(self._session.signatures)

    def status(self) -> list[Version]:
        """The version that is loaded, 0 where its folder is no number."""
        name = self._version.name
        return [Version(int(name) if files.is_version(name) else 0, "AVAILABLE")]

    def close(self) -> None:
        """The model stays loaded until the process ends."""

    def _examples(
        self, name: str, examples: Sequence[Mapping[str, Sequence]], answers: set[str]
    ) -> dict[str, np.ndarray]:
        others = [
            other
            for other, each in self.metadata().items()
            if set(each.inputs) == {"inputs"} and answers <= set(each.outputs)
        ]
        if name not in others:
            asked = f"the signature {name!r} answers no examples with {' and '.join(answers)}"
            said = f"{asked}; {suggest(name, others)}"
            raise ServingError(str(self._version), "FAILED_PRECONDITION", said)
        serialized = [protobuf.example(one).SerializeToString() for one in examples]
        return self.predict(name, {"inputs": as_strings(serialized)}, {})
