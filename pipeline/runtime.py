"""What is true before any model exists: TensorFlow, seeds, device, precision, with reasons."""

import dataclasses
import gc
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline import config

if TYPE_CHECKING:  # contracts import TensorFlow, which this room starts
    import tensorflow as tf

    from pipeline.contracts import Decision

# Lines that TensorFlow writes to stderr on every start and that tell a user nothing.
# Everything else is passed on. Where a GPU is expected, the cuInit line is a real error: see below.
_NOISE = (
    "All log messages before absl::InitializeLog",
    "oneDNN custom operations are on",
)
_NO_GPU = ("failed call to cuInit", "Cannot dlopen some GPU libraries", "Skipping registering GPU")


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

    @property
    def replicas(self) -> int:
        """Copies of the model that share each batch."""
        return self.strategy.num_replicas_in_sync


def start(options: config.Runtime) -> Runtime:
    """Imports TensorFlow without its noise, sets the seeds, chooses devices and precision."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # informational lines off; read at import
    with _filtered_stderr():
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
    import keras

    from pipeline import strategy
    from pipeline.contracts import Decision

    tf.get_logger().setLevel("WARNING")  # "Assets written to: ..." under a name that is moved away
    # The graphs of earlier runs in this process: freed one run at a time they take 0.2 s, while
    # those of eight runs together held a ninth up for 15 s.
    gc.collect()
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    chosen, device = strategy.choose(options)
    decisions = [device]
    if options.precision == "auto":
        decisions.append(Decision("precision", "float32", "the default; ask for another by name"))
    else:
        decisions.append(Decision("precision", options.precision, "asked for"))
    xla = bool(gpus) and not options.deterministic if options.xla == "auto" else options.xla == "on"
    if xla or options.xla != "auto":
        reason = "it wins on GPUs" if options.xla == "auto" else "asked for"
        decisions.append(Decision("xla", "on" if xla else "off", reason))
    return Runtime(decisions[1].value, xla, chosen, tuple(decisions))


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

    names = ("pipeline", "tensorflow", "keras", "tensorflow-datasets", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: found(name) for name in names}}


@contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Holds back what C++ code writes to file descriptor 2, then passes on all but the noise.

    `TF_CPP_MIN_LOG_LEVEL` cannot do this: the oneDNN notice survives level 3, which hides true
    errors. A machine with an NVIDIA device node gets the lines about a missing GPU too.
    """
    if "tensorflow" in sys.modules or sys.stderr is None:
        yield
        return
    noise = _NOISE if os.path.exists("/dev/nvidiactl") else _NOISE + _NO_GPU
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if line.strip() and not any(known in line for known in noise):
                    print(line, file=sys.stderr)
