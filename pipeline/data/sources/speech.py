"""Recordings with transcripts: of LibriSpeech, of Kaldi, or in a text for each."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import file_search, file_types
from pipeline.data.detect import texts_of
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.seeds import stable_hash
from pipeline.data.split_names import split_of_folder
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_AUDIO = "audio"
_LIBRI = ".trans.txt"
_MIN_SPEAKERS = 10  # fewer are not kept apart: a split might be empty


class _Utterance(NamedTuple):
    file: str
    """Its path; empty if it does not exist."""
    name: str
    text: str
    speaker: str
    split: str


@register
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
    recorded = [
        utterance._replace(split=utterance.split or "train") for utterance in recorded
    ]
    if not any(utterance.split == "train" for utterance in recorded):
        recorded = [utterance._replace(split="train") for utterance in recorded]
    speakers, who = _speakers(recorded)
    recordings = pluralize(len(recorded), "recording")
    notes.append(f"{path}: {recordings} with transcripts, {who}")
    root = os.path.abspath(path)
    files: dict[str, dict[str, FileList]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for split in {utterance.split: None for utterance in recorded}:
        part = [utterance for utterance in recorded if utterance.split == split]
        paths = [utterance.file for utterance in part]
        files[split] = {_AUDIO: FileList.of(paths, root)}
        columns[split] = _columns(part, root, speakers)
    return FileSource(files, columns, None, notes=tuple(notes), group_names=speakers)


def _speakers(recorded: Sequence[_Utterance]) -> tuple[dict[str, int] | None, str]:
    """The speakers and their groups if they can be kept apart, and a note."""
    pairs = {(u.speaker, u.split) for u in recorded if u.speaker}
    speakers = {speaker: _hash(speaker) for speaker, _ in pairs}
    count = pluralize(len(speakers), "speaker")
    if not speakers:
        return None, "of unknown speakers"
    if len(speakers) < _MIN_SPEAKERS:
        return None, f"of {count}, too few to keep each in one split"
    if len(pairs) > len(speakers):
        return None, f"of {count}, some of them in several splits"
    return speakers, f"of {count}, each of them in one split"


def _columns(
    parts: Sequence[_Utterance], root: str, speakers: Mapping[str, int] | None
) -> dict[str, np.ndarray]:
    transcripts = np.empty(len(parts), object)
    transcripts[:] = [
        utterance.text.encode("utf-8", "surrogatepass") for utterance in parts
    ]
    ids = [_hash(os.path.relpath(utterance.file, root)) for utterance in parts]
    columns = {"id": np.array(ids, np.int64), "transcript": transcripts}
    if speakers is not None:
        groups = [_hash(utterance.speaker or utterance.name) for utterance in parts]
        columns["group"] = np.array(groups, np.int64)
    return columns


def _hash(text: str) -> int:
    return stable_hash(os.fsencode(text))


def _texts(path: Path) -> Iterable[_Utterance]:
    suffixes = file_types.fields()[_AUDIO]
    for folder, _, names in sorted(image_formats.walk(path)):
        recordings = {
            os.path.splitext(name)[0]: os.path.join(folder, name)
            for name in names
            if name.lower().endswith(suffixes)
        }
        above = Path(folder).relative_to(path).parts
        split = next(filter(None, map(split_of_folder, above)), "")
        for name in sorted(names):
            if name.endswith(_LIBRI):
                for key, text in _lines(Path(folder, name)).items():
                    file = os.path.abspath(recordings[key]) if key in recordings else ""
                    yield _Utterance(file, key, text, key.partition("-")[0], split)
        texts = texts_of(names)
        for stem in sorted(recordings):
            if stem in texts:
                text = " ".join(_read(Path(folder, texts[stem])).split())
                speaker = next(
                    (name for name in above if not split_of_folder(name)), ""
                )
                file = os.path.abspath(recordings[stem])
                yield _Utterance(file, texts[stem], text, speaker, split)


def _kaldi_folders(path: Path) -> list[Path]:
    inside = [Path(entry.path) for entry in os.scandir(path) if entry.is_dir()]
    folders = [
        path,
        *sorted(folder for folder in inside if split_of_folder(folder.name)),
    ]
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
                split_of_folder(folder.name) if folder != path else "",
            )


def _lines(file: Path) -> dict[str, str]:
    """The first word of each line, and the rest."""
    pairs = {}
    for line in filter(str.strip, _read(file).splitlines()):
        key, *rest = line.split(None, 1)
        pairs[key] = "".join(rest).strip()
    return pairs


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
