"""Evaluation of the target `transcript`."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.contracts import Example
from pipeline.data.text_decoding import PADDING, UNKNOWN
from pipeline.evaluation.target_evaluation import Evaluator, Score, TargetEvaluation
from pipeline.tasks.targets.transcript import TranscriptTarget, fits
from pipeline.utils.edit_distance import Edit, align, distance

_WORST = 5  # utterances in the metrics and on the terminal
# Share of the errors of a prediction that is always the same, above which a model has
# learned nothing.
_BETTER = 0.9


class TranscriptEvaluation(TargetEvaluation):
    """Evaluates predictions of `transcript`."""

    target: TranscriptTarget

    def evaluator(self, model: Any = None) -> Evaluator:
        return TranscriptEvaluator(self.target.text_of)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, the `probability` of the prediction, whether it is
        `correct`, and `word_errors`.
        """
        truths = [self.target.text_of(row) for row in batch["transcript"].numpy()]
        texts = [text.decode() for text in predictions["text"].numpy()]
        pairs = list(zip(truths, texts, strict=True))
        errors = [distance(truth.split(), text.split()) for truth, text in pairs]
        return {
            "truth": np.array(truths),
            "prediction": np.array(texts),
            "probability": predictions["confidence"].numpy(),
            "correct": np.array([truth == text for truth, text in pairs]),
            "word_errors": np.array(errors, np.int32),
        }

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The word error rate, and the share of exact transcripts."""
        words = [float(len(truth.split())) for truth in rows["truth"]]
        rate = Score(rows["word_errors"].astype(np.float64), np.array(words), -1)
        return {"word_error_rate": rate, "exact": super().scores(rows)["accuracy"]}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """The same transcript for all recordings."""
        constant = metrics["constant"]
        if metrics["character_error_rate"] < _BETTER * constant["character_error_rate"]:
            return ""
        text = repr(constant["text"]) if constant["text"] else "an empty transcript"
        return (
            f"always predicting {text} (character error rate"
            f" {constant['character_error_rate']:.3f})"
        )


class TranscriptEvaluator(Evaluator):
    """Loss, word and character error rate, and the share of exact transcripts.

    An error rate is the number of substitutions, deletions and insertions divided by
    the number of words or characters of all truths. `constant` is the better of two
    transcripts for all recordings: the most frequent and the empty one. `worst` has the
    utterances with most word errors. `too_long` is left out if the outputs are not
    known.
    """

    def __init__(self, text_of: Callable[[np.ndarray], str]) -> None:
        self._text_of = text_of
        self._loss = 0.0
        self._cut = 0
        self._unknown = 0
        self._counts: Counter[str] = Counter()
        self._truths: Counter[str] = Counter()
        self._worst: list[tuple[int, int, str, str, str]] = []

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truths = batch["transcript"].numpy()
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        if outputs is not None:
            is_too_long = ~fits(batch["transcript"], outputs).numpy()
            self._counts["too_long"] += int(is_too_long.sum())
        self._cut += int((truths[:, -1] != PADDING).sum())
        self._unknown += int((truths == UNKNOWN).sum())
        for truth, text in zip(truths, predictions["text"].numpy(), strict=True):
            self._add(self._text_of(truth), text.decode())

    def _add(self, truth: str, text: str) -> None:
        changes = align(truth.split(), text.split())
        kinds = Counter(change.kind for change in changes)
        errors = len(changes) - kinds["equal"]
        counts = self._counts
        counts.update(kinds)
        self._truths[truth] += 1
        counts["examples"] += 1
        counts["words"] += len(truth.split())
        counts["characters"] += len(truth)
        counts["character_errors"] += distance(truth, text)
        counts["exact"] += truth == text
        if errors:
            order = counts["examples"]
            alignment = " ".join(map(_show, changes))
            self._worst.append((-errors, order, truth, text, alignment))
            self._worst = sorted(self._worst)[:_WORST]

    def result(self) -> dict[str, Any]:
        counts = self._counts
        errors = counts["substituted"] + counts["deleted"] + counts["inserted"]
        worst = []
        for negative, _, truth, text, alignment in self._worst:
            row = {"truth": truth, "prediction": text, "alignment": alignment}
            worst.append({"errors": -negative, **row})
        metrics = {
            "examples": counts["examples"],
            "loss": self._loss / counts["examples"],
            "word_error_rate": errors / max(counts["words"], 1),
            "character_error_rate": counts["character_errors"]
            / max(counts["characters"], 1),
            "exact": counts["exact"] / counts["examples"],
            "words": counts["words"],
            "substituted": counts["substituted"],
            "deleted": counts["deleted"],
            "inserted": counts["inserted"],
            "unknown_units": self._unknown,
            "cut": self._cut,
            "constant": self._constant(),
            "worst": worst,
        }
        if "too_long" in counts:
            metrics["too_long"] = counts["too_long"]
        return metrics

    def _constant(self) -> dict[str, Any]:
        ((text, _),) = self._truths.most_common(1)
        errors = sum(distance(truth, text) * n for truth, n in self._truths.items())
        characters = max(self._counts["characters"], 1)
        if errors >= characters:
            text, errors = "", characters
        return {"text": text, "character_error_rate": errors / characters}


def _show(change: Edit) -> str:
    """A word of an alignment."""
    if change.kind == "inserted":
        return f"*{change.prediction}*"
    if change.kind == "deleted":
        return f"[{change.truth}]"
    if change.kind == "substituted":
        return f"({change.truth} > {change.prediction})"
    return str(change.truth)
