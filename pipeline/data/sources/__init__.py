"""Sources of examples: one file for each format on disk.

A source describes its fields and yields raw examples with their ids. What several
sources share, such as files or annotations of boxes, is in `data`.
"""
