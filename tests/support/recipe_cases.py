"""How each recipe is shown to learn: by `test_recipe_accuracy.py`, or by a journey."""

DIGITS = {
    "source": {"name": "scikit_learn", "dataset": "digits"},
    "data": {"validation": 0.1},
}
_FEW_PIXELS = {"validation": 0.1, "augment": {"crop": {"padding": 1}}}
# Epochs, changes, and the least accuracy; guessing has 0.1. The recipes for CIFAR-10
# and Fashion-MNIST take few steps here, and large networks are smaller.
ON_DIGITS = {
    "cifar10_airbench": (
        6,
        {
            "data": _FEW_PIXELS,
            "model": {"width": 16},
            "train": {"batch_size": 50, "label_smoothing": 0.0},
        },
        0.8,
    ),
    "cifar10_convnet": (8, {"train": {"learning_rate": 0.01}}, 0.8),
    "cifar10_resnet18": (
        5,
        {
            "data": _FEW_PIXELS,
            "model": {"name": "convnet"},
            "train": {"batch_size": 50, "learning_rate": 0.02},
        },
        0.8,
    ),
    "cifar10_sequential": (8, {}, 0.8),
    "fashion_mnist_lenet": (
        12,
        {"train": {"optimizer": "nadam", "learning_rate": 0.001}},
        0.6,
    ),
}
# Recipe -> the test that trains it.
ELSEWHERE = {
    "boxes": "nightly/test_detection.py",
    "data": "nightly/test_pairs_with_every_command.py",
    "digits": "journeys/test_digits.py",
    "digits_generation": "journeys/test_generation.py",
    "digits_tiny": "nightly/test_recipe_accuracy.py",
    "fashion_mnist_generation": "nightly/tasks/test_generation.py",
    "generation": "nightly/tasks/test_generation.py",
    "photos": "journeys/test_photos_folder.py",
    "recordings": "nightly/test_recordings.py",
    "regression_linear": "journeys/test_table.py",
    "tables": "journeys/test_table.py",
    "texts": "journeys/test_texts.py",
    "transcripts": "journeys/test_transcripts.py",
}
