"""The recipe `regression_linear` and its data, the table `diabetes`."""

from pipeline.config import registry
from pipeline.data import batching, dataset, splits
from pipeline.fit import fit

RECIPE = registry.load("recipes", "regression_linear")()
make = registry.load("tasks", "regression")


def run(folder):
    """A run of the recipe, with its export."""
    log = {"progress": False, "tensorboard": False}
    export = {"directory": folder / "saved_models"}
    return fit(
        "regression_linear", log=log, export=export, run_directory=folder / "run"
    )


def loaded(source, settings=RECIPE):
    """The task with all its metadata, and the splits."""
    included = splits.included(source)
    parts, _ = splits.divide(included, settings.data)
    metadata, _ = dataset.learn(make(source.info), parts["train"], None, settings)
    return make(metadata), batching.load(included, parts, make(metadata), settings)[0]


def diabetes():
    """The task and the splits of the table."""
    return loaded(registry.load("sources", "scikit_learn")(dataset="diabetes"))
