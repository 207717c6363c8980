"""TFRecord files: records by number, and damage named by file and record."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline import shards as shards_command
from pipeline.data import shards
from pipeline.data.sources import _record_files
from pipeline.utils.errors import UsageError


def texts(shard):
    return [b"%d %d " % (shard, i) + bytes(range(i % 200)) for i in range(11 + shard)]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"train.tfrecord-{i:05}-of-00003" for i in range(3)]
    for shard, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for text in texts(shard):
                writer.write(text)
    return paths


def damage(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_every_record_is_read_by_its_number_in_any_order(files):
    records = _record_files.index(files)
    wanted = [text for shard in range(3) for text in texts(shard)]
    order = np.random.default_rng(0).permutation(len(records))
    assert sorted(order) == list(range(36))
    read = tf.data.Dataset.from_tensor_slices(order).map(records.read, num_parallel_calls=2)
    assert [r.numpy() for r in read] == [wanted[i] for i in order]
    assert records.location(12) == "record 1 of train.tfrecord-00001-of-00003"


def test_a_damaged_record_is_named(files):
    records = _record_files.index(files)
    damage(files[1], int(records.offsets[11 + 4]) + 12)
    read = tf.data.Dataset.range(15, 16).map(records.read)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(read))
    said = caught.value.message.partition("\n")[0]
    assert f"damaged record in] [{files[1]}] [number] [4]" in said
    assert next(iter(tf.data.Dataset.range(16, 17).map(records.read))) == texts(1)[5]


def test_a_damaged_length_is_named(files):
    damage(files[2], int(_record_files.index(files).offsets[-1]))
    with pytest.raises(UsageError, match=r"00002-of-00003.*record 12"):
        _record_files.index(files)


@pytest.mark.parametrize("left", [-1, -20])
def test_a_truncated_file_is_named_with_its_record(files, left):
    files[0].write_bytes(files[0].read_bytes()[:left])
    with pytest.raises(UsageError, match="00000-of-00003 is cut off inside record 10;"):
        _record_files.index(files)


def test_a_few_bytes_of_the_next_record_are_a_truncation(files):
    files[0].write_bytes(files[0].read_bytes() + b"\0\0\0")
    with pytest.raises(UsageError, match="is cut off inside record 11;"):
        _record_files.index(files)


def test_a_missing_shard_is_named(files):
    with pytest.raises(UsageError, match=r"the shard train\.tfrecord-00001-of-00003 is missing"):
        shards.records([files[0], files[2]])


@pytest.mark.parametrize("content", [b"<html>" * 9, b"\x1f\x8b" + bytes(99), b"\xff" * 50])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.tfrecord is no TFRecord file"):
        _record_files.index([path])


def test_a_manifest_finds_a_file_cut_at_a_record_border(files, tmp_path):
    said = shards.manifest(tmp_path)
    assert [entry["examples"] for entry in said.values()] == [11, 12, 13]
    (tmp_path / "shards.json").write_text(json.dumps(said))
    records = shards.records(files)
    files[1].write_bytes(files[1].read_bytes()[: int(records.offsets[11 + 7])])
    with pytest.raises(UsageError, match="00001-of-00003 has 7 examples; shards.json lists 12"):
        shards.records(files)


def test_a_manifest_finds_other_bytes_and_missing_files(files, tmp_path):
    (tmp_path / "shards.json").write_text(json.dumps(shards.manifest(tmp_path)))
    damage(files[2], 14)
    with pytest.raises(UsageError, match="00002-of-00003 does not match the sha256"):
        shards.records(files)
    (tmp_path / "shards.json").write_text('{"x.tfrecord": {"examples": 1, "sha256": ""}}')
    with pytest.raises(UsageError, match="x.tfrecord is listed in shards.json but missing"):
        shards.records(files)
    (tmp_path / "shards.json").write_text("[]")
    with pytest.raises(UsageError, match="shards.json is not of the form"):
        shards.records(files)


def test_the_command_prints_the_manifest(files, tmp_path, capsys):
    assert shards_command.main([str(tmp_path)]) == 0
    (tmp_path / "shards.json").write_text(capsys.readouterr().out)
    assert len(shards.records(files)) == 36
    with pytest.raises(UsageError, match=r"nothing is not a directory"):
        shards_command.main([str(tmp_path / "nothing")])
    with pytest.raises(UsageError, match=r"> DIRECTORY/shards.json"):
        shards_command.main([])


def test_runs_of_records_are_read_in_their_order(files):
    records = _record_files.index(files)
    wanted = [text for shard in range(3) for text in texts(shard)]
    for numbers in (range(36), [*range(20, 30), *range(5, 14)], [7, 3, 3], []):
        numbers = np.array(numbers, np.int64)
        found = list(records.sequence(numbers).as_numpy_iterator())
        assert found == [wanted[number] for number in numbers]


def test_a_damaged_record_among_many_is_named(files):
    records = _record_files.index(files)
    records.require_sound(np.arange(36))
    damage(files[1], int(records.offsets[11 + 4]) + 12)
    records.require_sound(np.arange(15))
    with pytest.raises(UsageError, match=r"tfrecord-00001-of-00003: record 4 is damaged"):
        records.require_sound(np.arange(36))
