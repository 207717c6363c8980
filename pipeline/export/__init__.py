"""The SavedModel of a run: written, checked in another process, and published.

The checks import nothing but NumPy, protobuf and google-crc32c. What talks to a
published version belongs in `serving`.
"""
