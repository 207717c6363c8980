"""The example manifests for Kubernetes, and what a pod of each runs."""

import dataclasses
from typing import Any

import yaml
from processes import REPOSITORY

EXAMPLES = REPOSITORY / "docs/examples"
NAMES = ("kubernetes_job.yaml", "kubeflow_trainer.yaml")


@dataclasses.dataclass
class Pod:
    """What the workers of a manifest have in common."""

    counts: list[int]
    """The number of workers, wherever it is given."""
    command: list[str]
    args: list[str]
    env: dict[str, str]
    """Without `JOB_COMPLETION_INDEX`."""
    host: str
    """The name of a worker's host, as the shell of the pod writes it."""
    job: dict[str, Any]
    """The `JobSpec`."""


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def pod(name: str) -> Pod:
    """What Kubernetes, JobSet and Kubeflow Trainer make of a manifest."""
    first, second = documents(name)
    if name == "kubernetes_job.yaml":
        job = second["spec"]
        (container,) = job["template"]["spec"]["containers"]
        env = _values(container["env"])
        counts = [job["completions"], job["parallelism"], int(env["WORKERS"])]
        host = "photos-$i.photos"
        return Pod(counts, container["command"], container["args"], env, host, job)

    (replicated_job,) = first["spec"]["template"]["spec"]["replicatedJobs"]
    job = replicated_job["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    trainer = second["spec"]["trainer"]
    env = {"NAME": second["metadata"]["name"], **_values(trainer["env"])}
    counts = [trainer["numNodes"], int(env["WORKERS"])]
    host = "$NAME-node-0-$i.$NAME"
    return Pod(counts, container["command"], trainer["args"], env, host, job)


def _values(env: list[dict[str, str]]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in env}
