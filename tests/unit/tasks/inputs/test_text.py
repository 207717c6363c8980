"""Texts: their standard form, the vocabulary, what is decoded and asked of a server."""

import json

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from pipeline.contracts import Info
from pipeline.data import text_decoding
from pipeline.report.input_report import report_of
from pipeline.tasks.inputs.text import TextInput, text
from pipeline.utils.errors import UsageError

TEXTS = [
    "The film is good",
    "the FILM is bad, the plot is bad",
    "Don't see it!",
    "",
    "a caf\u00e9 and a cafe\u0301",
]


class Examples:
    """Raw training examples in two batches."""

    def __init__(self, texts):
        self._values = np.array([value.encode() for value in texts], object)

    def batches(self):
        yield {"text": self._values[:2]}
        yield {"text": self._values[2:]}


def made(texts=TEXTS, **options):
    """An input with what it has learned, as a later process makes it."""
    info = Info({"train": 1}, {"text": tf.TensorSpec((), tf.string)})
    new = text(info, **options)
    learned = {**new.metadata, **new.learn(Examples(texts))}
    return TextInput(json.loads(json.dumps(learned)))


def standard(value, unit="words", **options):
    content = value if isinstance(value, bytes) else value.encode()
    return text_decoding.standardize(tf.constant([content]), unit, **options)


def decoded(own_input, value):
    content = value if isinstance(value, bytes) else value.encode()
    fields, geometry = own_input.decode({"text": tf.constant(content)})
    assert geometry is None
    return {name: tensor.numpy() for name, tensor in fields.items()}


@pytest.mark.parametrize(
    ("value", "words", "characters"),
    [
        ("Don't STOP,now!", "don't stop , now !", "don't stop,now!"),
        ("  a\t\r\n b\u00a0c ", "a b c", "a b c"),
        ("caf\u0065\u0301 \u1ea4 A\u0302\u0301", "caf\u00e9 \u1ea5 \u1ea5", None),
        (b"\xff\xfeok \xe4", "\ufffd \ufffd ok \ufffd", "\ufffd\ufffdok \ufffd"),
        (b"a\0B\x07c", "a b c", "a b c"),
        ("\U0001f600\U0001f600x", "\U0001f600 \U0001f600 x", None),
        ("\u65e5\u672c\u8a9e\u3002", "\u65e5\u672c\u8a9e \u3002", None),
        ("", "", ""),
    ],
)
def test_the_standard_form_is_that_of_any_bytes(value, words, characters):
    forms = {"words": words, "characters": characters}
    for unit, expected in forms.items():
        result = standard(value, unit)
        if expected is not None:
            assert result.numpy()[0].decode() == expected
        again = text_decoding.standardize(result, unit)
        assert again.numpy()[0] == result.numpy()[0]


def test_case_and_accents_can_be_kept_or_left_out():
    assert standard("\u00c9t\u00e9", lower=False).numpy()[0].decode() == "\u00c9t\u00e9"
    assert standard("\u00c9te\u0301", accents=False).numpy()[0] == b"ete"


def test_the_vocabulary_has_words_of_the_training_texts_by_how_often_they_occur():
    own_input = made()
    words = own_input.metadata["vocabulary"]
    assert words == ["is", "the", "a", "bad", "caf\u00e9", "film"]
    assert made(vocabulary=2).metadata["vocabulary"] == words[:2]
    tokens = decoded(own_input, "is THE unknown film")["tokens"]
    assert tokens[:4].tolist() == [2, 3, 1, 7]
    assert not tokens[4:].any()
    notes = {note.name: str(note) for note in own_input.review()}
    assert notes["vocabulary"].startswith("6 of 14 words (")
    assert "of the words in the training texts are unknown" in notes["vocabulary"]
    assert notes["length"] == "9 words (no training text is longer)"


