"""The released server itself, where docker is there to run it."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from pipeline.export import proof
from pipeline.serving import signatures
from pipeline.serving.client import Client
from pipeline.serving.signatures import ServingError, Version

pytestmark = pytest.mark.usefixtures("direct")


def docker_reason():
    """Why no container can be started here; empty where one can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    ran = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60)
    return "" if ran.returncode == 0 else f"docker info: {ran.stderr.strip()[-200:]}"


@pytest.fixture(scope="module")
def container(whole):
    """(REST port, gRPC port) of the released server with a small export."""
    if reason := docker_reason():
        pytest.skip(f"the released server needs docker: {reason}")
    image = "tensorflow/serving:2.20.0"
    pulled = subprocess.run(["docker", "pull", "-q", image], capture_output=True, text=True)
    if pulled.returncode:
        pytest.skip(f"{image} cannot be pulled: {pulled.stderr.strip()[-200:]}")
    ports = ["-p", "127.0.0.1::8501", "-p", "127.0.0.1::8500"]
    mount = ["-v", f"{whole.parent}:/models/small:ro", "-e", "MODEL_NAME=small"]
    started = subprocess.run(
        ["docker", "run", "-d", "--rm", *ports, *mount, image], capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        # Its log says when it listens; no waiting by the clock.
        with subprocess.Popen(
            ["docker", "logs", "-f", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as log:
            assert any("Exporting HTTP/REST API" in line for line in log.stdout), "it ended"
            log.kill()
        found = [
            subprocess.run(["docker", "port", name, port], capture_output=True, text=True).stdout
            for port in ("8501", "8500")
        ]
        yield [int(re.search(r":(\d+)", text)[1]) for text in found]
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)


@pytest.mark.parametrize("kind", ["rest", "rpc"])
def test_the_released_server_answers_as_the_export_does(container, whole, kind):
    http_port, grpc_port = container
    address = f"http://127.0.0.1:{http_port}/v1/models/small"
    if kind == "rpc":
        address = f"grpc://127.0.0.1:{grpc_port}/small"
    golden = proof.read_golden(whole / proof.GOLDEN)
    with Client(address) as client:
        assert client.status() == [Version(1, "AVAILABLE")]
        for name in ("serving_default", "image_bytes"):
            sides = golden[name]
            got = client.predict(name, **sides["inputs"])
            want = signatures.answer(sides["outputs"])
            assert got["label"].tolist() == want["label"].tolist()
            np.testing.assert_allclose(got["probabilities"], want["probabilities"], atol=1e-5)
        with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
            client.predict(images=golden["serving_default"]["inputs"]["images"][:, :4])
