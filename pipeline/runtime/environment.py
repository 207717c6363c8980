"""What is true before any model exists: TensorFlow, seeds, device, precision, with reasons."""

import ctypes
import dataclasses
import gc
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pipeline
from pipeline.config import config
from pipeline.config.formats import parse_devices
from pipeline.runtime import native_logs
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.gpu_info import missing_gpu, none_here
from pipeline.utils.errors import UsageError

if TYPE_CHECKING:  # contracts import TensorFlow, which this room starts
    import tensorflow as tf

    from pipeline.contracts import Decision

# Of glibc's malloc.h.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_ARENA_MAX = -3, -1, -8


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The started machine."""

    precision: str
    """A Keras dtype policy: float32, mixed_bfloat16, mixed_float16."""
    xla: bool
    strategy: "tf.distribute.Strategy"
    """The model is made and trained in its scope."""
    decisions: tuple["Decision", ...]
    """Device, precision and so on, each with its reason."""

    cluster: Cluster | None = None
    """The workers, where there are several."""

    @property
    def replicas(self) -> int:
        """Copies of the model that share each batch."""
        return self.strategy.num_replicas_in_sync

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.cluster is None or self.cluster.is_chief

    def decided(self, name: str, value: str, reason: str) -> "Runtime":
        """The same machine after one more decision."""
        from pipeline.contracts import Decision

        made = (*self.decisions, Decision(name, value, reason))
        return dataclasses.replace(self, decisions=made)


def start(options: config.Runtime, cluster: Cluster | None = None, token: str = "") -> Runtime:
    """Imports TensorFlow without its noise, sets the seeds, chooses devices and XLA.

    The precision is the one asked for; under `auto` it is float32 until `probe` has tried.

    Raises UsageError for what the devices cannot do.
    """
    _require_gpu(options)
    _keep_freed_memory()
    # As nvidia-smi counts them; CUDA's own order is by speed. Read when TensorFlow first looks.
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Information and warnings off, read at import: an error of tf.data that we put into one line is
    # a warning of three for TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "keras" not in sys.modules:  # another backend of the user's would be taken
        os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        import matplotlib  # noqa: F401  by Keras, whose trace tells nothing
    except ValueError:
        backend = os.environ.get("MPLBACKEND")
        raise UsageError(f"MPLBACKEND={backend} is no backend of matplotlib: unset it") from None
    with native_logs.of_start():
        import tensorflow as tf

        seen = tf.config.list_physical_devices("GPU")
    import keras

    # Not those of ~/.keras/keras.json: a result must not depend on it.
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    from pipeline.runtime import devices, distribution

    note = devices.claim(options)
    gpus = tf.config.get_visible_devices("GPU")
    tf.get_logger().setLevel("WARNING")  # "Assets written to: ..." under a name that is moved away
    # The graphs of earlier runs in this process: freed one run at a time they take 0.2 s, while
    # those of eight runs together held a ninth up for 15 s.
    gc.collect()
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    precision = "float32" if options.precision == "auto" else options.precision
    _check_precision(precision)
    chosen, device = distribution.choose(options, cluster, token, note)
    machine = Runtime(precision, _compiles(options, bool(gpus)), chosen, (device,), cluster)
    if not seen and (why := missing_gpu()):
        machine = machine.decided("GPU", "not used", why)
    if gpus and options.gpu_memory:
        machine = machine.decided(
            "gpu memory", f"at most {options.gpu_memory} on each", "asked for"
        )
    if options.precision != "auto":
        machine = machine.decided("precision", precision, "asked for")
    if options.xla != "auto" or machine.xla:
        reason = "it wins on GPUs" if options.xla == "auto" else "asked for"
        machine = machine.decided("xla", "on" if machine.xla else "off", reason)
    return machine


def _require_gpu(options: config.Runtime) -> None:
    """Before TensorFlow is imported, where it is known by then."""
    numbers = parse_devices(options.devices)
    if (options.require_gpu or numbers) and (why := none_here()):
        flag = f"devices {options.devices}" if numbers else "require-gpu"
        raise UsageError(f"--runtime.{flag}: no GPU can be used: {why}")


def _keep_freed_memory() -> None:
    """Freed blocks below a gibibyte are used again instead of going back to the kernel.

    glibc gives the memory of each batch back and takes it anew, page fault by page fault: 1,000 of
    them, and 13 ms where 2 are enough, for 64 images of 224 pixels. One arena, so that a thread
    finds what another has freed.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # of glibc; the numbers are those of its malloc.h
        libc.mallopt(_M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_ARENA_MAX, 1)


def _compiles(options: config.Runtime, has_gpu: bool) -> bool:
    """XLA halves the speed of CPUs, and has no deterministic gradient of max-pooling."""
    return options.xla == "on" or (options.xla == "auto" and has_gpu and not options.deterministic)


def fast_precision() -> tuple[str | None, str]:
    """The 16-bit policy that the device computes in, or None; and why."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        capability = _capability(gpus[0])
        if capability >= (8, 0):
            return "mixed_bfloat16", "the GPU has bfloat16"
        if capability >= (7, 0):
            return "mixed_float16", "the GPU has float16"
        return None, "this GPU has no fast 16-bit arithmetic"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = set(next(line for line in file if line.startswith("flags")).split())
    except (OSError, StopIteration):
        flags = set()
    if flags & {"avx512_bf16", "amx_bf16"}:
        return "mixed_bfloat16", "the CPU has bfloat16"
    return None, "this CPU has no bfloat16 arithmetic"


def _check_precision(precision: str) -> None:
    import tensorflow as tf

    for gpu in tf.config.get_visible_devices("GPU"):
        needed = {"mixed_bfloat16": (8, 0), "mixed_float16": (5, 3)}.get(precision, (0, 0))
        if _capability(gpu) < needed:
            raise UsageError(
                f"--runtime.precision {precision}: {gpu.name} cannot compute in it (that takes "
                f"compute capability {needed[0]}.{needed[1]}); use float32"
            )


def _capability(gpu: Any) -> tuple[int, int]:
    import tensorflow as tf

    return tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))


@contextmanager
def policy(precision: str) -> Iterator[None]:
    """Layers made inside have this Keras dtype policy; the one before comes back at the end."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def versions() -> dict[str, str]:
    """Versions of everything that can change a result."""
    from importlib.metadata import PackageNotFoundError, version

    def found(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    names = ("tensorflow", "keras", "tensorflow-datasets", "numpy", "scikit-learn")
    own = {"python": platform.python_version(), "pipeline": pipeline.__version__}
    return own | {name: found(name) for name in names}
