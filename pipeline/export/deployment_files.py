"""What lies beside a model's versions for those who serve it: configuration, and how to call it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.export import client_examples
from pipeline.serving import models_config, version_manifest
from pipeline.utils import files

IMAGE = "tensorflow/serving:2.20.0"
"""Of the newest server that is released; `latest` has lagged behind."""
_OURS = "Written by pipeline at each export; delete this line to keep changes of your own."
_MOUNT = "/models"


def write(parent: Path, signatures: Mapping[str, Any], batch_sizes: Sequence[int]) -> None:
    """Writes the files into a model's folder, except those that somebody has made their own.

    `models.config` is written once: which versions are served stands there.

    Args:
        parent: Holds the versions, and has the model's name; none of the names is a number, so that
            no server takes them for one.
        signatures: Name -> `inputs` and `outputs`: name -> `dtype` and `shape`.
        batch_sizes: That the server may join requests to.
    """
    name = parent.name
    if not (parent / models_config.NAME).exists():
        files.write_text(parent / models_config.NAME, models_config.new(name))
    models_config.rename(parent)
    written = {
        "batching.config": f"# {_OURS}\n{batching_config(batch_sizes)}",
        "monitoring.config": f"# {_OURS}\n{_MONITORING}",
        "compose.yaml": f"# {_OURS}\n{compose(name)}",
        "SERVING.md": f"<!-- {_OURS} -->\n{serving(name, signatures, max(batch_sizes))}",
    }
    for file, text in written.items():
        if _is_ours(parent / file):
            files.write_text(parent / file, text)


def follow(parent: Path, version: Path | None) -> None:
    """Writes the files for a version that is served from now on, as its manifest tells of it."""
    about = version_manifest.about(version) if version else {}
    try:
        sizes = about["options"]["batch_sizes"]
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError
        write(parent, about["signatures"], sizes)
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # damaged, or not ours


def _is_ours(path: Path) -> bool:
    """Whether there is no such file, or one that says it is ours."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _OURS in file.readline(1000)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def batching_config(batch_sizes: Sequence[int]) -> str:
    """A `BatchingParameters` as text.

    Requests are joined and padded to the next of the sizes, the last of which must be the largest
    batch there is.
    """
    sizes = sorted(set(batch_sizes))
    return (
        f"max_batch_size {{ value: {sizes[-1]} }}\n"
        "batch_timeout_micros { value: 2000 }  # for which the first request waits for others\n"
        "max_enqueued_batches { value: 100 }  # more are answered with UNAVAILABLE\n"
        "num_batch_threads { value: 4 }  # on a CPU: its cores\n"
        + "".join(f"allowed_batch_sizes: {size}\n" for size in sizes)
    )


_MONITORING = """\
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""


def _options(name: str) -> list[str]:
    """Of the server that reads all three files."""
    return [
        f"--model_config_file={_MOUNT}/{name}/models.config",
        "--model_config_file_poll_wait_seconds=60",
        "--enable_batching",
        f"--batching_parameters_file={_MOUNT}/{name}/batching.config",
        f"--monitoring_config_file={_MOUNT}/{name}/monitoring.config",
    ]


def compose(name: str) -> str:
    """A Compose file: `docker compose up serving`, or `serving-gpu`."""
    # JSON is YAML; a dollar sign would begin a variable.
    options = json.dumps(_options(name)).replace("$", "$$")
    target = json.dumps(f"{_MOUNT}/{name}").replace("$", "$$")
    return f"""\
x-serving: &serving
  ports: ["8500:8500", "8501:8501"]  # gRPC, REST
  volumes:
    - {{type: bind, source: ., target: {target}, read_only: true}}
  command: {options}
  restart: unless-stopped
services:
  serving:
    <<: *serving
    image: {IMAGE}
  serving-gpu:
    <<: *serving
    profiles: [gpu]
    image: {IMAGE}-gpu
    deploy:
      resources:
        reservations:
          devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]
"""


def serving(name: str, signatures: Mapping[str, Any], largest: int) -> str:
    """How to start a server and how to call it, as Markdown, with the model's names and shapes.

    Args:
        name: Of the model.
        signatures: As for `write`.
        largest: Batch that requests are joined to.
    """
    address = f"http://localhost:8501/v1/models/{quote(name)}"
    images = client_examples.takes_images(signatures)
    return "".join(
        [
            _starting(name, address, largest),
            _SIGNATURES.format("an image that cannot be decoded, " if images else ""),
            *(
                f"| `{key}` | {_inputs(fields)} | {_row(fields['outputs'])} |\n"
                for key, fields in signatures.items()
            ),
            *(client_examples.example(name, address, key, signatures) for key in signatures),
            f"""
## With this package

```sh
python -m pipeline.predict {address} {"FILES" if images else "rows.csv"}
```

```python
from pipeline.serving.client import Client

with Client("{address}") as client:  # or grpc://localhost:8500/{quote(name)}, or this folder
    print(client.metadata())
```
""",
        ]
    )


def _starting(name: str, address: str, largest: int) -> str:
    """Up to the table of signatures."""
    target = shlex.quote(f"{_MOUNT}/{name}")
    run = f'docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD":{target}:ro'
    model = f"-e MODEL_NAME={shlex.quote(name)}"
    options = " \\\n    ".join(map(shlex.quote, _options(name)))
    return f"""\
# {name}, served by TensorFlow Serving

In this folder, on a CPU:

```sh
{run} {model} {IMAGE}
```

On GPUs:

```sh
{run.replace("--rm", "--rm --gpus all")} {model} {IMAGE}-gpu
```

With all that is configured here (`docker compose up serving` or `serving-gpu` does the same):

```sh
{run} {IMAGE} \\
    {options}
```

The newest version is served: the server looks for one each second, and takes it up once it is
loaded and has answered the requests in its `assets.extra`, which takes seconds; until then the
former one answers.

What follows holds for the last command and for Compose, the first two read none of these files. A
version that is pinned (`python -m pipeline.export NAME --pin VERSION`, which writes
`models.config`) is served within a minute. Requests that come together are answered in one batch
(`batching.config`): under load that is faster; alone one waits up to 2 ms, a bad one fails those
that it was joined with, and one of more than {largest} rows is refused. Metrics for Prometheus are
at `http://localhost:8501/monitoring/prometheus/metrics`.

```sh
curl {address}             # which versions are served
curl {address}/metadata    # signatures
```
"""


_SIGNATURES = """
## Signatures

N is the batch, at least 1. A request of another shape, {}a number that is not finite:
all are answered with INVALID_ARGUMENT (REST: 400), and the model stays up.

| signature | input | output |
|---|---|---|
"""


def _inputs(fields: Mapping[str, Any]) -> str:
    said = (client_examples.meaning(key, fields) for key in fields["inputs"])
    return ": ".join(filter(None, (_row(fields["inputs"]), *said)))


def _row(fields: Mapping[str, Any]) -> str:
    def shape(field: Mapping[str, Any]) -> str:
        return ", ".join("N" if size is None else str(size) for size in field["shape"])

    return "; ".join(f"`{key}` {field['dtype']} [{shape(field)}]" for key, field in fields.items())
