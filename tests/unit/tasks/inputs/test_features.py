"""Features of any shape: what is learned, decoded and asked of a server."""

import io

import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import Info, TrainingExamples
from pipeline.report.input_report import report_of
from pipeline.tasks.inputs.features import FeatureInput, features
from pipeline.utils.errors import UsageError

RANDOM = np.random.default_rng(0)


class Examples(TrainingExamples):
    """Raw training examples in two batches."""

    def __init__(self, values, short=()):
        self._values = values
        self._short = frozenset(short)

    def __len__(self):
        return len(self._values)

    @property
    def short_fields(self):
        return self._short

    def column(self, name):
        return self._values

    def batches(self):
        half = len(self._values) // 2
        for rows in (slice(0, half), slice(half, None)):
            yield {"features": self._values[rows]}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def made(shape, dtype=tf.float32, **options):
    spec = tf.TensorSpec(shape, dtype)
    return features(Info({"train": 9}, {"features": spec}), **options)


def learned(own_input, values, short=()):
    return own_input.with_metadata(
        {**own_input.metadata, **own_input.learn(Examples(values, short))}
    )


@pytest.mark.parametrize("shape", [(5,), (7, 3), (4, 3, 2)])
def test_each_channel_gets_mean_0_and_deviation_1(shape):
    values = RANDOM.normal(1e6, 3, (50, *shape)).astype(np.float32)
    own_input = learned(made(shape), values, ["features"] if len(shape) == 1 else ())
    prepared = own_input.prepare({"features": tf.constant(values)})["features"].numpy()
    axes = tuple(range(len(shape)))
    np.testing.assert_allclose(prepared.mean(axis=axes), 0, atol=0.05)
    np.testing.assert_allclose(prepared.std(axis=axes), 1, rtol=0.02)


def test_the_length_of_files_is_that_of_most():
    arrays = [RANDOM.normal(size=(length, 2)) for length in [10] * 38 + [50, 60]]
    contents = np.array([npy(array) for array in arrays], object)
    own_input = learned(made((), tf.string), contents)
    assert own_input.metadata["features_shape"] == [10, 2]
    decoded, _ = own_input.decode({"features": tf.constant(contents[-1])})
    np.testing.assert_allclose(decoded["features"], arrays[-1][:10], rtol=1e-6)
    default, files = own_input.signatures()
    request = files.request({"features": decoded["features"].numpy()[None]})
    again = files.read(tf.constant(request["features_bytes"]))["features"]
    np.testing.assert_array_equal(again[0], decoded["features"])
    assert default.specs["features"].shape == (None, 10, 2)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b"no", b"npy"], "no file is an .npy"),
        ([npy(np.zeros((3, 2))), npy(np.zeros((3, 4)))], "shapes .2,. and"),
    ],
)
def test_files_without_a_common_shape_are_refused(contents, message):
    with pytest.raises(UsageError, match=message):
        made((), tf.string).learn(Examples(np.array(contents, object)))


def test_whole_numbers_stay_whole_for_an_user_network():
    values = RANDOM.integers(3, 40, (30, 6))
    own_input = learned(made((6,), tf.int64, raw=True), values)
    assert own_input.inputs().dtype == "int64"
    other = FeatureInput(made((6,), tf.int64).metadata)
    assert other.inputs().dtype == "float32"


def test_columns_of_other_data_are_matched_by_name():
    metadata = {"feature_names": ["a", "b"], "mean": [0, 0], "deviation": [1, 1]}
    own_input = FeatureInput(metadata)
    spec = {"features": tf.TensorSpec((3,), tf.float32)}

    class Table:
        info = Info({"test": 1}, spec, feature_names=("b", "x", "a"))

    row = {"features": tf.constant([1.0, 2.0, 3.0])}
    decoded, _ = own_input.match(Table()).decode(row)
    np.testing.assert_array_equal(decoded["features"], [3, 1])
    Table.info = Info({"test": 1}, spec, feature_names=("b", "x", "y"))
    with pytest.raises(UsageError, match="no column 'a'"):
        own_input.match(Table())


def test_a_short_vector_is_a_table_of_scaled_numbers_in_a_report():
    task_input = FeatureInput(
        {"feature_names": ["a<b", "c"], "mean": [1.0, 2.0], "deviation": [2.0, 1.0]}
    )
    html = report_of(task_input).html({"features": np.array([5.0, 2.0], np.float32)})
    assert "<th>a&lt;b</th><td>2</td>" in html
    assert "<th>c</th><td>0</td>" in html
    long = FeatureInput({"feature_names": [str(n) for n in range(50)]})
    assert report_of(long).html({"features": np.zeros(50, np.float32)}) == ""
