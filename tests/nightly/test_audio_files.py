"""Recordings that people have: read, or refused in one line that names the file; and
how they are divided.
"""

import re

import numpy as np
from recordings import RATE, compressed, wav, write

from pipeline.config import command_line
from pipeline.data import dataset
from pipeline.report import dataset_report
from pipeline.utils import html_pages

RANDOM = np.random.default_rng(0)


def load(*words):
    return dataset.load(command_line.configure([*map(str, words)]))


def test_recordings_of_a_speaker_stay_in_one_split(tmp_path):
    speakers = ("ana", "ben", "cem", "dora", "eve", "finn")
    for word in ("no", "yes"):
        names = [f"{word}_{speaker}_{n}.wav" for speaker in speakers for n in range(3)]
        write(
            tmp_path / word, {name: wav(RANDOM.normal(size=400) * 99) for name in names}
        )
    group = ("--source.group", r"_([a-z]+)_", "--data.test-groups", "eve")
    data = load(tmp_path, *group)
    heard = {}
    for name, split in data.splits.items():
        files = map(data.source.location, split.column("id").tolist())
        heard[name] = {re.search(r"_([a-z]+)_", file)[1] for file in files}
    assert heard["test"] == {"eve"} and sum(map(len, heard.values())) == 6
    # Also in a dry run, which shows what it has learned, but not notes about counts.
    shown = {decision.name for decision in load(tmp_path, "--dry-run").decisions}
    assert {"rate", "length"} <= shown and "note" not in shown
    # The page of `inspect` plays recordings beside their spectrograms.
    (section,) = dataset_report.pictures(data, command_line.configure([str(tmp_path)]))
    html = html_pages.page("title", [section])
    assert html.count("<audio") == html.count("<img") == len(section.cards) > 1
    assert all(f"<small>{name}</small>" in html for name, _ in section.cards)


def test_common_voice(tmp_path):
    clips = {f"common_voice_en_{number}.mp3": compressed("MP3") for number in range(30)}
    write(tmp_path / "clips", clips)
    lines = ["client_id\tpath\tsentence\tup_votes\tage\tgender\taccents\tlocale"]
    for number, name in enumerate(clips):
        lines.append(f"c{number % 5}\t{name}\tHello, world!\t2\t\tmale\t\ten")
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    data = load(tmp_path / "train.tsv", "--source.group", "client_id")
    assert data.task.metadata["rate"] == RATE
    tokens = data.splits["train"].column("transcript")[0]
    assert data.task.target.text_of(tokens) == "hello, world!"
    counts = [len(split.column("id")) for split in data.splits.values()]
    assert sum(counts) == 30 and set(counts) <= {6, 12, 18}
