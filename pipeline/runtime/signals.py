"""Why training ends before its time: a signal, or a limit; heard between two calls."""

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pipeline.config.formats import parse_duration
from pipeline.utils.errors import Terminated

TIME = "time"
ELSEWHERE = "another worker"
_AGAIN = 0.02  # seconds after which a signal that nothing has felt strikes once more
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stopped(Exception):
    """Training ended after a call, and everything was saved; `reason` is that of `Stops`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Stops:
    """Says whether the call that has just ended was the last one, and why.

    SIGTERM, SIGHUP (the terminal is closed) and Ctrl-C raise `Terminated` and KeyboardInterrupt
    where they strike; within `deferred` they only set a mark that is read after the call. A second
    SIGTERM kills and a second Ctrl-C interrupts at once: all is written beside and renamed, so
    nothing is damaged.

    Args:
        limit: What the run may take over all its resumes, as `seconds` reads it; None: for ever.
        reserve: Seconds of these that are kept for what comes after training; half at most.
    """

    def __init__(self, limit: str | None = None, reserve: float = 0.0) -> None:
        self._start = time.monotonic()
        self._limit = None if limit is None else parse_duration(limit)
        self.reserve = reserve
        self._before = 0.0
        self._trained = False
        self._signal: int | None = None
        self._second: dict[int, Any] = {}
        self._deferred = self._has_struck = False
        self._again: threading.Timer | None = None
        self._shown = sys.unraisablehook

    @property
    def elapsed(self) -> float:
        """Seconds of this run so far, in all its processes."""
        return self._before + time.monotonic() - self._start

    @functools.cached_property
    def preparation(self) -> float:
        """Seconds of this process until it was first asked: before its training began."""
        return time.monotonic() - self._start

    def resume(self, elapsed: float) -> None:
        """Counts what the run took before it was resumed."""
        if not self._trained:  # else it is another try of this process, whose time is counted
            self._before = elapsed

    @property
    def over(self) -> float:
        """Seconds beyond the limit; 0 without one."""
        return 0.0 if self._limit is None else max(0.0, self.elapsed - self._limit)

    @property
    def left(self) -> float | None:
        """Seconds left for training; None without a limit."""
        if self._limit is None:
            return None
        return self._limit - min(self.reserve, self._limit / 2) - self.elapsed

    def time_is_up(self, agreed: Callable[[float], float] = float) -> bool:
        """Whether no time is left for training, of any worker."""
        return agreed(float(self.left is not None and self.left <= 0)) > 0

    def reason(self, agreed: Callable[[float], float] = float) -> str | None:
        """`SIGTERM`, `SIGHUP`, `SIGINT`, `time` or `another worker`, where training is to end now.

        Args:
            agreed: The mean of a number over all workers, who must end after the same call.
        """
        own = None
        if self._signal is not None:
            own = signal.Signals(self._signal).name
        elif self.left is not None and self.left <= 0:
            own = TIME
        asked = agreed(float(own is not None))
        return own or (ELSEWHERE if asked else None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the signals over. Only the main thread of a process may; others change nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.getsignal(n) for n in _SIGNALS}
        # Whoever started us deaf to a signal (a shell its background job) wants us so.
        heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
        self._second = dict.fromkeys(heard, signal.SIG_DFL)
        if signal.SIGINT in heard:
            self._second[signal.SIGINT] = signal.default_int_handler
        for number in heard:
            signal.signal(number, self._handle)
        self._shown, sys.unraisablehook = sys.unraisablehook, self._unraised
        try:
            yield
        except Exception as error:
            if stop := behind(error):
                raise stop from None
            if self._has_struck:  # and what it raised was lost on the way, see `_exception`
                raise _exception(self._signal) from None
            raise
        finally:
            sys.unraisablehook = self._shown
            if self._again is not None:
                self._again.cancel()
            for number in heard:
                signal.signal(number, before[number])

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait for `reason` to be read; one that nobody has read is raised at the end."""
        self._deferred = self._trained = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Signals end the process even within a call of native code, which Python's own handlers
        wait for; where nothing is left to save."""
        for number in self._second:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            for number in self._second:
                signal.signal(number, self._handle)

    def check(self) -> None:
        """Raises what an earlier signal asks for."""
        if self._signal is not None:
            raise _exception(self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        for each, handler in self._second.items():
            signal.signal(each, handler)
        if not self._deferred:
            self._has_struck = True
            raise _exception(number)

    def _unraised(self, what: Any) -> None:
        """Called by Python in place of raising what a finalizer or such a callback has raised.

        Most imports and each tracing have some: a signal that strikes there ends nothing.
        """
        if behind(what.exc_value) is None:
            self._shown(what)
            return
        for each in self._second:
            signal.signal(each, self._handle)
        self._again = threading.Timer(_AGAIN, self._strike)
        self._again.daemon = True
        self._again.start()

    def _strike(self) -> None:
        signal.pthread_kill(threading.main_thread().ident, self._signal)


def behind(error: BaseException | None) -> BaseException | None:
    """What a signal raised, if this error is that or has come of it; None for any other.

    A signal strikes anywhere. What it tears open may raise an error of its own, which then hides
    it: TensorFlow's tracing says "AssertionError: Concurrent access?" (tf_stack.py).
    """
    while error is not None and not isinstance(error, KeyboardInterrupt | Terminated):
        error = error.__context__
    return error


def _exception(number: int) -> BaseException:
    # May be lost where C++ calls Python: of one that strikes while TensorFlow makes an error of its
    # own, pybind11 makes a RuntimeError that knows of no other ("MISMATCH of original ...").
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
