"""The two training loops: Keras's `fit` and a GradientTape loop.

Both use the same step, so that their weights are equal bit by bit.
"""
