"""The gradient update: optimizer, learning rate, clipping, accumulation, averages.

All of it is computed once for all replicas, without Keras's own clipping, accumulation
and averages, which differ under a strategy.
"""
