"""Peers: plain Keras and PyTorch, in processes of their own, with the same network and
data.
"""

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scripts.timing.processes import INSTALL, SCRIPTS, torch_hint
from benchmarks.scripts.timing.rounds import Line, MeasurementError, Rounds, Sample
from benchmarks.scripts.timing.speed import Training
from pipeline.runtime import dtype_policy
from pipeline.runtime.cpu_info import cores
from pipeline.utils import temp_files

_SETTINGS = {
    "keras": ("fit, NumPy", "fit, tf.data", "fit, NumPy, bfloat16"),
    "torch": (
        "eager float32",
        "eager bfloat16",
        "compiled float32",
        "compiled bfloat16",
    ),
}
# Least ratio of the speeds of ours and `fit` on NumPy arrays; at most 2.0 without
# bfloat16.
_BOUNDS = {"convnet": 2.5, "sequential": 1.3, "lenet": 1.3, "resnet18": 1.5}
_MOST = 20_000  # images that a peer gets


def specification(training: Training, folder: Path) -> dict[str, Any]:
    """What a peer trains; writes its data. Raises MeasurementError if the scripts do not have the
    network.
    """
    config = training.config
    train = config.train
    split = training.data.splits["train"]
    options = dict(config.model.options)
    is_18 = config.model.name == "resnet" and options.pop("depth", 20) == 18
    network = "resnet18" if is_18 else config.model.name
    if train.optimizer not in ("sgd", "adam"):
        raise MeasurementError(
            f"the scripts train with sgd or adam, not with {train.optimizer}"
        )
    if network not in _BOUNDS or "class_names" not in training.data.metadata:
        raise MeasurementError(
            f"not available for the model {config.model.name}, only for convnet,"
            " sequential, lenet, and resnet with depth=18"
        )
    for name, column in split.take(np.arange(len(split))[:_MOST]).items():
        np.save(folder / f"{name}.npy", column)
    return {
        "data": str(folder),
        "threads": cores(),
        "network": network,
        "options": options,
        "classes": len(training.data.metadata["class_names"]),
        "batch": train.batch_size,
        "optimizer": train.optimizer,
        "learning_rate": train.learning_rate,
        "momentum": float(train.optimizer_options.get("momentum", 0)),
    }


class Peer:
    """A process that trains on request; see `specification`. Raises MeasurementError if it does
    not start.
    """

    def __init__(self, kind: str, trained: Mapping[str, Any], python: str) -> None:
        if kind == "torch" and (how := torch_hint(python)):
            raise MeasurementError(how)
        script = str(SCRIPTS / f"peer_{kind}.py")
        variables = {
            k: v for k, v in os.environ.items() if not python or k != "PYTHONPATH"
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, script, json.dumps(trained)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=variables,
            )
        except OSError as error:
            self._errors.close()
            raise MeasurementError(
                f"{python} cannot be started: {error.strerror}"
            ) from None
        self.version = self._answer()

    def sample(self, setting: str, seconds: float) -> Sample:
        """Trains for some seconds."""
        if self._errors.closed:
            raise MeasurementError("has ended")
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer
            print(json.dumps([setting, seconds]), file=self._process.stdin, flush=True)
        return Sample(*self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._errors.close()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # closes the pipes, and waits

    def _answer(self) -> Any:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        try:
            answer = json.loads(line or "{}")
        except ValueError:
            self.close()
            raise MeasurementError(
                f"unexpected output: {line.strip()[:80]!r}"
            ) from None
        if answer == {}:
            self._errors.seek(0)
            message = (self._errors.read().strip() or "no message").splitlines()[-1]
            if message.startswith("ModuleNotFoundError"):
                message += f"; {INSTALL}"
            code = self._process.wait()
            self.close()
            raise MeasurementError(f"ended with code {code}: {message}")
        if isinstance(answer, dict):
            raise MeasurementError(answer["error"])
        return answer


def _settings(kind: str) -> list[str]:
    """What a peer is asked for; Keras in bfloat16 only where it is fast."""
    every = kind == "torch" or dtype_policy.fast_policy()[0] == "mixed_bfloat16"
    return [name for name in _SETTINGS[kind] if every or "bfloat16" not in name]


def training_lines(
    training: Training,
    against: Sequence[str],
    torch_python: str,
    seconds: float,
    count: int,
) -> tuple[list[Line], str]:
    """Measures training and its peers in the same rounds; returns lines, and versions
    of peers.
    """
    peers: dict[str, Peer] = {}
    missing: list[Line] = []
    timers = training.contestants(seconds)
    with temp_files.temporary() as folder, contextlib.ExitStack() as stack:
        for kind in against:
            try:
                trained = specification(training, folder)
                peers[kind] = Peer(
                    kind, trained, torch_python if kind == "torch" else ""
                )
            except MeasurementError as failed:
                missing.append(Line("training", kind, note=str(failed)))
                continue
            stack.callback(peers[kind].close)
            for name in _settings(kind):
                timers[f"{kind} {name}"] = functools.partial(
                    peers[kind].sample, name, seconds
                )
        rounds = Rounds("training", timers, "end to end", count)
    lines = [rounds.control(), *training.lines(rounds), *missing]
    ours = training.ours
    if "keras" in peers:
        least = _BOUNDS[trained["network"]]
        least = least if dtype_policy.fast_policy()[0] else min(least, 2.0)
        for name in (f"keras {setting}" for setting in _settings("keras")):
            bound = (least, math.inf) if name.endswith("NumPy") else None
            lines.append(rounds.line(name, f"{ours} / {name}", bound=bound))
    for name in (
        f"torch {setting}" for setting in _settings("torch") if "torch" in peers
    ):
        lines.append(
            rounds.line(name, f"{name} / {ours}", "CPU", bound=(1.2, math.inf))
        )
    return lines, ", ".join(peer.version for peer in peers.values()) or "none"
