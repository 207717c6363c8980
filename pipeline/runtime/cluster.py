"""Training on several machines: finds the workers in the environment."""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.config import Config
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

# A host name, IPv4 address or IPv6 address in brackets, and a port: what TensorFlow's
# servers accept.
_HOST = r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}|\[[0-9A-Fa-f:.]{2,45}\]"
_ADDRESS = re.compile(rf"(?:{_HOST}):[1-9][0-9]{{0,4}}")
# Ports of jobs, below those that Linux gives to connections (32768 and up).
_FIRST_PORT = 20_000
_PORTS = 12_000
_PORTS_OF_JOB = 16
_SAGEMAKER_PORT = 2222


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run."""

    workers: tuple[str, ...]
    """host:port of each; only worker 0, the chief, writes and prints."""
    index: int
    """The index of this process."""
    source: str = "TF_CONFIG"
    """The environment variable without which this process trains alone."""
    run: Path | None = None
    """The run directory, which all workers share."""
    options: str = ""
    """A digest of the options; it must be equal on all workers."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.index == 0

    def name(self, index: int) -> str:
        """The name of a worker in messages."""
        return f"worker {index} ({self.workers[index]})"

    @property
    def alone(self) -> str:
        """How to train without the other workers, in messages."""
        return f"for independent runs, unset {self.source}"


def read(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Finds the workers; returns None if this process is the only one.

    Reads TF_CONFIG if it is set; otherwise the variables of a step of Slurm with
    several tasks, or those of SageMaker.

    Raises UsageError naming the variable with a mistake in it.
    """
    if environment.get("TF_CONFIG", "").strip():
        found = _tf_config(environment["TF_CONFIG"])
    elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        found = _slurm(environment)
    elif "SM_HOSTS" in environment:
        found = _sagemaker(environment)
    else:
        return None
    return found if len(found.workers) > 1 else None


def _tf_config(text: str) -> Cluster:
    """Reads the value of TF_CONFIG, of which other keys are ignored.

    Vertex AI adds `job` and `environment`, for example.
    """
    try:
        values = safe_io.parse_json(text)
        addresses = {kind: list(some) for kind, some in values["cluster"].items()}
        task = values["task"]
        workers = (*addresses.pop("chief", []), *addresses.pop("worker", []))
        good = not any(addresses.values()) and type(task["index"]) is int
        good = good and all(map(_ADDRESS.fullmatch, workers))
        if not good or len({worker.lower() for worker in workers}) != len(workers):
            raise ValueError(text)
        if task["type"] not in ("chief", "worker"):
            raise ValueError(text)
        address = values["cluster"][task["type"]][task["index"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(
            'TF_CONFIG must be {"cluster": {"worker": ["host0:port", "host1:port"]},'
            ' "task": {"type": "worker", "index": 0}}, with different chief and worker'
            " tasks only"
        ) from None
    return Cluster(workers, workers.index(address))


def _slurm(environment: Mapping[str, str]) -> Cluster:
    """Reads the variables that `srun` sets for each task of a step.

    Ranks are expected to follow the list of nodes, which is Slurm's default (a block
    distribution). Ports follow from the job and the step.
    """
    name = "SLURM_STEP_NODELIST"
    try:
        nodes = _nodes(environment[name])
        counts = _task_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
        rank = int(environment["SLURM_PROCID"])
        total = int(environment["SLURM_STEP_NUM_TASKS"])
        job = int(environment["SLURM_JOB_ID"])
        step = int(environment.get("SLURM_STEP_ID", "0"))
        if len(nodes) != len(counts) or sum(counts) != total or rank >= total:
            raise ValueError(name)
    except (ValueError, LookupError):
        raise UsageError(
            f"{name} and SLURM_STEP_TASKS_PER_NODE do not describe the"
            " SLURM_STEP_NUM_TASKS tasks of the step; start the workers with srun, or"
            " unset SLURM_STEP_NUM_TASKS to train in this process only"
        ) from None

    hosts = [
        node for node, count in zip(nodes, counts, strict=True) for _ in range(count)
    ]
    has_order = len(nodes) == 1 or max(counts) == 1
    distribution = environment.get("SLURM_DISTRIBUTION", "block")
    node = environment.get("SLURMD_NODENAME", hosts[rank])
    if node != hosts[rank] or not (has_order or distribution.startswith("block")):
        raise UsageError(
            f"{name}: the tasks are not in the order of the nodes (task {rank} is on"
            f" {node}); use srun --distribution=block"
        )

    first = _FIRST_PORT + (job * 5 + step) * _PORTS_OF_JOB % _PORTS
    workers = []
    for node, count in zip(nodes, counts, strict=True):
        workers += [f"{node}:{first + number}" for number in range(count)]
    return Cluster(tuple(workers), rank, "SLURM_STEP_NUM_TASKS")


def _nodes(text: str) -> list[str]:
    """Expands the names of nodes: `gpu[08-10],a` are gpu08, gpu09, gpu10 and a."""
    names = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    return [node for name in names for node in _expand(name)]


def _expand(name: str) -> list[str]:
    before, bracket, after = name.partition("[")
    if not bracket:
        return [name]
    ranges, _, after = after.partition("]")
    endings = _expand(after)
    nodes = []
    for numbers in ranges.split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            nodes += [f"{before}{number:0{len(first)}}{ending}" for ending in endings]
    return nodes


def _task_counts(text: str) -> list[int]:
    """Expands numbers of tasks: `2(x3),1` are 2, 2, 2 and 1."""
    counts = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def _sagemaker(environment: Mapping[str, str]) -> Cluster:
    try:
        hosts = safe_io.parse_json(environment["SM_HOSTS"])
        workers = tuple(f"{host}:{_SAGEMAKER_PORT}" for host in hosts)
        return Cluster(
            workers, hosts.index(environment["SM_CURRENT_HOST"]), source="SM_HOSTS"
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(
            'SM_HOSTS must be a list such as ["algo-1", "algo-2"], with the value of'
            " SM_CURRENT_HOST"
        ) from None


def of_run(config: Config) -> Cluster | None:
    """Finds the workers; raises UsageError if this run does not support several."""
    workers = read()
    if workers is None:
        return None
    require_supported(
        config, f"{workers.source} describes several workers", workers.alone
    )
    return dataclasses.replace(
        workers, run=config.run_directory, options=config.digest()
    )


def require_none(program: str) -> None:
    """Raises UsageError if the environment describes several workers."""
    if workers := read():
        raise UsageError(
            f"{workers.source} describes several workers, which {program} does not"
            f" support: start one process; {workers.alone}"
        )


def require_supported(config: Config, cause: str, alone: str) -> None:
    """Raises UsageError if several workers cannot carry out this run.

    `cause` says what asks for several workers, and `alone` how to use only one.
    """
    if config.clean.enabled:
        raise UsageError(
            f"{cause}, which must exclude the same examples: run pipeline clean once,"
            f" and use its --clean.manifest for all of them; {alone}"
        )
    if config.data.folds:
        raise UsageError(f"{cause}, but --data.folds trains in one process; {alone}")
    if config.run_directory is None or config.dry_run:
        raise UsageError(
            f"{cause}, which need a common run: set --run-directory to a directory on a"
            f" shared disk, without --dry-run; {alone}"
        )
