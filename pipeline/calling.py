"""How a served model is called, as examples to copy: curl, Python over REST, Python over gRPC."""

import json
from collections.abc import Mapping
from typing import Any

# Of an example that is written out in a shell command.
_FEW = 32


def example(name: str, address: str, signature: str, fields: Mapping[str, Any]) -> str:
    """Markdown: a heading and requests to one signature that can be copied.

    Args:
        name: Of the model.
        address: `http://HOST:PORT/v1/models/NAME`.
        signature: Its name.
        fields: `inputs` and `outputs`: name -> `dtype` and `shape`, in which None is the batch.
    """
    inputs, outputs = fields["inputs"], fields["outputs"]
    heading = f"\n## Calling `{signature}`\n"
    if len(inputs) != 1:
        return ""
    ((key, field),) = inputs.items()
    if key == "inputs" and set(outputs) == {"classes", "scores"}:
        return heading + _files(address, "classify", signature, "image/encoded", "results")
    if key == "inputs" and set(outputs) == {"outputs"}:
        return ""  # the same numbers as in serving_default, for clients that ask for Regress
    if field["dtype"] == "string":
        return heading + _files(address, "predict", signature, key, "predictions")
    return heading + _arrays(name, address, signature, key, field, list(outputs))


def _files(address: str, method: str, signature: str, key: str, answers: str) -> str:
    """Encoded files, in base64."""
    rows = "examples" if method == "classify" else "instances"
    before = json.dumps({"signature_name": signature})[:-1] + f', "{rows}": [{{"{key}": {{"b64": "'
    return f"""
```sh
(printf '%s' '{before}'; base64 -w0 picture.png; echo '"}}}}]}}') |
    curl -d @- {address}:{method}
```

```python
import base64, json, urllib.request
from pathlib import Path

url = "{address}:{method}"
picture = base64.b64encode(Path("picture.png").read_bytes()).decode()
request = {{"signature_name": "{signature}", "{rows}": [{{"{key}": {{"b64": picture}}}}]}}
with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as got:
    (answer,) = json.load(got)["{answers}"]
print(answer)
```
"""


def _arrays(
    name: str, address: str, signature: str, key: str, field: Mapping[str, Any], outputs: list[str]
) -> str:
    """Numbers: as JSON, and as they are over gRPC."""
    shape = (1, *field["shape"][1:])
    dtype, said = field["dtype"], outputs[0]
    curl = ""
    if len(shape) == 2 and shape[1] <= _FEW:
        zero = 0.0 if "float" in dtype else 0
        body = json.dumps({"signature_name": signature, "instances": [[zero] * shape[1]]})
        curl = f"\n```sh\ncurl -d '{body}' {address}:predict\n```\n"
    return f"""{curl}
```python
import json, urllib.request
import numpy as np

url = "{address}:predict"
{key} = np.zeros({shape}, np.{dtype})
request = {{"signature_name": "{signature}", "inputs": {{"{key}": {key}.tolist()}}}}
with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as got:
    answer = json.load(got)["outputs"]
print(answer{f'["{said}"]' if len(outputs) > 1 else ""})
```

Over gRPC (`pip install 'tensorflow-serving-api>=2.21,<2.22'`), which sends arrays as they are:

```python
import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

request = predict_pb2.PredictRequest()
request.model_spec.name = {json.dumps(name)}
request.model_spec.signature_name = "{signature}"
request.inputs["{key}"].CopyFrom(tf.make_tensor_proto(np.zeros({shape}, np.{dtype})))
with grpc.insecure_channel("localhost:8500") as channel:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    answer = stub.Predict(request, timeout=30)
print(tf.make_ndarray(answer.outputs["{said}"]))
```
"""
