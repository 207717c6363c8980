"""Finds the images of annotations."""

import os
from pathlib import Path

from pipeline.data.file_search import FileIndex, with_slashes
from pipeline.utils import image_formats

_FOLDERS = ("images", "JPEGImages")
_ANNOTATIONS = ("annotations", "labels", "xmls")
"""Lower-case names of folders of annotations, whose images are beside them."""


class ImageSearch:
    """Finds images by what annotations call them.

    A name is searched relative to the file of annotations, to the folder above it and
    to `root`; in each of them also in `images`, `JPEGImages` and the folder of the
    split. Then an image of another suffix is searched there, and at last an image below
    `root` by the last parts of its path. Upper and lower case do not matter.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)
        self._places: dict[tuple[str, str], list[str]] = {}
        self._listings: dict[str, dict[str, list[str]]] = {}
        self._index: FileIndex | None = None

    def find(self, name: str, file: Path, word: str = "") -> str:
        """The path of an image; empty if there is none, or several are as near.

        Args:
            name: What the annotations call it, with or without directories and suffix.
            file: The file of annotations.
            word: The word for the split in the name of the file, such as `val`.
        """
        name = with_slashes(name)
        if os.path.isabs(name) and os.path.isfile(name):
            return name
        folder, base = os.path.split(name)
        stem = os.path.splitext(base)[0] if _is_image(base) else base
        places = self._find_places(os.path.dirname(os.path.abspath(file)), word)
        for key in dict.fromkeys((base.lower(), stem.lower())):
            for place in places:
                paths = self._list(os.path.normpath(os.path.join(place, folder)))
                found = paths.get(key, ())
                if len(found) == 1:
                    return found[0]
        if self._index is None:
            self._index = FileIndex(self._root, image_formats.SUFFIXES)
        return self._index.search(name) or self._index.search(stem)

    def _find_places(self, folder: str, word: str) -> list[str]:
        """The folders in which the images of annotations in a folder may be."""
        if (folder, word) not in self._places:
            above = os.path.dirname(folder)
            bases = [folder, self._root]
            is_named = os.path.basename(folder).lower() in _ANNOTATIONS
            if is_named or os.path.commonpath([above, self._root]) == self._root:
                bases.insert(1, above)
            places = []
            for base in dict.fromkeys(bases):
                inside = [os.path.join(base, name) for name in _FOLDERS]
                if word:
                    places += _beginning_with(inside[0], word)
                    places += _beginning_with(base, word)
                places += [base, *inside]
            self._places[folder, word] = places
        return self._places[folder, word]

    def _list(self, folder: str) -> dict[str, list[str]]:
        """Lower-case names of images, with and without suffix, and their paths."""
        if folder not in self._listings:
            paths: dict[str, list[str]] = {}
            names = os.listdir(folder) if os.path.isdir(folder) else []
            for name in filter(_is_image, names):
                path = os.path.join(folder, name)
                for key in {name.lower(), os.path.splitext(name)[0].lower()}:
                    paths.setdefault(key, []).append(path)
            self._listings[folder] = paths
        return self._listings[folder]


def _is_image(name: str) -> bool:
    return name.lower().endswith(image_formats.SUFFIXES)


def _beginning_with(folder: str, word: str) -> list[str]:
    """The folders such as `val2017` in a folder, sorted."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.is_dir() and entry.name.lower().startswith(word)
        )
