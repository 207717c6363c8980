"""Signals and time limits, which end training early between two calls."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pipeline.config.formats import parse_duration
from pipeline.utils.errors import Terminated, UsageError

TIME = "time"
ELSEWHERE = "another worker"
_AGAIN = 0.1  # seconds until a signal that could not be handled is repeated
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)


class Stopped(Exception):
    """Raised when training ended early and everything was saved.

    `reason` is from `StopSignals.reason`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StopSignals:
    """Tells whether training should stop after the current call, and why.

    SIGTERM, SIGHUP (the terminal was closed), SIGUSR1 (Slurm's warning before the time
    limit of a job) and Ctrl-C raise `Terminated` and KeyboardInterrupt at once, but
    within `defer` they only set a flag that is read after the call. A second SIGTERM or
    Ctrl-C ends the process at once; nothing is damaged, as all writes are atomic.

    `limit` is the time limit of the run over all its processes, such as `1h30m`.
    `reserve` are the seconds of it, at most three quarters, that are kept for the work
    after training.
    """

    def __init__(self, limit: str | None = None, reserve: float = 0.0) -> None:
        self.start = time.monotonic()
        """When this process began."""
        self.limit = None if limit is None else parse_duration(limit)
        self.reserve = reserve
        self._before = 0.0
        self._trained = False
        self._signal: int | None = None
        self._second: dict[int, Any] = {}
        self._is_deferred = False
        self._is_raised = False

    @property
    def seconds_elapsed(self) -> float:
        """Seconds of this run so far, in all its processes."""
        return self._before + time.monotonic() - self.start

    @property
    def has_begun(self) -> bool:
        """Whether training has begun."""
        return self._trained

    def resume(self, elapsed: float) -> None:
        """Adds the time that the run took before it was resumed."""
        # If this is another attempt, its time already counts.
        if not self._trained:
            self._before = elapsed

    @property
    def seconds_left(self) -> float | None:
        """Seconds left for training; None without a limit."""
        if self.limit is None:
            return None
        return self.limit - min(self.reserve, 0.75 * self.limit) - self.seconds_elapsed

    def require_time(self, stage: str) -> None:
        """Raises UsageError if the time limit is over before training."""
        if self.limit is not None and self.seconds_elapsed >= self.limit:
            raise UsageError(
                f"--runtime.time-limit is over before training: {stage} ended after"
                f" {self.seconds_elapsed:.0f} s; set a longer one"
            )

    def reason(self, agreed: Callable[[float], float] = float) -> str | None:
        """Why training should stop now; None if it should not.

        Returns the name of a signal, `time` or `another worker`. `agreed`
        returns the mean of a number over all workers, which must stop after the same
        call. A signal to any worker stops all; the time is up for all workers when it
        is up for any of them.
        """
        number = self._signal
        is_over = self.seconds_left is not None and self.seconds_left <= 0
        if not agreed(float(number is not None or is_over)):
            return None
        if not agreed(float(number is not None)):
            return TIME
        return ELSEWHERE if number is None else signal.Signals(number).name

    def request(self, number: int) -> None:
        """Stops training after the current call, as this signal would.

        For a thread that gets the request another way. Outside of `defer`,
        training does not begin.
        """
        self._signal = number

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals inside; only in the main thread, as Python requires."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # Signals that are ignored stay ignored, as under nohup or in the background
            # of a shell. SIGUSR1 may mean something else to the program around a run.
            is_used = number == signal.SIGUSR1 and handler is not signal.SIG_DFL
            if handler is not signal.SIG_IGN and not is_used:
                before[number] = handler
        self._second = dict.fromkeys(before, signal.SIG_DFL)
        if signal.SIGINT in before:
            self._second[signal.SIGINT] = signal.default_int_handler
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        except Exception:
            # Code that a signal interrupts, such as TensorFlow's tracing, may raise
            # another exception.
            if self._is_raised:
                self.check()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def defer(self) -> Iterator[None]:
        """Defers signals until `reason` is read; raises an unread signal at the end."""
        self.check()  # Python ignores exceptions of signals in a finalizer
        self._is_deferred = True
        self._trained = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.check()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets signals end the process even in native code, when nothing is unsaved."""
        before = {number: signal.getsignal(number) for number in self._second}
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raises the exception of an earlier signal."""
        if self._signal is not None:
            raise _exception(self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_deferred and _is_finalizer(frame):
            # Python would ignore the exception.
            threading.Timer(_AGAIN, os.kill, (os.getpid(), number)).start()
            return
        self._signal = number
        for other_number, handler in self._second.items():
            signal.signal(other_number, handler)
        if not self._is_deferred:
            self._is_raised = True
            raise _exception(number)


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Lets signals end the process at once, and installs Python's handlers again
    afterwards; for code that waits and replaces handlers in C.

    The first MultiWorkerMirroredStrategy of a process waits for the other workers with
    Python's lock held, so no handler of Python would run. It also replaces the handler
    of SIGTERM: TensorFlow's tells its own listeners, of which there are none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: it was not installed by Python
                signal.signal(number, handler)


def behind(error: BaseException | None) -> BaseException | None:
    """Returns the exception of a signal that led to an error; None if none did."""
    while error is not None and not isinstance(error, KeyboardInterrupt | Terminated):
        error = error.__context__
    return error


def _is_finalizer(frame: FrameType | None) -> bool:
    """Whether a `__del__` is running."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
