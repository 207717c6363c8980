"""Transcripts: loss against TensorFlow's with true lengths, decoding and error rates by
hand.
"""

import jiwer
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report.target_report import report_of
from pipeline.tasks.targets.transcript import TranscriptTarget

RANDOM = np.random.default_rng(0)
UNITS = ["a", "b", " "]
A, B, SPACE = 2, 3, 4
CLASSES = 5


def target(**metadata):
    return TranscriptTarget({"units": UNITS, "transcript_length": 6, **metadata})


def outputs_of(*rows, certainty=20.0):
    """Logits whose best units are these."""
    return tf.constant(np.eye(CLASSES)[np.array(rows)] * certainty, tf.float32)


def masked(logits, frames):
    """Logits as `head` makes them for recordings of so many frames."""
    values = np.array(logits)
    for row, count in zip(values, frames, strict=True):
        row[count:] = [0] + [-1e4] * (CLASSES - 1)
    return tf.constant(values, tf.float32)


def test_the_loss_is_that_of_the_true_lengths():
    logits = RANDOM.normal(size=(3, 9, CLASSES)).astype(np.float32)
    y = tf.constant([[2, 3, 3, 0], [4, 0, 0, 0], [2, 4, 2, 3]], tf.int32)
    lengths, frames = [3, 1, 4], [9, 5, 7]
    actual = target().loss()(y, masked(logits, frames))
    for row, (length, count) in enumerate(zip(lengths, frames, strict=True)):
        expected = tf.nn.ctc_loss(
            y[row : row + 1, :length],
            logits[row : row + 1, :count],
            [length],
            [count],
            logits_time_major=False,
            blank_index=0,
        )
        assert float(actual[row]) == pytest.approx(
            float(expected[0]) / length, rel=1e-4
        )


def test_a_transcript_longer_than_the_recording_adds_nothing():
    logits = tf.Variable(RANDOM.normal(size=(2, 4, CLASSES)).astype(np.float32))
    # Between two equal units there must be a blank: 5 frames.
    y = tf.constant([[2, 2, 2, 0], [2, 3, 2, 3]], tf.int32)
    with tf.GradientTape() as tape:
        losses = target().loss()(y, logits)
    gradient = tape.gradient(losses, logits).numpy()
    assert losses[0] == 0 and losses[1] > 0
    assert not gradient[0].any() and np.isfinite(gradient).all()


def test_repetitions_and_blanks_are_left_out():
    rows = [[A, A, 0, A, SPACE, B, B], [0, 0, 0, 0, 0, 0, 0], [SPACE, B, 0, B, B, 0, 0]]
    prediction = target().predict(outputs_of(*rows), {})
    assert prediction["text"].numpy().tolist() == [b"aa b", b"", b"bb"]
    np.testing.assert_allclose(prediction["confidence"], 1, atol=1e-4)


def test_a_beam_sums_over_alignments():
    """Graves et al., 2006, section 3.2: the best alignment is blank, the best text a."""
    shares = np.full((1, 2, CLASSES), 1e-9)
    shares[:, :, 0], shares[:, :, A] = 0.6, 0.4
    outputs = tf.constant(np.log(shares), tf.float32)
    assert target().predict(outputs, {})["text"].numpy().tolist() == [b""]
    best = target(beam=8).predict(outputs, {})
    assert best["text"].numpy().tolist() == [b"a"]
    assert best["confidence"].numpy()[0] == pytest.approx(1 - 0.6**2, abs=1e-3)


def test_units_are_learned_from_training_transcripts():
    class Examples:
        def batches(self):
            yield {"transcript": np.array([b"Ab a", b"b"], object)}

    learned = target(most_units=100).learn(Examples())
    assert learned == {"units": ["a", "b", " "], "transcript_length": 6}
    transcripts = TranscriptTarget(learned)
    numbers = transcripts.decode({"transcript": tf.constant("Bx A")}, None)[
        "transcript"
    ]
    assert numbers.numpy().tolist() == [B, 1, SPACE, A, 0, 0]
    assert transcripts.text_of(numbers.numpy()) == "b\ufffd a"


