"""What may lie where models are exported to: a folder of something else is not written into."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.utils import files
from pipeline.utils.errors import UsageError

# Files that may lie there before any version does: configuration of TensorFlow Serving and of its
# containers, and words on them.
_SERVER_FILES = {".config", ".yaml", ".yml", ".md"}


def check(directory: Path, model: Path) -> None:
    """Raises UsageError where one of the folders is there, and no such folder.

    Beside versions there may be all that a server passes by, as the pictures are that it is asked
    about; what has a number for a name must be a version.

    Args:
        directory: Of all models.
        model: Of the versions of this one.
    """
    found = list(directory.glob("[!.]*"))
    names = [p.name for p in found if p.is_file() and p.suffix not in _SERVER_FILES]
    if names and not any(_versions(p.glob("*")) for p in found if p.is_dir()):
        raise UsageError(
            f"--export.directory: {directory} is no folder of models: it holds {min(names)!r}; "
            "choose another"
        )
    found = sorted(model.glob("[!.]*"))
    versions = _versions(found)
    for path in found:
        expected = path.is_file() and path.suffix in _SERVER_FILES
        if path in versions or expected or (versions and not files.is_version(path.name)):
            continue
        raise UsageError(
            f"{model} holds {path.name!r}, which is no exported version; move it away, or choose "
            "another --export.directory or --export.name"
        )


def _versions(found: Iterable[Path]) -> list[Path]:
    return [p for p in found if files.is_version(p.name) and (p / "saved_model.pb").is_file()]
