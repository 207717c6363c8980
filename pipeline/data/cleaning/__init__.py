"""Finds examples to exclude: damaged, duplicate, labeled twice, or in two splits.

What needs predictions, such as labels that are probably wrong, is in `evaluation`.
"""
