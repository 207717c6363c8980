"""TFRecord files: records by number, missing or damaged files."""

import numpy as np
import pytest
import tensorflow as tf
from damaged_files import flip

from pipeline.data.records import index_files, open_files
from pipeline.utils.errors import UsageError

COUNTS = (11, 12, 13)
TEXTS = [
    b"%d %d " % (shard, i) + bytes(range(i))
    for shard in range(3)
    for i in range(COUNTS[shard])
]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"train.tfrecord-{i:05}-of-00003" for i in range(3)]
    for path, texts in zip(
        paths, np.split(np.array(TEXTS, object), (11, 23)), strict=True
    ):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for text in texts:
                writer.write(text)
    return paths


def test_records_are_read_by_number_and_in_sequence(files):
    records = index_files(files)
    order = np.random.default_rng(0).permutation(len(records))
    assert sorted(order) == list(range(36))
    read = tf.data.Dataset.from_tensor_slices(order).map(
        records.read, num_parallel_calls=2
    )
    assert [r.numpy() for r in read] == [TEXTS[i] for i in order]
    for numbers in (range(36), [*range(20, 30), *range(5, 14)], [7, 3, 3], []):
        texts = list(records.sequence(np.array(numbers, np.int64)).as_numpy_iterator())
        assert texts == [TEXTS[number] for number in numbers]
    assert records.location(12) == f"{files[1]}: record 1"


def test_a_damaged_record_is_named_and_the_others_are_read(files):
    records = index_files(files)
    records.require_sound(np.arange(36))
    flip(files[1], int(records.offsets[11 + 4]) + 12)
    records.require_sound(np.arange(15))
    with pytest.raises(UsageError, match="00001-of-00003: record 4"):
        records.require_sound(np.arange(36))
    with pytest.raises(tf.errors.DataLossError):
        records.read(tf.constant(15, tf.int64))
    assert records.read(tf.constant(16, tf.int64)) == TEXTS[16]


DAMAGED = {
    "the last byte": (
        lambda raw, last: raw[:-1],
        "record 10 .* copy or write it again",
    ),
    "bytes after the end": (lambda raw, last: raw + b"\0\0\0", "record 11 is damaged"),
    "HTML": (lambda raw, last: b"<html>" * 9, "not a TFRecord file"),
    "gzip": (
        lambda raw, last: b"\x1f\x8b" + bytes(99),
        "compressed or not a TFRecord file",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named(files, case):
    change, message = DAMAGED[case]
    last = int(index_files(files[:1]).offsets[-1])
    files[0].write_bytes(change(files[0].read_bytes(), last))
    with pytest.raises(UsageError, match=f"00000-of-00003.*{message}"):
        index_files(files)


def test_a_missing_shard_is_named(files):
    with pytest.raises(UsageError, match="00001-of-00003 is missing"):
        open_files([files[0], files[2]])
