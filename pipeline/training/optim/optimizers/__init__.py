"""Optimizers beside those of Keras."""
