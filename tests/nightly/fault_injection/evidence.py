"""What a run left on the disk, as plain values that can be compared: a command of the drill.

`python -m tests.nightly.fault_injection.evidence RUN [OTHER]` writes JSON. Figures of the clock are left out, as they
differ between two runs that are otherwise alike.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files
from pipeline.utils.errors import UsageError, run_command

_CLOCK = ("seconds", "examples_per_second", "elapsed")


def of(run: RunDirectory) -> dict[str, Any]:
    """Sums of weights and all other variables, state, log, scalars, result; what is left over.

    Raises UsageError if there is no checkpoint.
    """
    path = newest(run)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return {
        "checkpoints": sorted(p.name for p in run.checkpoints.glob("step-*")),
        "variables": {name: _sum(value) for name, value in variables(path).items()},
        "state": _timeless(manifest["state"]),
        "log": [_timeless(json.loads(line)) for line in _lines(run.log)],
        "scalars": scalars(run.tensorboard),
        "result": _result(run.result),
        "finite": all(_is_finite(value) for value in variables(path).values()),
        "bad steps": [json.loads(line) for line in _lines(run.path / "bad_steps.jsonl")],
        "train": np.load(run.splits, allow_pickle=False)["train"].tolist(),
        "left over": sorted(_left_over(run)),
    }


def newest(run: RunDirectory) -> Path:
    """The checkpoint of the highest step."""
    found = sorted(run.checkpoints.glob("step-*"))
    if not found:
        raise UsageError(f"{run} has no checkpoint")
    return found[-1]


def variables(checkpoint: Path) -> dict[str, np.ndarray]:
    """Everything in a TensorFlow checkpoint but the graph of its objects."""
    (index,) = checkpoint.glob("*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    names = sorted(reader.get_variable_to_shape_map())
    return {n: reader.get_tensor(n) for n in names if n != "_CHECKPOINTABLE_OBJECT_GRAPH"}


def scalars(folder: Path) -> list[list[Any]]:
    """[folder, tag, step, value] of all scalars that TensorBoard would show, in the order written.

    A step that was written twice is there twice.
    """
    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if not value.tag.endswith(_CLOCK):
                    found.append([path.parent.name, value.tag, event.step, _number(value)])
    return sorted(found)


def _number(value: Any) -> float:
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    return float(tf.make_ndarray(value.tensor))


def apart(one: Path, other: Path) -> float:
    """Largest distance of a floating-point variable in two checkpoints, as a share of its norm."""
    ours, theirs = variables(one), variables(other)
    return max(
        float(np.linalg.norm(ours[n] - theirs[n]) / (np.linalg.norm(ours[n]) + 1e-12))
        for n in ours
        if np.issubdtype(ours[n].dtype, np.floating)
    )


def _sum(value: Any) -> str:
    value = np.asarray(value)
    digest = hashlib.sha256(repr((value.dtype.str, value.shape)).encode())
    digest.update(np.ascontiguousarray(value))
    return digest.hexdigest()


def _is_finite(value: Any) -> bool:
    value = np.asarray(value)
    return not np.issubdtype(value.dtype, np.floating) or bool(np.isfinite(value).all())


def _timeless(values: Any) -> Any:
    if isinstance(values, dict):
        return {n: _timeless(v) for n, v in values.items() if not n.endswith(_CLOCK)}
    return [_timeless(value) for value in values] if isinstance(values, list) else values


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _result(path: Path) -> dict[str, Any]:
    """Metrics of the run; not whether and where it was exported, in which runs may differ."""
    if not path.exists():
        return {}
    values = _timeless(json.loads(path.read_text(encoding="utf-8")))
    return {n: v for n, v in values.items() if n not in ("config_digest", "export", "verification")}


def _left_over(run: RunDirectory) -> list[str]:
    """Hidden files and folders of writes that were never finished, of the run and its models."""
    models = run.path.parent / "saved_models"
    found = [*run.path.rglob(".*"), *(models.rglob(".*") if models.exists() else ())]
    return [path.name for path in found if path.name not in (".lock", ".published")]


def main(arguments: list[str]) -> int:
    """Prints the evidence of a run; with another run, also how far apart their variables are."""
    runs = [RunDirectory(Path(argument)) for argument in arguments]
    found = of(runs[0])
    if len(runs) > 1:
        found["apart"] = apart(newest(runs[0]), newest(runs[1]))
    print(json.dumps(files.strict(found)))
    return 0


if __name__ == "__main__":
    run_command(main)
