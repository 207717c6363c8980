"""Signals and time limits: training stops after the call, saves, and can be resumed."""

import contextlib
import ctypes
import itertools
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import signal_handlers

from pipeline.config import registry
from pipeline.config.formats import parse_duration
from pipeline.runtime import signals
from pipeline.runtime.signals import StopSignals
from pipeline.training.callbacks.time_budget import TimeBudget
from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.utils import output, progress_bar
from pipeline.utils.errors import Terminated, UsageError


@pytest.fixture(autouse=True)
def default_handlers():
    with signal_handlers.default_handlers():
        yield


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("1h30min", 5400), ("1.5s", 1.5)]
)
def test_durations_are_parsed(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "10", "0s", "1m1h"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError):
        parse_duration(text)


def test_a_signal_waits_for_the_end_of_the_call():
    given = StopSignals()
    with given.listening(), pytest.raises(Terminated), given.defer():
        assert given.reason() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert given.reason() == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


SIGNALS = [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]


@pytest.mark.parametrize(
    ("number", "raised"),
    [*SIGNALS, (signal.SIGHUP, Terminated), (signal.SIGUSR1, Terminated)],
)
def test_a_signal_outside_of_training_raises_at_once(number, raised):
    given = StopSignals()
    with given.listening(), pytest.raises(raised):
        os.kill(os.getpid(), number)
        pytest.fail("nothing was raised")


@pytest.mark.parametrize(("number", "raised"), SIGNALS)
def test_an_error_caused_by_a_signal_does_not_hide_it(number, raised):
    """Tracing fails in its own way when it is interrupted, and pybind11 loses the
    exception.
    """
    with pytest.raises(raised), StopSignals().listening():
        with contextlib.suppress(raised):
            os.kill(os.getpid(), number)
        raise RuntimeError("MISMATCH of original and normalized active exception types")
    with pytest.raises(RuntimeError), StopSignals().listening():
        raise RuntimeError("another error")


def test_a_signal_in_a_finalizer_is_not_lost():
    """Where Python ignores exceptions, and prints them."""

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    with StopSignals().listening(), pytest.raises(Terminated):
        Finalized()
        threading.Event().wait(20)


def test_a_handler_of_ones_own_for_sigusr1_stays():
    received = []
    signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with StopSignals().listening():
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert received == [signal.SIGUSR1]


def test_a_second_sigterm_ends_the_process():
    child = os.fork()
    if child == 0:
        given = StopSignals()
        with given.listening(), given.defer():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


def test_a_signal_ends_a_call_of_native_code_where_nothing_is_left_to_save():
    given = StopSignals()
    with given.listening():
        with given.at_once():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)


def test_what_a_second_signal_does_is_restored_after_native_code():
    given = StopSignals()
    with given.listening():
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGHUP)
        with given.at_once():
            pass
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_handlers_that_native_code_replaces_are_installed_again(number):
    """As TensorFlow does for SIGTERM when it creates the strategy of
    several workers.
    """
    libc, given = ctypes.CDLL(None), StopSignals()
    with (
        given.listening(),
        contextlib.suppress(Terminated, KeyboardInterrupt),
        given.defer(),
    ):
        with signals.keep_handlers():
            # Native code may hold Python's lock: the signal ends the process.
            assert signal.getsignal(number) is signal.SIG_DFL
            libc.signal(int(number), ctypes.c_void_p(signal.SIG_IGN))
        os.kill(os.getpid(), number)
        assert given.reason() == number.name


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.keep_handlers():
        ctypes.CDLL(None).signal(int(signal.SIGHUP), ctypes.c_void_p(signal.SIG_DFL))
    os.kill(os.getpid(), signal.SIGHUP)


def test_in_another_thread_no_handler_is_installed():
    def work():
        with signals.keep_handlers():
            done.append(True)

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def among(stops, predictions):
    """The reason of the first of several workers, the others answering with these
    numbers.
    """
    rest = iter(predictions)
    return stops.reason(lambda own: (own + next(rest)) / 2)


def test_the_time_of_one_worker_is_up_for_all(monkeypatch):
    """Clocks differ: no worker may take the end of the time for a signal."""
    now = clock(monkeypatch)
    given = StopSignals("10m")
    assert among(given, [0.0]) is None
    assert among(given, [1.0, 0.0]) == "time", "another worker's time is up"
    assert among(given, [1.0, 1.0]) == "another worker", "another worker has a signal"
    now[0] = 601.0
    assert among(given, [0.0, 0.0]) == "time"
    assert among(given, [1.0, 1.0]) == "another worker", (
        "its signal ends the run here, too"
    )


def test_a_signal_is_the_reason_even_if_the_time_is_up(monkeypatch):
    now = clock(monkeypatch)
    given = StopSignals("10m")
    now[0] = 601.0
    with given.listening(), pytest.raises(Terminated), given.defer():
        os.kill(os.getpid(), signal.SIGTERM)
        assert among(given, [0.0, 0.0]) == "SIGTERM"
        assert among(given, [1.0, 0.0]) == "SIGTERM"


def clock(monkeypatch):
    """A clock of the process that a test sets: a list of one number."""
    now = [0.0]
    for module in (
        "pipeline.training.callbacks.time_budget",
        "pipeline.runtime.signals",
    ):
        monkeypatch.setattr(f"{module}.time.monotonic", lambda: now[0])
    monkeypatch.setattr(output, "_entered", [output.Console()])  # not other tests'
    return now


