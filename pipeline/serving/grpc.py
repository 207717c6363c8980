"""TensorFlow Serving's gRPC interface, the client's half of it, by the official stubs."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.serving import signatures
from pipeline.serving.signatures import Field, ServingError, Signature, Version
from pipeline.serving.transport import Transport
from pipeline.utils import protobuf
from pipeline.utils.errors import UsageError

# A client refuses more than 4 MB otherwise; the server's own limit is 2 GB.
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class Rpc(Transport):
    """One model behind a server's gRPC port.

    Args:
        host: `HOST:PORT`.
        name: Of the model.
        version: Its number, or a label; None: the newest.
        timeout: Seconds.

    Raises:
        UsageError: The package tensorflow-serving-api is not installed.
    """

    def __init__(self, host: str, name: str, version: int | str | None, timeout: float) -> None:
        self._apis = _official()
        import grpc

        self._error = grpc.RpcError
        self._channel = grpc.insecure_channel(host, _OPTIONS)
        self._prediction = self._apis.prediction.PredictionServiceStub(self._channel)
        self._models = self._apis.models.ModelServiceStub(self._channel)
        self._name, self._version, self._timeout = name, version, timeout
        self._title = f"grpc://{host}/{name}"

    def predict(
        self, name: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Field]
    ) -> dict[str, np.ndarray]:
        """Outputs of the signature `name`."""
        request = self._apis.predict.PredictRequest(model_spec=self._model(name))
        for key, array in inputs.items():
            request.inputs[key].CopyFrom(protobuf.to_tensor(array))
        reply = self._ask(self._prediction.Predict, request)
        return self._read(
            lambda: {key: protobuf.to_array(tensor) for key, tensor in reply.outputs.items()}
        )

    def classify(
        self, name: str, examples: Sequence[Mapping[str, Sequence]]
    ) -> list[list[tuple[str, float]]]:
        """(label, score) pairs of each example."""
        request = self._apis.classification.ClassificationRequest(model_spec=self._model(name))
        request.input.example_list.examples.extend(map(protobuf.example, examples))
        reply = self._ask(self._prediction.Classify, request)
        return [
            [(pair.label, signatures.shortest(pair.score)) for pair in one.classes]
            for one in reply.result.classifications
        ]

    def regress(self, name: str, examples: Sequence[Mapping[str, Sequence]]) -> np.ndarray:
        """One value for each example, float32 (examples,)."""
        request = self._apis.regression.RegressionRequest(model_spec=self._model(name))
        request.input.example_list.examples.extend(map(protobuf.example, examples))
        reply = self._ask(self._prediction.Regress, request)
        return np.array([one.value for one in reply.result.regressions], np.float32)

    def metadata(self) -> dict[str, Signature]:
        """Its signatures."""
        request = self._apis.metadata.GetModelMetadataRequest(
            model_spec=self._model(), metadata_field=["signature_def"]
        )
        reply = self._ask(self._prediction.GetModelMetadata, request)

        def read() -> dict[str, Signature]:
            definitions = self._apis.metadata.SignatureDefMap()
            if not reply.metadata["signature_def"].Unpack(definitions):
                raise ValueError("a message of another type")
            return signatures.signatures(definitions.signature_def)

        return self._read(read)

    def status(self) -> list[Version]:
        """Its versions that the server knows."""
        request = self._apis.status.GetModelStatusRequest(model_spec=self._model())
        reply = self._ask(self._models.GetModelStatus, request)
        state = self._apis.status.ModelVersionStatus.State
        return self._read(
            lambda: [
                Version(one.version, state.Name(one.state), one.status.error_message)
                for one in reply.model_version_status
            ]
        )

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def _model(self, signature: str = "") -> Any:
        spec = self._apis.model.ModelSpec(name=self._name, signature_name=signature)
        if isinstance(self._version, int):
            spec.version.value = self._version
        elif self._version is not None:
            spec.version_label = self._version
        return spec

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout)
        except self._error as error:
            said = error.details() or ""
            raise ServingError(self._title, error.code().name, said) from None

    def _read(self, reading: Callable[[], Any]) -> Any:
        try:
            return reading()
        except (self._apis.damaged, *signatures.STRANGE):
            said = "the reply is not one of TensorFlow Serving"
            raise ServingError(self._title, "UNKNOWN", said) from None


def _official() -> types.SimpleNamespace:
    """The modules of tensorflow-serving-api that are needed."""
    try:
        with protobuf.importable():
            from google.protobuf.message import DecodeError
            from tensorflow_serving.apis import (
                classification_pb2,
                get_model_metadata_pb2,
                get_model_status_pb2,
                model_pb2,
                model_service_pb2_grpc,
                predict_pb2,
                prediction_service_pb2_grpc,
                regression_pb2,
            )
    except ModuleNotFoundError as error:
        raise UsageError(
            f"grpc:// needs the package tensorflow-serving-api ({error.name} is missing): pip "
            "install 'tensorflow-serving-api>=2.21,<2.22', or this package with its extra "
            "'.[serving]'; http:// needs nothing more"
        ) from None
    return types.SimpleNamespace(
        classification=classification_pb2,
        metadata=get_model_metadata_pb2,
        status=get_model_status_pb2,
        model=model_pb2,
        models=model_service_pb2_grpc,
        predict=predict_pb2,
        prediction=prediction_service_pb2_grpc,
        regression=regression_pb2,
        damaged=DecodeError,
    )
