"""Client side of the gRPC interface of TensorFlow Serving, using the official stubs."""

from collections.abc import Mapping
from typing import Any

import grpc

from pipeline.serving import signatures
from pipeline.serving.signatures import Arrays, Field, ServingError, Signature
from pipeline.utils import protobuf

with protobuf.importable():
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        model_pb2,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

# By default, a client rejects replies of more than 4 MB; the server allows 2 GB.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


class Rpc:
    """A model behind the gRPC port of a server; `version` None: the newest version."""

    def __init__(
        self, host: str, name: str, version: int | str | None, timeout: float
    ) -> None:
        self._channel = grpc.insecure_channel(host, _OPTIONS)
        self._server = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._name = name
        self._version = version
        self._timeout = timeout
        self._title = f"grpc://{host}/{name}"

    def predict(
        self, name: str, inputs: Arrays, outputs: Mapping[str, Field]
    ) -> Arrays:
        request = predict_pb2.PredictRequest(model_spec=self._model(name))
        for key, array in inputs.items():
            request.inputs[key].CopyFrom(protobuf.to_tensor(array))
        reply = self._send(self._server.Predict, request)
        with signatures.reading_reply(self._title):
            return {
                key: protobuf.to_array(tensor) for key, tensor in reply.outputs.items()
            }

    def metadata(self) -> dict[str, Signature]:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._model(), metadata_field=["signature_def"]
        )
        reply = self._send(self._server.GetModelMetadata, request)
        definitions = get_model_metadata_pb2.SignatureDefMap()
        with signatures.reading_reply(self._title):
            if not reply.metadata["signature_def"].Unpack(definitions):
                raise ValueError("it contains no signatures")
            return signatures.signatures(definitions.signature_def)

    def close(self) -> None:
        self._channel.close()

    def _model(self, signature: str = "") -> Any:
        spec = model_pb2.ModelSpec(name=self._name, signature_name=signature)
        if isinstance(self._version, int):
            spec.version.value = self._version
        elif self._version is not None:
            spec.version_label = self._version
        return spec

    def _send(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise ServingError(
                self._title, error.code().name, error.details() or ""
            ) from None
