"""The export of a run: its predictions, its files, and what remains of an export that
fails.
"""

import pytest
import tensorflow as tf
from processes import run_module
from tensorflow.core.protobuf import saved_model_pb2

from pipeline.export import text_files
from pipeline.export.savedmodel import write
from pipeline.fit import fit
from pipeline.serving import version_manifest


def types_of_convolutions(version):
    model = saved_model_pb2.SavedModel.FromString(
        (version / "saved_model.pb").read_bytes()
    )
    functions = model.meta_graphs[0].graph_def.library.function
    return {n.attr["T"].type for f in functions for n in f.node_def if n.op == "Conv2D"}


@pytest.mark.parametrize(("precision", "most"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_an_export_in_16_bits_is_close_and_answers_in_float32(
    digits_run, tmp_path, precision, most
):
    config = digits_run.config.changed(
        export={"directory": tmp_path, "precision": precision}
    )
    split = digits_run.splits["test"]
    about = write(
        tmp_path,
        digits_run.network,
        digits_run.task,
        config,
        split,
        metrics={},
        trained={},
    )
    assert about["precision"] == precision and about["trained_precision"] == "float32"
    assert 0 < about["difference"]["probabilities"] < most and about["compared"] == 64
    assert types_of_convolutions(tmp_path) == {tf.as_dtype(precision).as_datatype_enum}
    outputs = (
        tf.saved_model.load(tmp_path).signatures["serving_default"].structured_outputs
    )
    assert {value.dtype for value in outputs.values()} == {
        tf.float32,
        tf.int32,
        tf.string,
    }


@pytest.mark.long
def test_two_processes_export_the_same_bytes(tmp_path):
    """They do not depend on addresses in memory and the hashes of strings."""
    words = ["--model.name", "sequential", "--data.limit", "300", "--train.epochs", "1"]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        process = run_module(
            "pipeline.fit", "digits", *words, cwd=tmp_path / name, fresh=True
        )
        assert process.returncode == 0, process.stderr
    one, other = (
        tmp_path / name / "saved_models/digits/1" for name in ("one", "other")
    )
    names = [
        "saved_model.pb",
        *(f"variables/{p.name}" for p in (one / "variables").iterdir()),
    ]
    assert len(names) == 3
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_run_in_mixed_precision_is_exported_in_float32(workplace, capsys):
    changes = {
        "model": {"name": "tiny"},
        "data": {"limit": 600},
        "train": {"epochs": 1, "batch_size": 16},
        "runtime": {"precision": "mixed_bfloat16"},
        "run_directory": "mine",
        "log": {"tensorboard": False},
    }
    first = fit("digits", **changes)
    shown = capsys.readouterr().out
    assert (
        "float32 in the export, mixed_bfloat16 in training; compared on 64 examples"
        in shown
    )
    about = version_manifest.properties(first.export)
    assert types_of_convolutions(first.export) == {tf.float32.as_datatype_enum}
    assert (
        about["trained_precision"] == "mixed_bfloat16"
        and about["precision"] == "float32"
    )
    assert 0 < about["difference"]["probabilities"] < 0.05, "from the trained model"
    # The manifest has the metrics of the export, the run those of the trained model.
    assert about["metrics"]["loss"] != first.test["loss"]
    assert about["metrics"]["loss"] == pytest.approx(first.test["loss"], rel=0.02)
    assert f"as served  test loss {about['metrics']['loss']:.4f}" in shown
    card = (first.export / text_files.MODEL_CARD).read_text()
    assert "The test split was evaluated with this version, in float32; " in card
