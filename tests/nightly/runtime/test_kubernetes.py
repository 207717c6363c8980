"""The example manifests for Kubernetes: the cluster that each pod reads, and what is
repeated.
"""

import os
import subprocess

import kubernetes_manifests
import pytest

from pipeline.runtime import cluster
from pipeline.utils.errors import (
    Diverged,
    NoCheckpoint,
    Terminated,
    UsageError,
    WorkerLost,
)

HOSTS = {
    # The name of a pod of an Indexed Job, and its subdomain.
    "kubernetes_job.yaml": "photos-{}.photos:2222",
    # As JobSet names the pods of the replicated job `node`.
    "kubeflow_trainer.yaml": "photos-node-0-{}.photos:2222",
}


@pytest.mark.parametrize("name", kubernetes_manifests.NAMES)
def test_every_pod_reads_the_same_cluster_and_its_own_index(name):
    pod = kubernetes_manifests.pod(name)
    hosts = tuple(HOSTS[name].format(index) for index in range(2))
    for index in range(2):
        env = {**os.environ, **pod.env, "JOB_COMPLETION_INDEX": str(index)}
        command = [*pod.command, "printenv", "TF_CONFIG"]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=True
        )
        found = cluster.read({"TF_CONFIG": done.stdout})
        assert (found.workers, found.index) == (hosts, index)


@pytest.mark.parametrize("name", kubernetes_manifests.NAMES)
def test_the_number_of_workers_is_the_same_everywhere(name):
    assert set(kubernetes_manifests.pod(name).counts) == {2}


@pytest.mark.parametrize("name", kubernetes_manifests.NAMES)
def test_what_can_continue_is_repeated_and_what_cannot_fails(name):
    job = kubernetes_manifests.pod(name).job
    # Kubernetes allows a failure policy with this restart policy only.
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    codes = {"FailJob": set(), "Ignore": set()}
    for rule in job["podFailurePolicy"]["rules"]:
        codes[rule["action"]] |= set(rule.get("onExitCodes", {}).get("values", ()))
    assert codes == {
        "FailJob": {error.exit_code for error in (UsageError, NoCheckpoint, Diverged)},
        "Ignore": {WorkerLost.exit_code, Terminated().exit_code},
    }


def test_the_service_names_the_pods_of_the_job():
    service, job = kubernetes_manifests.documents("kubernetes_job.yaml")
    assert service["spec"]["clusterIP"] == "None"
    label = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert service["spec"]["selector"] == label
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
