"""From examples on disk or in memory to batches on the device.

It decodes, caches, splits, orders and batches examples of any source. What the fields
of an example mean for a network, such as its labels, belongs in `tasks`.
"""
