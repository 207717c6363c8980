"""The released server itself, if docker is available."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from pipeline.export import proof, text_files
from pipeline.serving import signatures
from pipeline.serving.client import Client
from pipeline.serving.signatures import ServingError

pytestmark = pytest.mark.usefixtures("no_proxy")


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def container(full_version):
    """(REST port, gRPC port) of the released server with a small export."""
    if shutil.which("docker") is None:
        pytest.skip("the released server needs docker")
    for words in (["info"], ["pull", "-q", text_files.IMAGE]):
        if (ran := docker(*words)).returncode:
            pytest.skip(f"docker {words[0]}: {ran.stderr.strip()[-200:]}")
    words = ["-d", "--rm", "-p", "127.0.0.1::8501", "-p", "127.0.0.1::8500", "-e"]
    words += ["MODEL_NAME=small", "-v", f"{full_version.parent}:/models/small:ro"]
    started = docker("run", *words, text_files.IMAGE)
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        log = subprocess.Popen(
            ["docker", "logs", "-f", name],
            stdout=-1,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with log:  # it reports when the server listens
            assert any("Exporting HTTP/REST API" in line for line in log.stdout), (
                "it ended"
            )
            log.kill()
        ports = [docker("port", name, port).stdout for port in ("8501", "8500")]
        yield [int(re.search(r":(\d+)", text)[1]) for text in ports]
    finally:
        docker("rm", "-f", name)


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_the_released_server_answers_as_the_export_does(container, full_version, kind):
    rest, grpc = container
    addresses = {
        "rest": f"http://127.0.0.1:{rest}/v1/models/small",
        "grpc": f"grpc://127.0.0.1:{grpc}/small",
    }
    golden = proof.read_golden(full_version / proof.GOLDEN)
    with Client(addresses[kind]) as client:
        for name in ("serving_default", "image_bytes"):
            got = client.predict(name, **golden[name]["inputs"])
            want = signatures.to_prediction(golden[name]["outputs"])
            assert got["label"].tolist() == want["label"].tolist()
            np.testing.assert_allclose(
                got["probabilities"], want["probabilities"], atol=1e-5
            )
        with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
            client.predict(images=golden["serving_default"]["inputs"]["images"][:, :4])
