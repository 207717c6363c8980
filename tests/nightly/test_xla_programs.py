"""Every family trains, is tested and exported with XLA, each call as one program."""

import box_data
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from recipe_cases import DIGITS, ON_DIGITS
from recordings import wav

from pipeline.fit import fit

SHORT = {
    "runtime": {"precision": "float32", "xla": "on"},
    "export": {"batch_sizes": (1,)},
    "log": {"tensorboard": False, "bar": False},
}
RATE = 4000


def require_programs(run):
    step = run.network.step
    assert run.result["verification"]["passed"]
    assert step.not_compiled == {} and step.traces == 1
    for name in {"train", "evaluate"} & set(step.compiled):
        (program,) = step.compiled[name]._list_all_concrete_functions()
        assert program.function_def.attr["_XlaMustCompile"].b
        # A GPU keeps them in the memory of the host, where XLA cannot reach them.
        assert all(v.dtype != tf.int32 for v in program.graph.variables)


def trained(*arguments, steps=3, data=(), model=(), **options):
    sections = {"data": {"test": 0.1, **dict(data)}, "model": dict(model)}
    train = {"epochs": 1, "steps": steps, "batch_size": 8}
    return fit(*arguments, **{**SHORT, **sections, "train": train, **options})


@pytest.mark.parametrize("recipe", ON_DIGITS)
def test_recipes_for_images(workplace, recipe):
    _, changes, _ = ON_DIGITS[recipe]
    train = {**changes.get("train", {}), "epochs": 1, "steps": 3}
    run = fit(recipe, **{**DIGITS, **SHORT, **changes, "train": train})
    require_programs(run)


@pytest.mark.parametrize("model", ["linear", "mlp", "residual", "resnet", "tiny"])
def test_other_models_for_images(workplace, model):
    require_programs(trained("digits", model={"name": model}))


@pytest.mark.parametrize("model", ["bag", "recurrent", "text_cnn", "text_transformer"])
def test_texts(workplace, model):
    words = np.array(["good", "bad", "film", "plot"])
    texts = np.random.default_rng(0).choice(words, (40, 6))
    rows = [f"{' '.join(text)},{'ab'[i % 2]}" for i, text in enumerate(texts)]
    (workplace / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    require_programs(trained("reviews.csv", model={"name": model}))


def tone(pitch, generator):
    steps = np.arange(RATE // 4) / RATE
    noise = generator.normal(size=len(steps)) * 100
    return wav(8000 * np.sin(2 * np.pi * pitch * steps) + noise, RATE)


def test_recordings(workplace):
    generator = np.random.default_rng(0)
    for name, pitch in {"high": 1500, "low": 300}.items():
        (workplace / "tones" / name).mkdir(parents=True)
        for number in range(16):
            path = workplace / f"tones/{name}/{number}.wav"
            path.write_bytes(tone(pitch, generator))
    # A tenth, the default, is none of these 32: each is drawn by the hash of its name.
    require_programs(trained("tones", data={"validation": 0.2}))


def test_transcripts(workplace):
    (workplace / "speech/wavs").mkdir(parents=True)
    generator = np.random.default_rng(0)
    rows = ["path,transcript"]
    for number in range(32):
        path = workplace / f"speech/wavs/{number}.wav"
        path.write_bytes(tone((400, 800)[number % 2], generator))
        rows.append(f"wavs/{number}.wav,{'ab'[number % 2]}")
    (workplace / "speech/metadata.csv").write_text("\n".join(rows))
    small = {"options": {"widths": (8, 8), "units": 16}}
    require_programs(trained("speech", model=small))


def test_boxes(workplace):
    size = {"size": (64, 64), "least": 24, "largest": 36}
    made = box_data.pictures(32, seed=1, most=2, **size)
    box_data.write_yolo(workplace / "shapes", made)
    small = {"options": {"widths": (8, 16), "pyramid_channels": 16}}
    run = trained("shapes", data={"image_size": (64, 64)}, model=small)
    require_programs(run)


def test_masks(workplace):
    generator = np.random.default_rng(0)
    (workplace / "files").mkdir()
    rows = ["image,mask"]
    for number in range(32):
        mask = generator.integers(0, 2, (16, 24)).astype(np.uint8)
        pixels = np.repeat(200 * mask[..., None], 3, axis=2)
        Image.fromarray(pixels).save(workplace / f"files/{number}.png")
        Image.fromarray(mask).save(workplace / f"files/{number}_mask.png")
        rows.append(f"files/{number}.png,files/{number}_mask.png")
    (workplace / "scans.csv").write_text("\n".join(rows))
    small = {"name": "unet", "options": {"widths": (4, 8)}}
    named = {"source": {"class_names": ["sky", "tree"]}}
    run = trained("scans.csv", data={"image_size": (16, 24)}, model=small, **named)
    require_programs(run)


def test_photos(workplace):
    generator = np.random.default_rng(0)
    for name in ("ants", "bees"):
        (workplace / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (40, 50, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(workplace / f"photos/{name}/{number}.jpg")
    require_programs(trained("photos", data={"image_size": (32, 32)}))


def test_numbers_and_generation(workplace):
    require_programs(trained("regression_linear"))
    small = {"options": {"widths": (8,), "heads": 1}}
    task = {"name": "generation", "options": {"samples": 12, "steps": 4}}
    limited = {"limit": 100, "augment": {}, "test": 0.1}
    run = trained("digits_generation", data=limited, model=small, task=task)
    require_programs(run)
