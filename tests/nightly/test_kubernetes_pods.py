"""The example manifests for Kubernetes against its schemas, and run on this machine.

The schemas are in `kubernetes-validate` (108 MB) and `kubeflow-trainer-api`, which no
extra of the package installs: pip install kubernetes-validate kubeflow-trainer-api
"""

import json
import os
import subprocess
import sys

import kubernetes_manifests
import pytest
from processes import REPOSITORY
from worker_processes import ports


def test_the_job_is_one_of_kubernetes():
    """With the JSON schemas of Kubernetes; `strict` refuses unknown fields."""
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate"
    )
    for document in kubernetes_manifests.documents("kubernetes_job.yaml"):
        schemas.validate(document, schemas.latest_version(), strict=True)


def test_the_train_job_is_one_of_kubeflow():
    """With the models of Kubeflow Trainer, which leave unknown fields out."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api"
    )
    for document in kubernetes_manifests.documents("kubeflow_trainer.yaml"):
        model = getattr(models, f"TrainerV1alpha1{document['kind']}")
        assert model.from_dict(document).to_dict() == document


@pytest.mark.parametrize("name", kubernetes_manifests.NAMES)
def test_two_pods_train_one_model(name, tmp_path):
    """Their commands as two processes, which reach each other on this machine; `digits`
    takes the place of the photos.
    """
    pod = kubernetes_manifests.pod(name)
    numbers = ports(2)
    address = "127.0.0.1:$(printenv PORT_$i)"
    command = [word.replace(f"{pod.host}:2222", address) for word in pod.command]
    assert command != pod.command
    arguments = [word.replace("photos", "digits") for word in pod.args]
    assert arguments[:3] == ["pipeline", "fit", "digits"]
    words = ["--model.name", "tiny", "--train.steps", "2"]
    command += [sys.executable, "-m", *arguments, *words]
    env = {**os.environ, **pod.env, "PYTHONPATH": str(REPOSITORY)}
    env |= {"TF_NUM_INTRAOP_THREADS": "1", "COLUMNS": "200"}
    env |= {f"PORT_{index}": str(number) for index, number in enumerate(numbers)}
    pods = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**env, "JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    with pods[0], pods[1]:
        try:
            outputs = [process.communicate(timeout=300) for process in pods]
        finally:
            for process in pods:
                process.kill()
    assert [process.returncode for process in pods] == [0, 0], outputs
    assert "2 workers, 2 replicas" in outputs[0][0]
    assert outputs[1][0].startswith("worker     1 of 2")
    result = json.loads((tmp_path / "runs/digits/result.json").read_text())
    assert result["verification"]["passed"]
    assert (tmp_path / "saved_models/digits/1").is_dir()
