"""A real Slurm on this machine: slurmctld, and one slurmd per node, on loopback.

Needs root and the programs of Debian's `slurm-wlm`, but no configured Slurm, munge,
cgroups or systemd: `apt-get install slurm-wlm`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from worker_processes import ports

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "squeue")
# CPUs are only counted, and not bound: tests may run on fewer.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/none
CredType=cred/none
# Seconds that a job which is requeued waits; the default is 120.
AuthInfo=cred_expire=15
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# Seconds between the signals of a preemption or time limit and SIGKILL; the default.
KillWait=30
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
"""


def missing() -> str:
    """Why Slurm cannot be started here; empty if it can."""
    if os.geteuid():
        return "needs root"
    absent = [name for name in _PROGRAMS if not shutil.which(name)]
    return f"apt-get install slurm-wlm: no {', '.join(absent)}" if absent else ""


class Slurm:
    """A cluster whose nodes are addresses of this machine; stops at the end of the
    block.
    """

    def __init__(self, folder: Path, nodes: int = 1, cpus: int = 4) -> None:
        self._folder = folder
        self.nodes = [f"127.0.0.{2 + number}" for number in range(nodes)]
        controller, *node_ports = ports(1 + nodes)
        host = socket.gethostname()
        text = _CONFIGURATION.format(
            host=host, controller=controller, folder=folder, nodes=nodes
        )
        for name, port in zip(self.nodes, node_ports, strict=True):
            text += f"NodeName={name} NodeHostname={host} NodeAddr={name} Port={port}"
            text += f" CPUs={cpus} RealMemory=100 State=UNKNOWN\n"
        text += "PartitionName=test Nodes=ALL Default=YES OverSubscribe=FORCE:4\n"
        (folder / "state").mkdir(parents=True)
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(text)
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "Slurm":
        self._start("slurmctld", "-D")
        for name in self.nodes:
            (self._folder / name).mkdir()
            self._start("slurmd", "-D", "-N", name)
        for _ in range(100):
            states = self.ask("sinfo", "--noheader", "--format=%T").split()
            if states == ["idle"]:
                return self
            threading.Event().wait(0.1)
        self.__exit__()
        logs = [path.read_text()[-2000:] for path in self._folder.glob("*.log")]
        raise RuntimeError("\n".join(["Slurm does not start", *logs]))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.ask("scancel", "--signal=KILL", "--full", "--state=RUNNING")
            self.ask("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def _start(self, *words: str) -> None:
        daemon = subprocess.Popen(
            words,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._daemons.append(daemon)

    def ask(self, *words: object) -> str:
        """What a command of Slurm prints."""
        result = subprocess.run(
            list(map(str, words)),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.stdout + result.stderr
