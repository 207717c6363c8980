"""The workers of a run, as launchers describe them in the environment."""

import json

import pytest
from worker_processes import text_of

from pipeline.runtime import cluster
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"cluster": {"worker": ["a:1", "b:2"]}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
        text_of(["a", "b:2"]),
        text_of(["a:1", "b:2"], index=2),
        text_of(["a:1", "b:2"], "chief"),
        text_of(["a:1", "[::1:2"]),
        '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]},'
        ' "task": {"type": "ps", "index": 0}}',
    ],
)
def test_a_wrong_tf_config_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="TF_CONFIG") as caught:
        cluster.read({"TF_CONFIG": text})
    assert "\n" not in str(caught.value)


def test_tf_config_with_a_chief_counts_it_first():
    text = {"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"]}}
    found = cluster.read(
        {"TF_CONFIG": json.dumps({**text, "task": {"type": "worker", "index": 1}})}
    )
    assert (
        found.workers == ("c:1", "a:1", "b:2")
        and found.index == 2
        and not found.is_chief
    )
    assert (
        cluster.read({}) is None
        and cluster.read({"TF_CONFIG": text_of(["a:1"])}) is None
    )


def test_other_keys_of_tf_config_are_ignored():
    """Recorded from a custom job of Vertex AI with two worker pools."""
    text = {
        "cluster": {
            "chief": ["cmle-training-workerpool0-ab-0:2222"],
            "worker": ["cmle-training-workerpool1-ab-0:2222"],
            "ps": [],
        },
        "environment": "cloud",
        "job": '{"python_module": "", "region": ""}',
        "task": {"type": "chief", "index": 0, "trial": "1", "cloud": "c0"},
    }
    found = cluster.read({"TF_CONFIG": json.dumps(text), "CLUSTER_SPEC": "{}"})
    assert found.is_chief and len(found.workers) == 2


def test_sagemaker():
    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    found = cluster.read(hosts)
    assert found.workers == ("algo-1:2222", "algo-2:2222")
    assert found.index == 1 and found.source == "SM_HOSTS"
    assert cluster.read({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}) is None
    with pytest.raises(UsageError, match="SM_CURRENT_HOST"):
        cluster.read({**hosts, "SM_CURRENT_HOST": "algo-3"})


def slurm(**changes):
    """Variables of task 2 of a step with two tasks on each of three nodes."""
    step = {
        "SLURM_STEP_NODELIST": "gpu[09-10],rack1-a",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_PROCID": "2",
        "SLURM_JOB_ID": "1234567",
        "SLURM_STEP_ID": "0",
        "SLURMD_NODENAME": "gpu10",
    }
    return {**step, **changes}


def test_slurm():
    found = cluster.read(slurm())
    hosts = [address.partition(":")[0] for address in found.workers]
    assert hosts == ["gpu09", "gpu09", "gpu10", "gpu10", "rack1-a", "rack1-a"]
    assert found.index == 2 and len(set(found.workers)) == 6
    # Without this variable, a task trains alone, as messages say.
    assert found.source in slurm() and "unset SLURM_STEP_NUM_TASKS" in found.alone
    alone = {name: value for name, value in slurm().items() if name != found.source}
    assert cluster.read(alone) is None
    numbers = {int(address.partition(":")[2]) for address in found.workers}
    assert len(numbers) == 2 and min(numbers) >= 20_000 and max(numbers) < 32_768
    other_job = cluster.read(slurm(SLURM_JOB_ID="1234568"))
    assert not set(other_job.workers) & set(found.workers)
    other_step = cluster.read(slurm(SLURM_STEP_ID="1"))
    assert not set(other_step.workers) & set(found.workers)


def test_one_task_of_slurm_and_a_batch_script_are_not_a_cluster():
    assert cluster.read(slurm(SLURM_STEP_NUM_TASKS="1")) is None
    assert cluster.read({"SLURM_NTASKS": "6", "SLURM_JOB_ID": "5"}) is None


def test_tf_config_comes_before_slurm():
    found = cluster.read({**slurm(), "TF_CONFIG": text_of(["a:1", "b:2"])})
    assert found.workers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "do not describe"),
        ({"SLURM_PROCID": "6"}, "do not describe"),
        ({"SLURM_STEP_NODELIST": "gpu[09-"}, "do not describe"),
        ({"SLURMD_NODENAME": "gpu09"}, "--distribution=block"),
        ({"SLURM_DISTRIBUTION": "cyclic"}, "--distribution=block"),
    ],
)
def test_tasks_of_slurm_that_do_not_match_the_nodes_are_refused(changes, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        cluster.read(slurm(**changes))
    assert "\n" not in str(caught.value)


def test_one_task_per_node_may_be_cyclic():
    """Which is Slurm's default for as many tasks as nodes."""
    found = cluster.read(
        slurm(
            SLURM_STEP_TASKS_PER_NODE="1(x3)",
            SLURM_STEP_NUM_TASKS="3",
            SLURM_DISTRIBUTION="cyclic",
            SLURMD_NODENAME="rack1-a",
        )
    )
    assert found.index == 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[008-010,12].b,c-1", ["a008.b", "a009.b", "a010.b", "a12.b", "c-1"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
    ],
)
def test_names_of_nodes_are_expanded(text, names):
    assert cluster._nodes(text) == names
