"""The section of a config about the machine: arithmetic, devices, limits."""

import dataclasses
from typing import Literal

from pipeline.config import gpu_options
from pipeline.config.validation import Checked, require
from pipeline.runtime import signals
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime(Checked):
    """What the run may use of the machine."""

    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = "auto"
    """Arithmetic of the layers, not of the weights; auto: 16 bits where a trial gains a fifth."""
    replicas: Literal["auto"] | int = "auto"
    """Copies of the model that share each batch; auto: one per GPU. On a CPU: logical devices."""
    devices: str = "auto"
    """GPUs by their numbers in nvidia-smi, such as `0,2`, or `cpu`; auto: all, and those with the
    most free memory where --runtime.replicas wants fewer."""
    gpu_memory: str | None = None
    """Limit on each GPU's memory, such as `8GiB` or `80%`; CUDA and cuDNN take some more for
    themselves. None: memory is taken as it is needed."""
    require_gpu: bool = False
    """End at once where there is no GPU, instead of training on the CPU."""
    xla: Literal["auto", "on", "off"] = "auto"
    """Compile forward and backward pass; auto: on GPUs alone, as it halves the speed of CPUs."""
    time_limit: str | None = None
    """End training in time for test and export within 90s, 10m, 1h30m, ... (resumes count; a
    longer one goes on)."""
    worker_timeout: float = 60.0
    """Seconds to wait at the start for the other workers of TF_CONFIG."""
    hang_timeout: float | None = 1800.0
    """Seconds in which a call must come back, or the process ends; tracing counts; None: any."""
    deterministic: bool = False
    """Only operations that give the same bits each time (slower on GPUs), for all of a process."""
    seed: int = 0
    """Initial weights, order of the examples, augmentation, dropout."""

    def _check(self) -> None:
        good = self.replicas == "auto" or 0 < self.replicas <= 1024
        require(good, "--runtime.replicas", self.replicas, "at least 1 and at most 1024")
        require(0 <= self.seed < 2**31, "--runtime.seed", self.seed, "at least 0 and below 2**31")
        if self.time_limit is not None:
            try:
                signals.seconds(self.time_limit)
            except ValueError as error:
                raise UsageError(f"--runtime.time-limit: {error}") from None
        gpu_options.check(self.devices, self.gpu_memory, self.require_gpu, self.replicas)
        wait = self.worker_timeout
        require(0 < wait < 10**6, "--runtime.worker-timeout", wait, "positive and below 10**6")
        hang = self.hang_timeout
        good = hang is None or 0 < hang < 10**6
        require(good, "--runtime.hang-timeout", hang, "positive and below 10**6")
        if self.deterministic and self.xla == "on":
            raise UsageError(
                "--runtime.deterministic and --runtime.xla on exclude each other: XLA has no "
                "deterministic gradient of max-pooling"
            )
