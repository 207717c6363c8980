"""The checksum of TFRecord files, against TensorFlow's."""

import exports
import numpy as np
import pytest

from pipeline.utils import crc32c


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 64, 65, 1000, 5000])
def test_checksums_are_those_of_tensorflow(tmp_path, length):
    content = np.random.default_rng(length).bytes(length)
    exports.write_records(tmp_path / "f", [content])
    raw = (tmp_path / "f").read_bytes()
    assert crc32c.of_bytes(content) == int.from_bytes(raw[-4:], "little")
