"""Searches for better options by trial runs, measured on the validation split."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pipeline.config import cli_parser, command_line, help_text, search_space
from pipeline.config.config import Config
from pipeline.config.formats import parse_duration
from pipeline.config.search_space import Dimension
from pipeline.runtime import cluster, gpu_info, trials
from pipeline.runtime.trials import Trial
from pipeline.training import preflight
from pipeline.utils import files, locks, safe_io
from pipeline.utils.console import join_words, pluralize, say, say_result
from pipeline.utils.errors import UsageError, needs_package, run_command

if TYPE_CHECKING:
    import optuna

PROGRAM = "pipeline sweep"
_PURPOSE = """\
Trains a recipe with different options, and searches for those with the best metric on
the validation split. The test split is not measured. Each trial is a run of its own;
the best options are saved as a config. Other options are those of pipeline fit."""
_ARGUMENTS = {
    "[RECIPE or PATH]": "As for pipeline fit.",
    "--over OPTION=VALUES ...": (
        "The options to vary: a range of numbers, whole if both ends are, or a list."
        " train.learning-rate=1e-4..0.1:log draws the logarithm uniformly;"
        " model.filters=32,64 chooses one of the values; train.shuffle=true,false sets"
        " a switch; and ; separates values with commas: 'model.units=64;32,32'."
    ),
    "[--resume DIRECTORY]": (
        "Continues a sweep, instead of a recipe and --over. The options below may"
        " change: more --trials, for example."
    ),
}
_SWEEPS = Path("sweeps")
_FORMAT = 1
_FAILURES = 3  # of the first trials, after which a sweep ends
_PAUSE = 0.2  # seconds between looks at the trials
_GRACE = 60.0  # seconds in which a trial saves its checkpoint
_SHOWN = 10  # trials
_SPLITS = ("validation", "test", "validation_groups", "test_groups", "split_seed")


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """How to search."""

    trials: Annotated[int, (1, 100_000)] = 20
    """Number of runs. A grid ends after all combinations."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """tpe: prefer values near those of good trials (Bergstra et al. 2011); random; or
    grid: all combinations of lists of values.
    """
    prune: bool = True
    """End trials early whose validation metric, by which trials are selected, is worse
    than that of others after as many epochs (Hyperband, Li et al. 2017).
    """
    jobs: Annotated[int, (1, 1000)] | None = None
    """Trials at the same time. None: one for each GPU, or else one."""
    time_limit: Annotated[str, "duration"] | None = None
    """Start no trial after this time, and end those that are running, such as 1h30m."""
    sampler_seed: Annotated[int, (0, 2**31 - 1)] = 0
    """Seed of the choice of values."""
    directory: Path | None = None
    """Directory of the sweep. None: the next free sweeps/NAME-N."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What a sweep was started with."""

    words: list[str]
    """Of `pipeline fit`, for all trials."""
    space: list[Dimension]
    options: SweepOptions

    def as_json(self) -> dict[str, Any]:
        options = {**dataclasses.asdict(self.options), "directory": None}
        over = [dataclasses.asdict(dimension) for dimension in self.space]
        return {
            "format": _FORMAT,
            "words": self.words,
            "over": over,
            "options": options,
        }


