"""What a run prints and saves before it trains: its data, model and decisions."""

import math

from pipeline.config import objects
from pipeline.config.sections import TrainConfig
from pipeline.training.trainer import Trainer
from pipeline.utils import safe_io
from pipeline.utils.console import clock, pluralize, say


def show(trainer: Trainer) -> None:
    """Prints and saves the decisions that the run begins with."""
    data = trainer.data
    where = f"in {trainer.run}"
    if trainer.config.dry_run:
        where = "(dry run: two steps on a few examples)"
    say("run", f"{trainer.config.recipe} {where}")
    counts = [f"{name} {len(split):,}" for name, split in data.splits.items()]
    fields = []
    for name, spec in data.splits["train"].store.specs.items():
        if name == "id":
            continue
        shape = "x".join(map(str, spec.shape))
        words = [name, shape, spec.dtype.name] if shape else [name, spec.dtype.name]
        fields.append(" ".join(words))
    say("data", f"{', '.join(counts)}; {', '.join(fields)}")
    for note in data.source.info.notes:
        say("note", note)
    for decision in trainer.save_decisions():
        say(decision.name, decision)
    _show_model(trainer)
    _show_progress(trainer)


def _show_model(trainer: Trainer) -> None:
    model = trainer.model
    batches = trainer.remaining
    line = f"{trainer.config.model.name}, {model.count_params():,} parameters"
    if model.frozen:
        variables = model.trainable_variables
        trained = sum(math.prod(variable.shape) for variable in variables)
        line += f", {trained:,} of them trained, frozen: {' '.join(model.frozen)}"
    note = model.step.note
    say("model", f"{line}; {note}" if note else line)
    steps = pluralize(batches.last_step, "step")
    examples = pluralize(batches.batch_size, "example")
    line = f"{steps} of {examples}, {batches.steps_per_epoch:,} per epoch"
    if not trainer.config.train.shuffle:
        line += ", in the order of the data"
    say("training", line)
    say("optimizer", _describe_update(trainer.config.train))


def _show_progress(trainer: Trainer) -> None:
    """Says where a run that is resumed continues."""
    first_step = trainer.remaining.first_step
    repeated = _repeated_epochs(trainer)
    if not first_step:
        if repeated:
            say("resumed", f"from the start, without a checkpoint; {repeated}")
        return
    line = f"after step {first_step:,}, from the newest intact checkpoint"
    say("resumed", f"{line}; {repeated}" if repeated else line)
    if trainer.checkpoint.ended:
        step = f"{trainer.checkpoint.step:,}"
        advice = "other epochs, steps or callbacks with --force continue"
        say("ended", f"by a callback at step {step}; {advice}")
    if trainer.stops.limit:
        used = clock(trainer.stops.seconds_elapsed)
        limit = clock(trainer.stops.limit)
        advice = "a longer --runtime.time-limit continues longer"
        say("time", f"{used} of {limit} used; {advice}")


def _repeated_epochs(trainer: Trainer) -> str:
    """Says how many epochs of the log come after the checkpoint, if any do."""
    try:
        lines = safe_io.read_text(trainer.run.log).splitlines()
    except (OSError, ValueError):
        return ""
    # After `kill -9`, the last line may be incomplete.
    logged = sum(line.endswith("}") for line in lines)
    count = logged - trainer.checkpoint.epoch
    verb = "is" if count == 1 else "are"
    epochs = pluralize(count, "epoch")
    return f"{epochs} of the log {verb} repeated" if count > 0 else ""


def _describe_update(train: TrainConfig) -> str:
    """Returns the optimizer and what changes its updates, in one line."""
    parts = [objects.title(train.optimizer)]
    schedule = train.schedule
    if isinstance(schedule, objects.ObjectName):
        parts.append(objects.title(schedule))
    elif schedule == "constant":
        parts.append(f"learning rate {train.learning_rate:g}")
    else:
        parts.append(f"{objects.title(schedule)} from {train.learning_rate:g}")
    if train.weight_decay:
        parts.append(f"weight decay {train.weight_decay:g}")
    if train.label_smoothing:
        smoothing = f"label smoothing {train.label_smoothing:g}"
        parts.append(f"{smoothing} (in training only)")
    if train.loss:
        parts.append(f"loss {objects.title(train.loss)}")
    return ", ".join(parts)