def test_long_texts_are_cut_and_the_rest_does_not_count():
    own_input = made(length=3)
    cut = decoded(own_input, "the film is bad")
    assert (
        cut["tokens"].tolist() == decoded(own_input, "the film is")["tokens"].tolist()
    )
    whole = made()
    long = decoded(whole, "film " * 200_000)
    assert (long["tokens"][:6] == 7).all() and long["text"].dtype == np.uint8
    size = whole.metadata["bytes"]
    # Only whole characters are kept.
    content = decoded(whole, "\u00e9" * size)["text"].tobytes().rstrip(b"\0")
    assert content.decode() == "\u00e9" * (size // 2)


def test_characters_are_units_of_languages_without_spaces():
    own_input = made(["\u65e5\u672c\u8a9e", "\u65e5\u672c"], unit="characters")
    assert own_input.metadata["vocabulary"] == ["\u65e5", "\u672c"]
    tokens = decoded(own_input, "\u672c\u8a9e\u65e5")["tokens"]
    assert tokens.tolist() == [3, 1, 2]


PIECES = [
    "[PAD]",
    "[unused]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "##a",
]
PIECES += [
    "don",
    "'",
    "t",
    "caf",
    "##e",
    "##\u00e9",
    "cafe",
    "##\u0301",
    "\u65e5",
    "\u672c",
]
PIECES += [
    "!",
    "[",
    "]",
    "SEP",
    "sep",
    "a",
    "##b",
    "##\u20ac",
    "\U0001f600",
    "##x",
    "x",
]
PIECES += ["\u1112", "##\u1161", "##\u11ab"]


def in_pieces(value, lower, length=120):
    metadata = {"unit": "pieces", "vocabulary": PIECES, "lower": lower}
    metadata |= {"accents": not lower, "length": length, "bytes": 400}
    tokens = decoded(TextInput(metadata), value)["tokens"]
    names = [None, "?", *PIECES]
    return " ".join(names[token] for token in tokens[tokens > 0])


@pytest.mark.parametrize(
    ("value", "lower", "cased"),
    [
        ("unaffable!!", "un ##aff ##able ! !", "un ##aff ##able ! !"),
        ("Don't unaff", "don ' t un ##aff", "? ' t un ##aff"),
        ("Caf\u00e9 cafe\u0301", "cafe cafe", "? cafe ##\u0301"),
        ("\u65e5\u672ca\u65e5", *["\u65e5 \u672c a \u65e5"] * 2),
        ("a\u20acb \U0001f600x", *["a ##\u20ac ##b \U0001f600 ##x"] * 2),
        ("[SEP]\u200d\0 una", "[ sep ] un ##a", "[ SEP ] un ##a"),
        (b"u\xffn\xc3 a", "un a", "un a"),
        ("\ud55c", "\u1112 ##\u1161 ##\u11ab", "?"),
        ("x" * 100, *["x" + " ##x" * 99] * 2),
        ("x" * 101 + " unq a", "? ? a", "? ? a"),
        ("", "", ""),
    ],
)
def test_word_pieces_are_those_of_bert(value, lower, cased):
    """Recorded from `BertWordPieceTokenizer` of the package `tokenizers`."""
    assert in_pieces(value, lower=True) == f"[CLS] {lower} [SEP]".replace("  ", " ")
    assert in_pieces(value, lower=False) == f"[CLS] {cased} [SEP]".replace("  ", " ")


def test_the_last_piece_of_a_text_that_is_cut_is_sep():
    assert in_pieces("unaffable", lower=True, length=4) == "[CLS] un ##aff [SEP]"


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_a_request_for_decoded_examples_is_decoded_alike(unit):
    own_input = made(unit=unit)
    rows = [decoded(own_input, value) for value in [*TEXTS, "\U0001f600 x" * 50]]
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    (signature,) = own_input.signatures()
    request = signature.request(columns)["text"]
    assert request[1].isupper()
    batch = signature.read(tf.constant(request))
    for name, values in columns.items():
        np.testing.assert_array_equal(batch[name], values)


def test_a_network_of_the_user_gets_the_numbers_of_the_words():
    own_input = made(raw=True)
    assert own_input.inputs().name == "tokens"


def test_texts_without_words_are_refused():
    with pytest.raises(UsageError, match="training texts .*no words"):
        made(["", " \n"])


def test_a_vocabulary_of_one_word_and_of_none_are_used():
    assert made(["ha ha"]).metadata["vocabulary"] == ["ha"]
    assert decoded(made(["once"]), "once")["tokens"].tolist() == [1]


def test_another_field_is_refused():
    info = Info({"train": 1}, {"text": tf.TensorSpec((3,), tf.float32)})
    with pytest.raises(UsageError, match="text: .*one string"):
        text(info)


def test_a_text_is_escaped_in_the_report_and_drawn_in_lines():
    text_input = made()
    example = decoded(text_input, "The <film> is bad")
    assert report_of(text_input).html(example) == "<p>the &lt; film &gt; is bad</p>"
    for words, width in (("ab " * 100, 32), ("\u6f22" * 100, 16)):
        figure = Figure()
        example["raw"] = {"text": words.encode()}
        report_of(text_input).draw(figure.add_subplot(), example)
        (drawn,) = figure.axes[0].texts
        lines = drawn.get_text().split("\n")
        assert 3 < len(lines) <= 11 and max(map(len, lines)) <= width


def test_the_beginning_of_any_text_is_shown():
    own_input = made()
    example = decoded(own_input, "a")
    example["raw"] = {"text": b"<b>\xff\0" + b"long " * 10_000}
    assert report_of(own_input).html(example).startswith("<p>&lt;b&gt;\ufffd\0long")
    figure = Figure()
    report_of(own_input).draw(figure.add_subplot(), example)
    assert 10 < len(figure.axes[0].texts[0].get_text().split()) < 100
