"""How Python handles signals at its start."""

import contextlib
import signal


@contextlib.contextmanager
def default_handlers():
    """As in a terminal: under `nohup`, or in the background of a shell, signals are
    ignored.
    """
    usual = {
        signal.SIGINT: signal.default_int_handler,
        **dict.fromkeys((signal.SIGHUP, signal.SIGTERM), signal.SIG_DFL),
    }
    before = {
        number: signal.signal(number, handler) for number, handler in usual.items()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
