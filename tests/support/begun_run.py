"""A run that has begun."""

from pipeline.runtime import run_directory


def begun(config, **changes):
    """The config of a run in the directory `mine`, which exists afterwards."""
    given = config.changed(run_directory="mine", **changes)
    with run_directory.open_run(given):
        return given
