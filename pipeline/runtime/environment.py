"""The environment of a run: TensorFlow, seeds, devices and precision, with reasons."""

import ctypes
import dataclasses
import gc
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pipeline
from pipeline.config import config
from pipeline.config.formats import parse_devices
from pipeline.runtime import cpu_info, native_logs
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.gpu_info import missing_gpu, none_here
from pipeline.utils import files
from pipeline.utils.errors import UsageError

if TYPE_CHECKING:  # contracts import TensorFlow
    import tensorflow as tf

    from pipeline.contracts import Decision

# From glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices and settings of a run."""

    precision: str
    """A Keras dtype policy: float32, mixed_bfloat16 or mixed_float16."""
    xla: bool
    strategy: "tf.distribute.Strategy"
    """The model is created and trained in its scope."""
    decisions: tuple["Decision", ...]
    """Device, precision and so on, each with its reason."""
    cluster: Cluster | None = None
    """The workers, if there are several."""

    @property
    def replicas(self) -> int:
        """Number of copies of the model that each batch is divided among."""
        return self.strategy.num_replicas_in_sync

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.cluster is None or self.cluster.is_chief

    def add_decision(self, name: str, value: str, reason: str) -> "Machine":
        """Returns a copy with another decision."""
        from pipeline.contracts import Decision

        decisions = (*self.decisions, Decision(name, value, reason))
        return dataclasses.replace(self, decisions=decisions)


def start(options: config.RuntimeConfig, cluster: Cluster | None = None) -> Machine:
    """Imports TensorFlow, sets the seeds, chooses devices, precision and XLA.

    The precision `auto` means float32 until a trial has shown that a 16-bit policy is
    faster.

    Raises UsageError if the devices do not support the options.
    """
    numbers = parse_devices(options.devices)
    if (options.require_gpu or numbers) and (why := none_here()):
        flag = f"devices {options.devices}" if numbers else "require-gpu"
        raise UsageError(f"--runtime.{flag}: no GPU can be used: {why}")
    _keep_freed_memory()
    settings = _settings_of_user()
    # Frees the graphs of earlier runs in this process; freeing many at once later takes
    # seconds.
    gc.collect()
    has_gpu = import_tensorflow()
    import keras
    import tensorflow as tf

    from pipeline.contracts import Decision
    from pipeline.runtime import devices

    if tf.distribute.has_strategy():
        raise UsageError(
            "fit was called in the scope of a tf.distribute strategy; call it outside,"
            " and set --runtime.replicas to the number of devices: a run creates its"
            " strategy"
        )
    devices.claim(options)
    gpus = tf.config.get_visible_devices("GPU")
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    precision = "float32" if options.precision == "auto" else options.precision
    strategy, device = devices.choose(options, cluster, versions() if cluster else None)
    # XLA slows down CPUs, and has no deterministic gradient of max-pooling.
    automatic = bool(gpus) and not options.deterministic
    xla = options.xla == "on" or (options.xla == "auto" and automatic)
    decisions = [device]
    if not has_gpu and (why := missing_gpu()):
        decisions.append(Decision("GPU", "not used", why))
    if not gpus and "avx2" in cpu_info.flags() and not cpu_info.has_onednn():
        reason = (
            "slower; set TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow or Keras is imported"
        )
        decisions.append(Decision("oneDNN", "off", reason))
    if options.precision != "auto":
        decisions.append(Decision("precision", precision, "requested"))
    if precision == "mixed_float16" and not gpus:
        reason = "slow; a CPU computes it in float32: use mixed_bfloat16 or float32"
        decisions.append(Decision("float16", "emulated", reason))
    decisions += [Decision(name, value, reason) for name, value, reason in settings]
    if tf.config.functions_run_eagerly():
        reason = "tf.config.run_functions_eagerly is set, for debugging; this is slow"
        decisions.append(Decision("functions", "eager", reason))
    if xla:
        reason = "faster on GPUs" if options.xla == "auto" else "requested"
        decisions.append(Decision("xla", "on", reason))
    return Machine(precision, xla, strategy, tuple(decisions), cluster)


def _settings_of_user() -> list[tuple[str, str, str]]:
    """Lists what a run uses instead of this process's settings: name, value, reason."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "config"):
        return []
    required = {"floatx": "float32", "image_data_format": "channels_last"}
    changes = []
    for name, value in required.items():
        setting = getattr(keras.config, name)()
        if setting != value:
            reason = f"instead of {setting}: a run needs it"
            changes.append((name.replace("image_", ""), value, reason))
    return changes


def import_tensorflow() -> bool:
    """Imports TensorFlow and Keras; returns whether TensorFlow sees a GPU."""
    if "tensorflow" not in sys.modules:
        # Numbers GPUs as nvidia-smi does; by default, CUDA orders them by speed.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Hides INFO and WARNING: tf.data also logs, as warnings, errors that we report in
    # one line.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not files.has_home():  # TensorFlow would create a directory named ~
        os.environ.setdefault("KERAS_HOME", str(files.temporary_home() / "keras"))
    if "keras" not in sys.modules:  # the user may have set another backend
        os.environ["KERAS_BACKEND"] = "tensorflow"
    with native_logs.filter_startup(), _no_garbage_collection(), cpu_info.onednn():
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        import keras

    # A result must not depend on ~/.keras/keras.json.
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    # Hides "Assets written to: ..." with a temporary path.
    tf.get_logger().setLevel("WARNING")
    return bool(gpus)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection, which takes a quarter of the time of imports."""
    was_enabled = gc.isenabled()
    is_first = "tensorflow" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # Excludes what was imported from all collections: each would take 0.2 s,
            # and the one at the end of the process 0.9 s. A notebook may have data that
            # must be collected later; there, everything is moved to the oldest
            # generation without being looked at.
            if is_first:
                gc.freeze()
                if hasattr(sys, "ps1"):
                    gc.unfreeze()
            gc.enable()


def _keep_freed_memory() -> None:
    """Lets glibc reuse freed blocks instead of returning them to the kernel.

    For 64 images of 224 pixels, returning the memory and getting it back takes 13 ms
    per batch instead of 2. With a single arena, threads reuse each other's memory.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 2**30)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_M_ARENA_MAX, 1)


def versions() -> dict[str, str]:
    """Returns the versions of the packages that can change a result."""
    from pipeline.runtime.environment_check import installed_version

    names = ("tensorflow", "keras", "tensorflow-datasets", "numpy", "scikit-learn")
    table = {"python": platform.python_version(), "pipeline": pipeline.__version__}
    return table | {name: installed_version(name) or "not installed" for name in names}
