"""Launching training on external clusters (Ray).

What a worker does once it runs is in `runtime` and `training`, the same as anywhere.
"""
