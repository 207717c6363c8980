"""Which GPUs, and how much of their memory, by TensorFlow's own rules for simulated
GPUs.
"""

import os
import stat
import types

import pytest
from tensorflow.python.eager import context
from tensorflow.python.framework import config as tensorflow_config

from pipeline.config.config import RuntimeConfig
from pipeline.runtime import devices, environment, gpu_info
from pipeline.runtime.cluster import Cluster
from pipeline.utils.errors import UsageError

GIB = 2**30


class Machine:
    """A separate TensorFlow context with simulated GPUs, which never computes."""

    def __init__(self, count: int) -> None:
        self.gpus = [
            context.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU")
            for number in range(count)
        ]
        cpu = context.PhysicalDevice("/physical_device:CPU:0", "CPU")
        self.context = context.Context()
        self.context._physical_devices = [cpu, *self.gpus]
        self.context._visible_device_list = [cpu, *self.gpus]
        self.context._pluggable_devices = []
        self.context._memory_growth_map = dict.fromkeys(self.gpus)
        self.context._initialize_physical_devices = lambda: None

    def begin(self) -> None:
        """From here on TensorFlow lets nothing be changed."""
        self.context._context_handle = object()

    @property
    def options(self) -> tuple:
        """What TensorFlow would pass to its GPU allocator: (numbers, growth, limits in
        MiB).
        """
        options = self.context._compute_gpu_options()
        limits = [list(d.memory_limit_mb) for d in options.experimental.virtual_devices]
        return options.visible_device_list, options.allow_growth, limits


@pytest.fixture
def machine(monkeypatch):
    """Makes a machine with some GPUs, of which nvidia-smi says how much (free, total)
    GiB.
    """

    def make(count, memory=()):
        made = Machine(count)
        known = [gpu_info.Memory(f * GIB, t * GIB) for f, t in memory]
        monkeypatch.setattr(gpu_info, "memory", lambda _: known)
        stub = types.SimpleNamespace(context=lambda: made.context)
        monkeypatch.setattr(tensorflow_config, "context", stub)
        return made

    return make


BUSY = ((3, 24), (20, 24), (9, 24), (22, 24))
GROWING = True


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ("0,1,2,3", GROWING, [])),
        ({"devices": "cpu"}, ("", False, [])),
        ({"replicas": 1}, ("3", GROWING, [])),
        ({"devices": "0,2", "replicas": 1}, ("2", GROWING, [])),
        ({"gpu_memory": "8GiB"}, ("0,1,2,3", False, [[8192]] * 4)),
        ({"gpu_memory": "80%"}, ("0,1,2,3", False, [[19660]] * 4)),
    ],
)
def test_tensorflow_gets_the_requested_limits(machine, options, wanted):
    made = machine(4, BUSY)
    devices.claim(RuntimeConfig(**options))
    assert made.options == wanted


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {"require_gpu": True}, "--runtime.require-gpu: TensorFlow sees no GPU"),
        (4, {"devices": "1,4"}, "--runtime.devices 1,4: TensorFlow sees 4 GPUs"),
        (4, {"replicas": 5}, "--runtime.replicas 5: TensorFlow sees 4 GPUs"),
    ],
)
def test_unavailable_devices_are_refused_in_one_line(machine, count, options, message):
    machine(count, BUSY[:count])
    with pytest.raises(UsageError) as caught:
        devices.claim(RuntimeConfig(**options))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "gib"), [({}, 3), ({"gpu_memory": "2GiB"}, 2), ({"devices": "cpu"}, 0)]
)
def test_the_memory_of_the_run_is_what_is_free_or_allowed(machine, options, gib):
    machine(4, BUSY)
    devices.claim(RuntimeConfig(**options))
    assert devices.memory() == gib * GIB
    machine(4)
    assert devices.memory() == 0, "nobody can tell"


def test_without_nvidia_smi_a_share_is_refused_and_the_first_are_taken(machine):
    with pytest.raises(UsageError, match="nvidia-smi does not report the memory"):
        machine(2) and devices.claim(RuntimeConfig(gpu_memory="80%"))
    made = machine(2)
    devices.claim(RuntimeConfig(replicas=1))
    assert made.options == ("0", True, [])


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({}, {"devices": "0"}, "--runtime.devices 0: .*already uses 4 GPUs"),
        (
            {"gpu_memory": "2GiB"},
            {"gpu_memory": "1GiB"},
            "--runtime.gpu-memory 1GiB: this process",
        ),
        ({}, {"replicas": 1}, ""),  # all are in use already, and one of them will do
        ({"gpu_memory": "2GiB"}, {}, ""),  # a limit and growth exclude each other
    ],
)
def test_a_second_run_of_a_process_gets_the_same_devices_or_is_refused(
    machine, first, then, message
):
    made = machine(4, BUSY)
    devices.claim(RuntimeConfig(**first))
    before = made.options
    made.begin()
    if message:
        with pytest.raises(UsageError, match=f"{message}.*restart the kernel"):
            devices.claim(RuntimeConfig(**then))
    else:
        devices.claim(RuntimeConfig(**then))
    assert made.options == before


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """An `nvidia-smi` that knows three GPUs."""

    def write(text):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    write("1024, 24576, GPU-a\n2048, 24576, GPU-b\n4096, 81920, GPU-c")
    return write


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [(None, [1, 2, 4]), ("2, 0", [4, 1]), ("1,-1", []), ("MIG-GPU-c/1/0", [])],
)
def test_free_memory_is_reported_in_the_order_of_cuda(
    driver, monkeypatch, visible, wanted
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.free // GIB for gpu in gpu_info.memory(len(wanted))] == wanted


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c"]),
        ("2, 0", ["GPU-c", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("7", []),
    ],
)
def test_gpus_are_identified(driver, monkeypatch, visible, names):
    """Two tasks of a machine with one GPU have the same identifier, even if control
    groups number the GPUs of each task from 0.
    """
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_info.identifiers(len(names)) == names


def test_a_process_joins_several_workers_only_once(monkeypatch):
    """TensorFlow's server still uses the port of this worker."""
    state = devices.context.context()
    monkeypatch.setattr(state, "_collective_ops_server_def", object())
    several = Cluster(("127.0.0.1:1", "127.0.0.1:2"), 0)
    with pytest.raises(UsageError, match="TF_CONFIG: .* start a new process"):
        devices.choose(RuntimeConfig(), several)


def test_an_order_that_is_not_known_is_not_guessed(driver, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert gpu_info.memory(3) == []
    driver("Failed to initialize NVML: Driver/library version mismatch")
    assert gpu_info.memory(3) == []


@pytest.mark.parametrize("options", [{"require_gpu": True}, {"devices": "0"}])
def test_a_hidden_gpu_is_refused(monkeypatch, options):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (flag,) = options
    with pytest.raises(
        UsageError, match=f"--runtime.{flag.replace('_', '-')}.*hides all of them"
    ):
        environment.start(RuntimeConfig(**options))