def test_error_rates_by_hand():
    transcripts = target(transcript_length=5)
    # "a b" as "a b", "b b" as "a b", "ab" as "a b", and "a?" as "a"
    truths = [[A, SPACE, B], [B, SPACE, B], [A, B, 0], [A, 1, 0]]
    rows = [[A, SPACE, B]] * 3 + [[A, 0, 0]]
    batch = {"transcript": tf.constant(np.pad(truths, [[0, 0], [0, 2]]), tf.int32)}
    outputs = outputs_of(*rows)
    predictions = {**transcripts.predict(outputs, batch), "loss": tf.zeros(4)}
    evaluator = evaluation_of(transcripts).evaluator()
    evaluator.update(outputs, predictions, batch)
    metrics = evaluator.result()
    # 6 words: 1 substituted; "ab" became "a b", 2 errors; "a?" became "a", 1 error.
    assert metrics["word_error_rate"] == pytest.approx(4 / 6)
    assert metrics["character_error_rate"] == pytest.approx(3 / 10)
    assert metrics["exact"] == 0.25 and metrics["unknown_units"] == 1
    kinds = [metrics[kind] for kind in ("substituted", "deleted", "inserted")]
    assert sum(kinds) == 4 and kinds[2] == 1
    assert metrics["worst"][0]["errors"] == 2
    text = "\n".join(report_of(transcripts).summary(metrics, "test"))
    assert "(b > a) b" in text and "in no training transcript" in text


def test_an_empty_answer_is_called_nothing():
    axes = Figure().subplots()
    for text, title in ((b"", "predicted nothing\ntrue: b"), (b"b", "predicted b")):
        report_of(target()).draw(axes, {"transcript": [B, 0]}, {"text": text})
        assert axes.get_title() == title


def test_error_rates_are_those_of_jiwer():
    transcripts = TranscriptTarget({"units": [*"ab cd"], "transcript_length": 60})
    evaluator = evaluation_of(transcripts).evaluator()
    truths, texts = [], []
    for _ in range(20):
        truth, text = (
            " ".join(RANDOM.choice(["a", "bc", "add", "b"], size))
            for size in RANDOM.integers(1, 9, 2)
        )
        truths.append(truth)
        texts.append(text)
    decoded = [
        transcripts.decode({"transcript": tf.constant(text)}, None) for text in truths
    ]
    batch = {"transcript": tf.stack([row["transcript"] for row in decoded])}
    predictions = {"text": tf.constant(texts), "loss": tf.zeros(20)}
    evaluator.update(outputs_of(*np.zeros((20, 60), int)), predictions, batch)
    metrics = evaluator.result()
    words = jiwer.process_words(truths, texts)
    assert metrics["word_error_rate"] == pytest.approx(words.wer)
    assert metrics["character_error_rate"] == pytest.approx(jiwer.cer(truths, texts))
    errors = [metrics[kind] for kind in ("substituted", "deleted", "inserted")]
    assert sum(errors) == words.substitutions + words.deletions + words.insertions


def test_transcripts_that_are_too_long_are_noted():
    transcripts = target(units=["a"], transcript_length=5)
    batch = {
        "transcript": transcripts.decode({"transcript": tf.constant("a" * 9)}, None)
    }
    batch = {"transcript": batch["transcript"]["transcript"][None]}
    outputs = tf.constant(np.eye(3)[[[2, 0, 2]]] * 20, tf.float32)
    predictions = {**transcripts.predict(outputs, batch), "loss": tf.zeros(1)}
    evaluator = evaluation_of(transcripts).evaluator()
    evaluator.update(outputs, predictions, batch)
    metrics = evaluator.result()
    assert metrics["cut"] == 1 and metrics["too_long"] == 1
    (metric,) = transcripts.metrics()
    metric.update_state(
        tf.stack([transcripts.y(batch)[0], [2, 0, 0, 0, 0]]),
        tf.tile(outputs, [2, 1, 1]),
    )
    assert metric.name == "too_long" and float(metric.result()) == 0.5
    text = "\n".join(report_of(transcripts).summary(metrics, "test"))
    assert "more units than the model has outputs in 1 transcript of test" in text
    assert "more than 4 characters" in text
    (_, worst) = report_of(transcripts).panels(metrics, {})
    assert worst.content["alignment"] == ["(aaaaa > aa)"]


def test_words_as_units():
    transcripts = TranscriptTarget(
        {"units": ["one", "two"], "transcript_length": 4, "transcript_unit": "words"}
    )
    numbers = transcripts.decode({"transcript": tf.constant("Two  one!")}, None)[
        "transcript"
    ]
    assert numbers.numpy().tolist() == [3, 2, 1, 0]
    outputs = tf.constant(np.eye(4)[[[3, 0, 2]]] * 20, tf.float32)
    assert transcripts.predict(outputs, {})["text"].numpy().tolist() == [b"two one"]


def test_the_loss_compiles():
    y = tf.constant([[2, 3, 0]], tf.int32)
    logits = tf.constant(RANDOM.normal(size=(1, 6, CLASSES)), tf.float32)
    loss = target().loss()
    compiled = tf.function(loss, jit_compile=True)
    np.testing.assert_allclose(compiled(y, logits), loss(y, logits), rtol=1e-5)
