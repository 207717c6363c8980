"""An exported model in a directory, without a server and without Python TensorFlow."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.serving import repository, signatures, version_manifest
from pipeline.serving.arguments import arguments_of
from pipeline.serving.savedmodel_session import ServerError, Session
from pipeline.serving.signatures import Arrays, Field, ServingError, Signature
from pipeline.utils import protobuf
from pipeline.utils.errors import UsageError

with protobuf.importable():
    from tensorflow.core.protobuf import error_codes_pb2


class Local:
    """A version in this process; of a model, the version that a server would use."""

    def __init__(self, directory: Path) -> None:
        self._version = repository.select_version(directory)
        properties = version_manifest.properties(self._version)
        self.feature_names = properties.get("feature_names")
        column = properties.get("source_options", {}).get("column")
        self.input_column = properties.get("metadata", {}).get("input_name", column)
        default = properties.get("signatures", {}).get("serving_default", {})
        self.arguments = arguments_of(default)
        self.suffixes = {}
        for name, signature in properties.get("signatures", {}).items():
            if "files" in signature:
                self.suffixes[name] = tuple(signature["files"])
        try:
            self._session = Session(self._version)
        except ServerError as error:
            remedy = f"pipeline verify {self._version} lists what is wrong"
            raise UsageError(f"{self._error(error)}; {remedy}") from None

    def predict(
        self, name: str, inputs: Arrays, outputs: Mapping[str, Field]
    ) -> Arrays:
        try:
            return self._session.run(name, inputs)
        except ServerError as error:
            raise self._error(error) from None

    def metadata(self) -> dict[str, Signature]:
        return signatures.signatures(self._session.signatures)

    def close(self) -> None:
        """Does nothing: the model stays loaded until the process ends."""

    def _error(self, error: ServerError) -> ServingError:
        return ServingError(
            str(self._version), error_codes_pb2.Code.Name(error.code), str(error)
        )
