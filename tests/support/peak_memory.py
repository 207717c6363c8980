"""The memory that an action takes, on Linux."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_growth(action) -> float:
    """Calls `action`; returns by how many MB its peak exceeds the memory before."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _megabytes("VmRSS")
    action()
    return _megabytes("VmHWM") - before


def _megabytes(name: str) -> float:
    (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) / 1000
