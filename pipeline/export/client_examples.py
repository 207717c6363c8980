"""How a served model is called, as examples to copy: curl, Python over REST, Python over gRPC."""

import json
from collections.abc import Mapping
from typing import Any

# Of an example that is written out in a shell command.
_FEW = 32
_FILE = "a JPEG, PNG, GIF, BMP or WebP file"
_CLASSIFY, _REGRESS = ("image/encoded", _FILE), ("features", "the numbers")


def meaning(key: str, fields: Mapping[str, Any]) -> str:
    """What an input of strings holds; "" for numbers, of which the shape says it.

    Args:
        key: Of the input.
        fields: `inputs` and `outputs` of its signature.
    """
    if fields["inputs"][key]["dtype"] != "string":
        return ""
    feature = _feature(key, fields)
    if feature is None:
        return f"each {_FILE}"
    return f"each a serialized `tf.Example`, in its `{feature[0]}` {feature[1]}"


def takes_images(signatures: Mapping[str, Any]) -> bool:
    """Whether one of the signatures takes encoded images."""
    return any(
        _FILE in meaning(key, fields) for fields in signatures.values() for key in fields["inputs"]
    )


def _feature(key: str, fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Of the examples that Classify and Regress requests send: its name, and what it holds."""
    if key != "inputs":
        return None
    known = ((_CLASSIFY, {"classes", "scores"}), (_REGRESS, {"outputs"}))
    return next((feature for feature, outputs in known if outputs == set(fields["outputs"])), None)


def example(name: str, address: str, signature: str, signatures: Mapping[str, Any]) -> str:
    """Markdown: a heading and requests to one signature that can be copied.

    Args:
        name: Of the model.
        address: `http://HOST:PORT/v1/models/NAME`.
        signature: Its name.
        signatures: Name -> `inputs` and `outputs`: name -> `dtype` and `shape`, in which None is
            the batch.
    """
    fields = signatures[signature]
    if len(fields["inputs"]) != 1:
        return ""
    ((key, field),) = fields["inputs"].items()
    feature, outputs = _feature(key, fields), list(fields["outputs"])
    if feature == _CLASSIFY:
        parts = _files(address, "classify", signature, feature[0], "results")
        parts += _over_grpc(name, signature, *_CLASSIFICATION)
    elif feature == _REGRESS:
        parts = _regress(name, address, signature, signatures)
    elif field["dtype"] == "string":
        parts = _files(address, "predict", signature, key, "predictions")
        parts += _over_grpc(name, signature, *_prediction(key, _CONTENTS, outputs[0]))
    else:
        parts = _arrays(name, address, signature, key, field, outputs)
    return f"\n## Calling `{signature}`\n{parts}"


def _files(address: str, method: str, signature: str, key: str, answers: str) -> str:
    """Encoded files, in base64."""
    rows = "examples" if method == "classify" else "instances"
    before = json.dumps({"signature_name": signature})[:-1] + f', "{rows}": [{{"{key}": {{"b64": "'
    return f"""
```sh
(printf '%s' '{before}'; base64 < picture.png | tr -d '\\n'; echo '"}}}}]}}') |
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
    zeros = f"np.zeros({shape}, np.{dtype})"
    return f"""
```sh
{_curl(address, signature, key, shape, 0.0 if "float" in dtype else 0)}
```

```python
import json, urllib.request
import numpy as np

url = "{address}:predict"
{key} = {zeros}
request = {{"signature_name": "{signature}", "inputs": {{"{key}": {key}.tolist()}}}}
with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as got:
    answer = json.load(got)["outputs"]
print(answer{f'["{said}"]' if len(outputs) > 1 else ""})
```
{_over_grpc(name, signature, *_prediction(key, zeros, said))}"""


def _curl(address: str, signature: str, key: str, shape: tuple[int, ...], zero: float) -> str:
    """One example of zeros; a long one is written by Python."""
    if len(shape) == 2 and shape[1] <= _FEW:
        body = json.dumps({"signature_name": signature, "instances": [[zero] * shape[1]]})
        return f"curl -d '{body}' {address}:predict"
    values = str(zero)
    for size in reversed(shape):
        values = f"[{values}] * {size}"
    request = f'{{"signature_name": "{signature}", "inputs": {{"{key}": {values}}}}}'
    return (
        f"python3 -c 'import json; print(json.dumps({request}))' |\n"
        f"    curl -d @- {address}:predict"
    )


def _regress(name: str, address: str, signature: str, signatures: Mapping[str, Any]) -> str:
    """As many zeros as the other signature takes."""
    taken = signatures.get("serving_default", {}).get("inputs", {})
    width = next((f["shape"][1] for f in taken.values() if len(f["shape"]) == 2), 1)
    request = {"signature_name": signature, "examples": [{_REGRESS[0]: [0.0] * width}]}
    return f"""
```sh
curl -d '{json.dumps(request)}' {address}:regress
```

```python
import json, urllib.request

url = "{address}:regress"
request = {{"signature_name": "{signature}", "examples": [{{"{_REGRESS[0]}": [0.0] * {width}}}]}}
with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as got:
    (answer,) = json.load(got)["results"]
print(answer)
```
{_over_grpc(name, signature, *_regression(width))}"""


_CONTENTS = '[Path("picture.png").read_bytes()]'


def _over_grpc(name: str, signature: str, kind: str, method: str, put: str, show: str) -> str:
    """A request by the official stubs: of which kind, what is put into it, what is shown."""
    imports = "from pathlib import Path\n\n" if "Path(" in put else ""
    third = ["import grpc"]
    third += ["import numpy as np"] * ("np." in put) + ["import tensorflow as tf"] * ("tf." in put)
    libraries = "\n".join(third)
    return f"""
Over gRPC (`pip install 'tensorflow-serving-api>=2.21,<2.22'`), which sends values as they are:

```python
{imports}{libraries}
from tensorflow_serving.apis import {kind}_pb2, prediction_service_pb2_grpc

request = {kind}_pb2.{_REQUESTS[kind]}()
request.model_spec.name = {json.dumps(name)}
request.model_spec.signature_name = "{signature}"
{put}
with grpc.insecure_channel("localhost:8500") as channel:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    answer = stub.{method}(request, timeout=30)
{show}
```
"""


_REQUESTS = {
    "predict": "PredictRequest",
    "classification": "ClassificationRequest",
    "regression": "RegressionRequest",
}
_ADD = "features = request.input.example_list.examples.add().features.feature\n"
_CLASSIFICATION = (
    "classification",
    "Classify",
    f'{_ADD}picture = Path("picture.png").read_bytes()\n'
    f'features["{_CLASSIFY[0]}"].bytes_list.value.append(picture)',
    "for found in answer.result.classifications[0].classes:\n    print(found.label, found.score)",
)


def _prediction(key: str, values: str, said: str) -> tuple[str, str, str, str]:
    put = f'request.inputs["{key}"].CopyFrom(tf.make_tensor_proto({values}))'
    return "predict", "Predict", put, f'print(tf.make_ndarray(answer.outputs["{said}"]))'


def _regression(width: int) -> tuple[str, str, str, str]:
    put = f'{_ADD}features["{_REGRESS[0]}"].float_list.value.extend([0.0] * {width})'
    return "regression", "Regress", put, "print(answer.result.regressions[0].value)"