def test_the_clock_includes_resumes_and_keeps_a_reserve(monkeypatch):
    now, given = clock(monkeypatch), StopSignals("10m", reserve=50)
    given.resume(elapsed=300)
    now[0] += 200
    assert (
        given.seconds_elapsed == 500
        and given.seconds_left == 50
        and given.reason() is None
    )
    now[0] += 50
    assert given.reason() == "time"
    given.reserve = 10_000  # never more than three quarters
    assert given.seconds_left == 150 - 550
    assert StopSignals().seconds_left is None


def context_of(stops, exports=False, last_step=100):
    """What `TimeBudget` needs of a `CallbackContext`."""
    steps = SimpleNamespace(batch_size=10, last_step=last_step, steps_per_epoch=10)
    return SimpleNamespace(
        stops=stops,
        batches=steps,
        evaluated=1000,
        exports=exports,
        time_limit="4m",
        is_chief=True,
    )


def budget_of(context, step):
    """The callback of a new process where a run stands."""
    budget = TimeBudget(context)
    optimizer = SimpleNamespace(iterations=SimpleNamespace(numpy=lambda: step.position))
    budget.set_model(SimpleNamespace(step=step, optimizer=optimizer))
    return budget


def pace_of(rate=None):
    """Where a run begins."""
    rate = rate or AdjustableRate(
        registry.load("schedules", "linear")(1.0, 100), paced=True
    )
    return SimpleNamespace(position=0, traces=0, update=rate)


def test_the_reserve_is_what_the_rest_will_take(monkeypatch):
    """Opening and decoding the data say nothing about it."""
    now = clock(monkeypatch)
    given = StopSignals("10m")
    for name, seconds in (
        ("opening", 10.0),
        ("building", 90.0),
        ("tracing", 3.0),
        ("timing", 2.0),
    ):
        now[0] += seconds
        progress_bar.begin(name)
    for export, expected in ((True, 2.2 * 10 + 1.5 * 5), (False, 5 + 5)):
        step = pace_of()
        budget = budget_of(context_of(given, exports=export), step)
        budget.on_train_begin()
        assert given.reserve == pytest.approx(expected)
    for seconds, traces in ((50.0, 1), (0.5, 1)):  # the call that traces says nothing
        budget.on_train_batch_begin(0)
        now[0] += seconds
        step.position, step.traces = step.position + 5, traces
        budget._reserve()
        expected = 10.0 if seconds == 50.0 else 10.0 + 1000 * 0.5 / 50 / 2
        assert given.reserve == pytest.approx(expected)


def test_a_limit_without_time_to_train_is_refused(monkeypatch):
    now = clock(monkeypatch)
    given = StopSignals("4m")
    now[0] += 121.0  # three quarters of the limit are reserved for the end
    budget = budget_of(context_of(given, exports=True), pace_of())
    with pytest.raises(UsageError, match="time-limit 4m leaves no time.* set at least"):
        budget.on_train_begin()


def paced(given, rate, step, last=100):
    """A new process that paces a run where it stands."""
    budget = budget_of(context_of(given, last_step=last), step)
    budget.on_train_begin()
    given.reserve = 0.0
    return budget


def test_a_longer_limit_continues_the_schedule(monkeypatch):
    now = clock(monkeypatch)
    rate = AdjustableRate(registry.load("schedules", "linear")(1.0, 10_000), paced=True)
    rate.pace.assign([300.0, 10_000.0, 0.0])  # with the shorter limit, it had ended
    step, given = (
        SimpleNamespace(position=300, traces=0, update=rate),
        StopSignals("240s"),
    )
    given.resume(60.0)
    now[0] += 20.0  # it starts
    budget = paced(given, rate, step, 10_000)
    rates = []
    while given.seconds_left > 0:
        rates.append(float(rate(step.position + 9)))
        budget.on_train_batch_begin(0)
        budget._has_called = True
        now[0] += 0.5
        step.position += 10
        budget._pace()
    assert rates[0] > 0.5 and rates[-1] < 0.05, (
        "at 80 of 240 seconds a third of it is over"
    )
    assert all(b < a + 1e-6 for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize(("seconds", "steps"), [(0.5, 100), (1.0, 55), (2.0, 30)])
def test_a_schedule_ends_with_the_time(monkeypatch, seconds, steps):
    """100 steps in 60 seconds, of which each takes `seconds`: from 1 to 0 in a straight
    line.
    """
    now, given = clock(monkeypatch), StopSignals("60s")
    rate = AdjustableRate(registry.load("schedules", "linear")(1.0, 100), paced=True)
    step = SimpleNamespace(position=0, traces=0, update=rate)
    budget = paced(given, rate, step)
    rates = []
    while given.seconds_left > 0 and step.position < 100:
        rates.append(float(rate(step.position)))
        budget.on_train_batch_begin(0)
        budget._has_called = True
        # The first call traces; later ones take 5 steps, of which the schedule is told
        # afterwards.
        count = 5 if rates[1:] else 1
        now[0] += 5.0 if count == 1 else seconds * count
        step.position += count
        budget._pace()
    assert rates == sorted(rates, reverse=True) and rates[0] == 1.0
    assert 0.0 <= float(rate(step.position)) < 0.05 and step.position <= 101
    assert abs(step.position - steps) <= 6
