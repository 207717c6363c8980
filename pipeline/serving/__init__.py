"""Everything that talks to an exported model: clients, requests, the repository.

It does not import Python TensorFlow, except where it builds signatures for an export.
"""
