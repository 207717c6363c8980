"""Augmentations: random changes of training batches.

Each is a function of a batch and a seed for each example, and gives the same result on
every device. What happens to every example, in serving too, belongs in `tasks/inputs`.
"""
