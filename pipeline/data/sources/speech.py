"""Recordings with transcripts: of LibriSpeech, of Kaldi, or in a text for each."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from pipeline.contracts import Source
from pipeline.data import file_search, file_types
from pipeline.data.box_files import split_name
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_AUDIO = "audio"
_LIBRI = ".trans.txt"
_TEXTS = (".txt", ".lab")  # for one recording each
_MIN_SPEAKERS = 10  # fewer are not kept apart: a split might be empty
_SPLITS = {"dev": "validation"}  # and the usual names


class _Utterance(NamedTuple):
    file: str
    """Its path; empty if it does not exist."""
    name: str
    text: str
    speaker: str
    split: str


def speech(*, path: Annotated[Path, "directory"]) -> Source:
    """Recordings with transcripts, of LibriSpeech or Kaldi, or in a text for each.

    Of LibriSpeech, the `.trans.txt` files beside the recordings, whose names begin with
    the speaker; of Kaldi, `text` and `wav.scp`, and `utt2spk` if it exists, in the
    directory or in those of the splits; otherwise `a.txt` or `a.lab` beside `a.wav`, in
    a directory for each speaker.

    Directories whose names begin with train, dev (valid, val) or test are these splits
    if there is one of train. Recordings of a speaker stay in one split if there are at
    least 10 speakers. Utterances without a recording are left out, with a note. The id
    of an example is a hash of its path below the directory.

    Args:
        path: The directory.

    Raises:
        UsageError: No recording has a transcript, or Kaldi's are parts of longer ones.
    """
    folders = [folder for folder in _kaldi_folders(path) if (folder / "text").is_file()]
    utterances = [*_kaldi(path, folders)] if folders else [*_texts(path)]
    recorded = [utterance for utterance in utterances if utterance.file]
    missing = next((utterance for utterance in utterances if not utterance.file), None)
    notes = []
    if missing:
        count = pluralize(len(utterances) - len(recorded), "utterance")
        name = missing.name
        notes.append(f"{path}: no recording of {count}, such as {name}; left out")
    if not recorded:
        raise UsageError("; ".join(notes) or f"{path} has no transcripts")
    has_train = any(utterance.split == "train" for utterance in recorded)
    by_split: dict[str, list[_Utterance]] = {}
    for utterance in recorded:
        by_split.setdefault(utterance.split if has_train else "train", []).append(
            utterance
        )
    root = os.path.abspath(path)
    files: dict[str, dict[str, FileList]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for split, parts in by_split.items():
        files[split] = {
            _AUDIO: FileList.of([utterance.file for utterance in parts], root)
        }
        columns[split] = _columns(parts, root)
    speakers = {
        utterance.speaker: _hash(utterance.speaker)
        for utterance in recorded
        if utterance.speaker
    }
    count = pluralize(len(speakers), "speaker")
    how = "each of them in one split"
    if len(speakers) < _MIN_SPEAKERS:
        how = f"in any split, because there are fewer than {_MIN_SPEAKERS}"
        speakers = {}
        for values in columns.values():
            del values["group"]
    recordings = pluralize(len(recorded), "recording")
    who = f"of {count}, {how}" if count[0] != "0" else "of unknown speakers"
    notes.append(f"{path}: {recordings} with transcripts, {who}")
    return FileSource(
        files, columns, None, notes=tuple(notes), group_names=speakers or None
    )


def _columns(parts: Sequence[_Utterance], root: str) -> dict[str, np.ndarray]:
    transcripts = np.empty(len(parts), object)
    transcripts[:] = [
        utterance.text.encode("utf-8", "surrogatepass") for utterance in parts
    ]
    ids = [_hash(os.path.relpath(utterance.file, root)) for utterance in parts]
    return {
        "id": np.array(ids, np.int64),
        "transcript": transcripts,
        "group": np.array(
            [_hash(utterance.speaker or utterance.name) for utterance in parts],
            np.int64,
        ),
    }


def _hash(text: str) -> int:
    return stable_hash(os.fsencode(text))


def _split(folder: str) -> str:
    """The split of a directory such as `dev-clean`; empty for any other."""
    word = folder.lower().replace("_", "-").partition("-")[0]
    word = _SPLITS.get(word, word)
    split = split_name(word)
    return split if split != "train" or word == "train" else ""


def _texts(path: Path) -> Iterable[_Utterance]:
    suffixes = file_types.fields()[_AUDIO]
    for folder, _, names in sorted(image_formats.walk(path)):
        recordings = {
            os.path.splitext(name)[0]: os.path.join(folder, name)
            for name in names
            if name.lower().endswith(suffixes)
        }
        above = Path(folder).relative_to(path).parts
        split = next(filter(None, map(_split, above)), "")
        for name in sorted(names):
            if name.endswith(_LIBRI):
                for key, text in _lines(Path(folder, name)).items():
                    file = os.path.abspath(recordings[key]) if key in recordings else ""
                    yield _Utterance(file, key, text, key.partition("-")[0], split)
            stem, suffix = os.path.splitext(name)
            if suffix in _TEXTS and stem in recordings:
                text = " ".join(_read(Path(folder, name)).split())
                speaker = above[-1] if above else ""
                file = os.path.abspath(recordings[stem])
                yield _Utterance(file, name, text, speaker, split)


def _kaldi_folders(path: Path) -> list[Path]:
    inside = [Path(entry.path) for entry in os.scandir(path) if entry.is_dir()]
    folders = [path, *sorted(folder for folder in inside if _split(folder.name))]
    return [folder for folder in folders if (folder / "wav.scp").is_file()]


def _kaldi(path: Path, folders: Iterable[Path]) -> Iterable[_Utterance]:
    suffixes = file_types.fields()[_AUDIO]
    for folder in folders:
        if (folder / "segments").is_file():
            raise UsageError(
                f"{folder / 'segments'}: utterances that are parts of a recording are"
                " not read; cut the recordings, one file for each utterance"
            )
        places = _lines(folder / "wav.scp")
        for key, place in places.items():  # such as `flac -c -d -s a.flac |`
            if place.endswith("|"):
                words = [word for word in place.split() if word.endswith(suffixes)]
                if len(words) != 1:
                    raise UsageError(
                        f"{folder / 'wav.scp'}: {key} is a command, {place[:80]!r};"
                        " name a recording in its place"
                    )
                places[key] = words[0]
        types = {_AUDIO: suffixes}
        names = [*places.values()]
        paths, _ = file_search.find_files(names, folder, folder, types)
        if not any(paths):
            paths, _ = file_search.find_files(names, path, folder, types)
        files = dict(zip(places, paths, strict=True))
        speakers = {}
        if (folder / "utt2spk").is_file():
            speakers = _lines(folder / "utt2spk")
        for key, text in _lines(folder / "text").items():
            yield _Utterance(
                files.get(key, ""),
                key,
                text,
                speakers.get(key, ""),
                _split(folder.name) if folder != path else "",
            )


def _lines(file: Path) -> dict[str, str]:
    """The first word of each line, and the rest."""
    pairs = {}
    for line in _read(file).splitlines():
        key, _, rest = line.strip().partition(" ")
        if key:
            pairs[key] = rest.strip()
    return pairs


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