def main(arguments: list[str]) -> int:
    """`pipeline sweep [RECIPE or PATH] --over OPTION=VALUES ... [--option VALUE ...]`.

    Returns 1 if no trial has succeeded.
    """
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _PURPOSE, SweepOptions(), _ARGUMENTS))
        return 0
    cluster.require_none(PROGRAM)
    if importlib.util.find_spec("optuna") is None:
        raise UsageError(needs_package(PROGRAM, "optuna", "sweep"))
    if "--resume" in arguments:
        at = arguments.index("--resume")
        folder, plan = _saved([*arguments[at + 1 :], *arguments[:at]])
        _check(plan)
    else:
        plan = _read(arguments)
        name = _check(plan).name
        folder = plan.options.directory or files.make_next(_SWEEPS, name)
        if (folder / "sweep.json").exists():
            raise UsageError(
                f"{folder} contains a sweep; {PROGRAM} --resume {folder} continues it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with locks.hold(folder):
        files.write_json(folder / "sweep.json", plan.as_json())
        return _Sweep(folder, plan).run()


def _read(arguments: Sequence[str]) -> _Plan:
    """Divides the words among the sweep and `pipeline fit`."""
    own: list[str] = []
    over: list[str] = []
    rest: list[str] = []
    part = rest
    known = {flag.removeprefix("--") for flag in cli_parser.flags(SweepOptions)}
    for word in arguments:
        if not word.startswith("--"):
            part.append(word)
            part = over if part is over else rest  # other options have one value
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if name == "over":
            part = over
            part += [value] if equals else []
            continue
        part = own if name in known else rest
        part.append(word)
        if equals or name in ("prune", "no-prune"):
            part = rest
    options = SweepOptions(**cli_parser.changes(own, SweepOptions))
    return _Plan(rest, search_space.parse(over), options)


def _saved(words: Sequence[str]) -> tuple[Path, _Plan]:
    if not words or words[0].startswith("-"):
        raise UsageError(f"{PROGRAM} --resume needs a sweep, such as sweeps/digits-1")
    folder = Path(words[0])
    changes = cli_parser.changes(words[1:], SweepOptions)
    if "directory" in changes or "sampler" in changes:
        raise UsageError("--directory and --sampler of a sweep cannot change")
    path = folder / "sweep.json"
    if not path.is_file():
        raise UsageError(f"{folder} is not a sweep: it has no sweep.json")
    try:
        values = safe_io.read_json(path)
        if values["format"] != _FORMAT:
            raise UsageError(f"{folder} was started by another version of the package")
        space = []
        for entry in values["over"]:
            space.append(Dimension(**{**entry, "choices": tuple(entry["choices"])}))
        options = SweepOptions(**{**values["options"], **changes})
        return folder, _Plan(values["words"], space, options)
    except (OSError, ValueError, LookupError, TypeError):
        raise UsageError(f"{path} is damaged; start the sweep again") from None


def _check(plan: _Plan) -> Config:
    """The config of the first trial; UsageError if an option or a value is wrong."""
    options = plan.options
    if options.sampler == "grid":
        for dimension in plan.space:
            if not dimension.choices:
                raise UsageError(
                    f"--sampler grid needs a list of values for {dimension.option},"
                    " not a range"
                )
    measured = set()
    for dimension in plan.space:
        for value in dimension.ends:
            others = []
            for other in plan.space:
                if other is not dimension:
                    others += other.flags(other.ends[0])
            words = [*plan.words, *others, *dimension.flags(value)]
            config = command_line.request(words, PROGRAM, _PURPOSE).config
            preflight.require_trackers(config.train.callbacks)
            measured.add(repr([getattr(config.data, name) for name in _SPLITS]))
    if len(measured) > 1:
        raise UsageError(
            "--over cannot vary the splits, since all trials are measured on the same"
            " validation examples"
        )
    if config.dry_run or config.data.folds is not None:
        raise UsageError(f"{PROGRAM} cannot be combined with --dry-run or --data.folds")
    if config.run_directory is not None:
        raise UsageError("--run-directory: each trial has its own; use --directory")
    return config


class _Sweep:
    """A sweep in its directory."""

    def __init__(self, folder: Path, plan: _Plan) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self.folder = folder
        self.plan = plan
        self._limit = math.inf
        if plan.options.time_limit is not None:
            self._limit = time.monotonic() + parse_duration(plan.options.time_limit)
        journal = folder / "trials.log"
        _remove_incomplete_line(journal)
        for path in folder.glob("trials.log.lock*"):  # of a killed process
            path.unlink()
        try:
            backend = JournalFileBackend(str(journal))
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="sweep",
                pruner=self._pruner(),
                load_if_exists=True,
            )
        except (ValueError, LookupError):
            raise UsageError(f"{journal} is damaged; start the sweep again") from None
        self._gpus = gpu_info.visible()
        self._jobs = plan.options.jobs or max(1, len(self._gpus))
        self._is_warned = False
        self._selection = self._saved_selection()
        self._running: dict[int, Trial] = {}
        self._asked: dict[int, Any] = {}

    def _saved_selection(self) -> tuple[str, int] | None:
        """The metric by which trials are selected, and 1 if higher is better, or -1;
        None until the first trial has finished.
        """
        for trial in self._study.trials:
            if "direction" in trial.user_attrs:
                return trial.user_attrs["metric"], trial.user_attrs["direction"]
        return None

    def _sampler(self, *numbers: int) -> "optuna.samplers.BaseSampler":
        """The sampler for a trial and an option.

        Each has a seed of its own, so that a resumed sweep draws the same values as an
        uninterrupted one.
        """
        options = self.plan.options
        samplers = self._optuna.samplers
        if options.sampler == "grid":
            grid = {d.option: list(d.choices) for d in self.plan.space}
            sampler = samplers.GridSampler(grid, seed=options.sampler_seed)
            # It calls Study.stop at the end, which fails outside of Study.optimize.
            sampler.after_trial = lambda *_: None  # type: ignore[method-assign]
            return sampler
        source = random.Random(repr((options.sampler_seed, *numbers)))
        seed = source.getrandbits(32)
        if options.sampler == "random":
            return samplers.RandomSampler(seed)
        return samplers.TPESampler(seed=seed, constant_liar=True)

    def _pruner(self) -> "optuna.pruners.BasePruner":
        if not self.plan.options.prune:
            return self._optuna.pruners.NopPruner()
        return self._optuna.pruners.HyperbandPruner()

    def run(self) -> int:
        """Carries out the trials that are missing, and reports."""
        (self.folder / "trials").mkdir(exist_ok=True)
        options = ", ".join(dimension.option for dimension in self.plan.space)
        count = pluralize(self._total, "trial")
        say("sweep", f"{self.folder}: {count} of {options}")
        with _terminated_by_signals():
            try:
                self._search()
            except KeyboardInterrupt:
                self._stop_all()
                resume = f"{PROGRAM} --resume {shlex.quote(str(self.folder))}"
                say("stopped", f"{resume} continues it")
                raise
        return self._report()

    def _enqueue_defaults(self) -> None:
        """The first trial has the values of the recipe, where they are allowed."""
        request = command_line.request(self.plan.words)
        defaults = {}
        others = []
        for dimension in self.plan.space:
            value = dimension.default(request.config)
            if value is None or dimension.sets_any(request.planned):
                others.append(dimension.option)
            else:
                defaults[dimension.option] = value
        self._study.enqueue_trial(defaults)
        if others:
            say(
                "note",
                f"trial 0 has the defaults, except for {join_words(others)}: the"
                " default is not among the values, or each run chooses it",
            )

    @property
    def _total(self) -> int:
        total = self.plan.options.trials
        if self.plan.options.sampler == "grid":
            sizes = [len(dimension.choices) for dimension in self.plan.space]
            total = min(total, math.prod(sizes))
        return total

    def _search(self) -> None:
        if not self._study.trials and self.plan.options.sampler != "grid":
            self._enqueue_defaults()
        states = self._optuna.trial.TrialState
        running = [
            trial.number
            for trial in self._study.trials
            if trial.state == states.RUNNING
        ]
        while True:
            while len(self._running) < self._jobs and time.monotonic() < self._limit:
                waiting = [t for t in self._study.trials if t.state == states.WAITING]
                count = len(self._study.trials) - len(waiting)
                if running:
                    self._start(running.pop(0))
                elif count < self._total:
                    self._study.sampler = self._sampler(count, 0)
                    self._start(self._study.ask().number)
                else:
                    break
            if not self._running:
                return
            if time.monotonic() >= self._limit:
                say("stopped", "by --time-limit; --resume continues the sweep")
                self._stop_all()
                return
            for trial in list(self._running.values()):
                self._watch(trial)
            time.sleep(_PAUSE)

    def _suggest(self, trial: Any) -> None:
        """Chooses the values that a trial does not have yet."""
        for position, dimension in enumerate(self.plan.space):
            self._study.sampler = self._sampler(trial.number, position)
            if dimension.choices:
                trial.suggest_categorical(dimension.option, dimension.choices)
            elif dimension.is_whole:
                low, high = int(dimension.low), int(dimension.high)
                trial.suggest_int(dimension.option, low, high, log=dimension.is_log)
            else:
                ends = dimension.low, dimension.high
                trial.suggest_float(dimension.option, *ends, log=dimension.is_log)

    def _words(self, number: int) -> list[str]:
        """The values of a trial as on a command line."""
        params = self._study.trials[number].params
        words = []
        for dimension in self.plan.space:
            words += dimension.flags(params[dimension.option])
        return words

    def _start(self, number: int) -> None:
        frozen = self._study.trials[number]
        asked = self._optuna.trial.Trial(self._study, frozen._trial_id)
        self._suggest(asked)  # a killed sweep may have stored only some of the values
        self._asked[number] = asked
        places = set(range(self._jobs)) - {t.device for t in self._running.values()}
        place = min(places)
        environment = {}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[place % len(self._gpus)]
        elif self._jobs > 1:
            threads = max(1, (os.cpu_count() or 1) // self._jobs)
            environment["TF_NUM_INTRAOP_THREADS"] = str(threads)
        run = self.folder / "trials" / f"{number:03}"
        words = [*self.plan.words, *self._words(number)]
        words += ["--export.no-enabled", "--train.no-final-test"]
        _wait_until_free(run)
        trial = trials.start(number, run, words, place, environment)
        trial.epochs = len(frozen.intermediate_values)
        self._running[number] = trial
        say("trial", f"{number}: {search_space.describe(asked.params)}")

    def _watch(self, trial: Trial) -> None:
        """Reads the metrics of new epochs; prunes the trial; takes its result."""
        ended = trial.process.poll() is not None
        if ended and trial.result and self._selection is None:
            metric, direction = trial.result["selection_metric"]
            self._selection = metric, direction
        # Until then, it is not known by what trials are selected.
        if self._selection is not None:
            self._read_epochs(trial, ended)
        if not ended:
            return
        del self._running[trial.number]
        self._finish(trial)

    def _read_epochs(self, trial: Trial, ended: bool) -> None:
        metric, direction = self._selection or ("", 1)
        asked = self._asked[trial.number]
        for epoch in trial.new_epochs():
            value = epoch.get(f"val_{metric}")
            if value is None or not math.isfinite(value) or trial.is_pruned:
                self._warn_of_pruning(metric, epoch)
                continue
            asked.report(-direction * value, epoch["epoch"])
            if self.plan.options.prune and not ended and asked.should_prune():
                trial.is_pruned = True
                trial.stop()

    def _warn_of_pruning(self, metric: str, epoch: Mapping[str, Any]) -> None:
        """Says, once, that epochs lack the metric by which trials are selected."""
        if f"val_{metric}" in epoch or not self.plan.options.prune or self._is_warned:
            return
        self._is_warned = True
        say(
            "note",
            f"no trial is pruned while its epochs lack {metric}, by which trials are"
            " selected; --train.evaluate-every 1 measures it in each epoch",
        )

    def _finish(self, trial: Trial) -> None:
        states = self._optuna.trial.TrialState
        result = trial.result
        self._asked[trial.number].set_user_attr("epochs", trial.epochs)
        if result and trial.process.returncode == 0:
            metric, direction = result["selection_metric"]
            if "validation" not in result:
                self._stop_all()
                raise UsageError(
                    "a sweep needs a validation split; set --data.validation"
                )
            value = result["validation"].get(metric)
            self._asked[trial.number].set_user_attr("metric", metric)
            self._asked[trial.number].set_user_attr("direction", direction)
            self._asked[trial.number].set_user_attr("value", value)
            if value is not None and math.isfinite(value):
                self._study.tell(trial.number, -direction * value)
                say("finished", f"trial {trial.number}: {metric} {value:.4f}")
                return
        if trial.is_pruned:
            self._study.tell(trial.number, state=states.PRUNED)
            epochs = pluralize(trial.epochs, "epoch")
            say("pruned", f"trial {trial.number} after {epochs}")
            return
        self._asked[trial.number].set_user_attr("error", trial.error)
        self._study.tell(trial.number, state=states.FAIL)
        say("failed", f"trial {trial.number}: {trial.error}")
        finished = [t for t in self._study.trials if t.state.is_finished()]
        if len(finished) >= _FAILURES and all(t.state == states.FAIL for t in finished):
            self._stop_all()
            raise UsageError(
                f"the first {len(finished)} trials failed, the last one with:"
                f" {trial.error}"
            )

    def _stop_all(self) -> None:
        """Ends the processes; their trials are continued by `--resume`."""
        for trial in self._running.values():
            trial.stop()
        end = time.monotonic() + _GRACE
        for trial in self._running.values():
            try:
                trial.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                trial.process.kill()
        self._running.clear()

    def _report(self) -> int:
        from pipeline.runtime import environment

        states = self._optuna.trial.TrialState
        complete = [t for t in self._study.trials if t.state == states.COMPLETE]
        if not complete:
            say("result", "no trial has finished; --resume continues the sweep")
            return 1
        environment.import_tensorflow()
        from pipeline.report import sweep_page

        best = self._study.best_trial
        run = self.folder / "trials" / f"{best.number:03}"
        values = safe_io.read_json(run / "config.json")
        defaults = command_line.request(self.plan.words).config.as_json()
        values["export"]["enabled"] = defaults["export"]["enabled"]
        values["train"]["final_test"] = True
        config = self.folder / "best.json"
        files.write_json(config, values)
        sweep_page.write(self._study, self.folder, self.plan.space)
        for line in sweep_page.table(self._study, _SHOWN).splitlines():
            print(line)
        metric, value = best.user_attrs["metric"], best.user_attrs["value"]
        values = search_space.describe(best.params)
        say_result(
            "best", f"trial {best.number}: validation {metric} {value:.4f}, {values}"
        )
        say_result("report", self.folder / sweep_page.NAME)
        say_result(
            "next",
            f"{shlex.join(['pipeline', 'fit', '--config', str(config)])}  trains the"
            " best again, and measures the test split",
        )
        return 0


def _remove_incomplete_line(journal: Path) -> None:
    """Removes the end of a line that a full disk or a crash has cut."""
    if journal.exists():
        with journal.open("rb+") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)


def _wait_until_free(run: Path) -> None:
    """Waits for the process of a killed sweep, which saves its run and ends."""
    end = time.monotonic() + _GRACE
    while run.is_dir():
        try:
            locks.require_free(run)
            return
        except UsageError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


@contextlib.contextmanager
def _terminated_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a sweep as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    run_command(main)
