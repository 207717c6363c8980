"""Which files inputs read, from the source of registered inputs and of a user's own."""

import pytest

from pipeline.data import file_types
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import SUFFIXES

SERIES = '''
def series(info, *, field: str = "series", suffixes: tuple[str, ...] = (".TS", "nii.gz")):
    """Series."""


def scan(info, *, width: int = 3):
    """No files."""
'''


def test_registered_inputs_and_their_files():
    types = file_types.inputs()
    assert types["image"] == ("image", SUFFIXES)
    assert types["features"] == ("features", (".npy",))
    assert next(iter(file_types.fields())) == "image"


def test_an_input_of_the_user(workplace):
    (workplace / "own_inputs.py").write_text(SERIES)
    expected = ("series", (".ts", ".nii.gz"))
    assert file_types.of("own_inputs.py:series") == expected
    assert file_types.of("own_inputs.py:scan") is None
    with pytest.raises(UsageError, match="unknown input 'serie'"):
        file_types.of("serie")


def test_an_input_of_a_notebook():
    from pipeline.config.objects import name_of

    def series(info, *, field="series", suffixes=(".ts", ".csv")):
        """Series."""

    expected = ("series", (".ts", ".csv"))
    assert file_types.of(name_of(series, "inputs")) == expected


def test_options_select_fields_and_suffixes():
    assert file_types.select(None) == file_types.fields()
    assert file_types.select("features") == {"features": (".npy",)}
    assert file_types.select(None, ["PNG"]) == {"image": (".png",)}
    assert file_types.select("series", [".ts"]) == {"series": (".ts",)}
    with pytest.raises(UsageError, match="smell.*--source.suf"):
        file_types.select("smell")
    with pytest.raises(UsageError, match="suffixes .odor needs --source.field"):
        file_types.select(None, [".odor"])


def test_the_field_of_most_files():
    types = file_types.fields()
    assert file_types.most_common(["a.npy", "b.NPY", "c.png", "d", "e"], types) == (
        "features"
    )
    assert file_types.most_common(["a.npy", "c.png"], types) == "image"
    assert file_types.most_common([], types) == "image"
