"""The options of a short run."""


def options(**callbacks):
    """Three epochs of a few steps with these callbacks, without an export."""
    train = {"epochs": 3, "batch_size": 16, "steps_per_execution": 2}
    return {
        "data": {"limit": 100},
        "model": {"name": "tiny"},
        "export": {"enabled": False},
        "log": {"progress": False, "tensorboard": False},
        "train": {**train, "callbacks": callbacks},
    }
