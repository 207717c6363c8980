"""The options that a sweep varies, as on the command line."""

import pytest

from pipeline.config import command_line
from pipeline.config.search_space import Dimension, parse
from pipeline.utils.errors import UsageError


def test_ranges_and_lists_are_read():
    assert parse(["train.learning-rate=1e-4..1e-1:log", "--model.filters=8,16"]) == [
        Dimension("train.learning-rate", (), 1e-4, 0.1, is_log=True),
        Dimension("model.filters", ("8", "16")),
    ]
    (blocks,) = parse(["model.blocks=1..4"])
    assert blocks.is_whole and blocks.ends == ("1", "4")
    assert blocks.flags(3.0) == ["--model.blocks", "3"]
    (decay,) = parse(["train.weight_decay=-1..0.5"])
    assert decay.option == "train.weight-decay" and not decay.is_whole
    (units,) = parse(["model.units=64,32;8"])
    assert units.choices == ("64,32", "8")
    (shuffle,) = parse(["shuffle=true,false"])
    assert shuffle.flags("true") == ["--shuffle"]
    assert shuffle.flags("false") == ["--no-shuffle"]
    assert decay.flags(0.1 + 0.2) == ["--train.weight-decay", "0.30000000000000004"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("train.epochs=10..50", 40),
        ("lr=1e-4..0.1:log", 0.002),
        ("train.learning-rate=0.1..0.2", None),
        ("train.shuffle=true,false", "true"),
        ("model.filters=32,64", "64"),
        ("filters=16,32", None),
        ("train.optimizer=adam,sgd", "adam"),
    ],
)
def test_the_default_is_that_of_the_recipe_or_of_the_function(word, expected):
    config = command_line.request(["digits"]).config
    (dimension,) = parse([word])
    assert dimension.default(config) == expected


def test_options_that_a_recipe_plans_are_known_by_any_name():
    planned = ("train.learning_rate", "train.epochs")
    for word in ("lr=0.1,0.2", "train.learning-rate=0.1..0.2", "epochs=1,2"):
        (dimension,) = parse([word])
        assert dimension.sets_any(planned)
    (dimension,) = parse(["train.ema=0.1..0.9"])
    assert not dimension.sets_any(planned)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.epochs", "--over needs OPTION=VALUES, .*'train.epochs'"),
        ("train.epochs=5..5", r"the range 5\.\.5 is empty"),
        ("train.ema=0..1:log", r"a logarithmic range begins above 0; got 0"),
        ("train.ema=a..b", r"a range has two numbers; got a\.\.b"),
        ("train.ema=0.1..0.9:lg", r"only :log may follow a range; got :lg"),
        ("train.ema=0..inf", r"the range 0\.\.inf is empty"),
        ("model.filters=8", "leaves nothing to vary; set it with --model.filters 8"),
        ("model.filters=8,8", "must differ and not be empty; got 8,8"),
        ("model.filters=8,", "must differ and not be empty; got 8,"),
    ],
)
def test_what_is_no_range_or_list_is_one_line(word, message):
    with pytest.raises(UsageError, match=message):
        parse([word])
    with pytest.raises(UsageError, match="--over needs at least one option"):
        parse([])
    with pytest.raises(UsageError, match="repeated"):
        parse(["a=1,2", "a=1..2"])
