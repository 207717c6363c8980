"""Callbacks of every run, as a registry; users' callbacks are called after them.

Each takes a `CallbackContext`. What must happen within a step is in `optim`.
"""
