"""The files beside the versions, and the examples in SERVING.md, which run
unchanged.
"""

import re

import pytest
import yaml

from pipeline.export import text_files

VECTOR = {
    "serving_default": {
        "inputs": {"features": {"dtype": "float32", "shape": [None, 2]}},
        "outputs": {"prediction": {"dtype": "float32", "shape": [None]}},
    },
}


@pytest.fixture
def model(tmp_path):
    """A model's directory with the files of `VECTOR`."""
    path = tmp_path / "it's $first"
    path.mkdir()
    text_files.write(path, VECTOR, (8, 2, 8))
    return path


def test_batches_are_joined_up_to_the_largest_size(model):
    """As servables/tensorflow/session_bundle_config.proto of the server requires."""
    text = (model / "batching.config").read_text()
    assert re.findall(r"^allowed_batch_sizes: (\d+)$", text, re.MULTILINE) == ["2", "8"]
    assert "\nmax_batch_size { value: 8 }\n" in text
    assert "more than 8 rows" in (model / "SERVING.md").read_text()


def test_compose_and_docker_start_the_same_server(model):
    services = yaml.safe_load((model / "compose.yaml").read_text())["services"]
    assert {name: one["image"] for name, one in services.items()} == {
        "serving": text_files.IMAGE,
        "serving-gpu": f"{text_files.IMAGE}-gpu",
    }
    text = (model / "SERVING.md").read_text().replace("""'"'"'""", "'")
    (volume,) = services["serving"]["volumes"]
    assert volume["target"] == "/models/it's $$first" and volume["read_only"]
    for option in services["serving-gpu"]["command"]:
        assert option.replace("$$", "$") in text
        file = option.partition("/models/it's $$first/")[2]
        assert not file or (model / file).is_file()


def test_kserve_starts_the_same_server(model):
    """The storage has to be set: KServe's admission webhook refuses any other scheme
    than those of its storage providers.
    """
    service = yaml.safe_load((model / "inferenceservice.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    assert service["metadata"] == {"name": "it-s-first"}
    served = service["spec"]["predictor"]["model"]
    assert served["modelFormat"] == {"name": "tensorflow"}
    assert f"tensorflow/serving:{served['runtimeVersion']}" == text_files.IMAGE
    assert served["runtime"] == "kserve-tensorflow-serving"
    assert served["storageUri"].startswith("replace-me://")
    assert "/v1/models/it-s-first:predict" in (model / "SERVING.md").read_text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", "digits"),
        ("fashion_mnist_LeNet", "fashion-mnist-lenet"),
        ("2024 Größen.", "model-2024-groen"),
        ("写真", "model"),
        ("a" * 46 + "_b", "a" * 46),
        ("-_x_-", "x"),
    ],
)
def test_names_are_legal_in_kubernetes(name, expected):
    assert text_files.kubernetes_name(name) == expected


def test_edited_files_are_kept(model):
    edited, models = model / "batching.config", model / "models.config"
    edited.write_text(edited.read_text().partition("\n")[2])
    models.write_text(f"# mine\n{models.read_text()}")
    before = edited.read_text(), models.read_text()
    text_files.write(model, VECTOR, (1, 4))
    assert (edited.read_text(), models.read_text()) == before
    assert "more than 4 rows" in (model / "SERVING.md").read_text()
    assert not [path for path in model.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("name", "field", "request_", "file"),
    [
        (
            "sentence",
            {"dtype": "string", "shape": [None]},
            '"instances": ["text"]',
            "FILES",
        ),
        ("sound_bytes", {"dtype": "string", "shape": [None]}, None, "FILES"),
        (
            "grid",
            {"dtype": "float32", "shape": [None, 2, 2]},
            '"instances": [[[0.0] * 2] * 2]',
            "rows.npy",
        ),
    ],
)
def test_only_what_works_is_advised(tmp_path, name, field, request_, file):
    score = {"score": {"dtype": "float32", "shape": [None]}}
    signatures = {"serving_default": {"inputs": {name: field}, "outputs": score}}
    text_files.write(tmp_path, signatures, (1,))
    text = (tmp_path / "SERVING.md").read_text()
    assert "JPEG" not in text
    assert ("pipeline predict" in text) == (file is not None)
    assert file is None or f" {file}\n" in text
    assert ('with Client("http://localhost:8501/v1/models/' in text) == (file is None)
    assert (request_ in text) if request_ else "## Calling" not in text


def test_only_the_batch_is_called_n(tmp_path):
    waveform = {"waveform": {"dtype": "float32", "shape": [None, None]}}
    text = {"text": {"dtype": "string", "shape": [None]}}
    signatures = {"serving_default": {"inputs": waveform, "outputs": text}}
    text_files.write(tmp_path, signatures, (1,))
    row = "| `waveform` float32 [N, any] | `text` string [N] |"
    assert row in (tmp_path / "SERVING.md").read_text()


def test_predict_is_advised_for_rows_of_numbers(model):
    assert "pipeline predict" in (model / "SERVING.md").read_text()
