"""Training that other people's clusters start: Ray.

What a worker does once it runs is in `runtime` and `training`, the same as anywhere.
"""
