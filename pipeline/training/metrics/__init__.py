"""Metrics beside those of Keras and of the targets."""
