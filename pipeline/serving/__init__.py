"""Clients and tools for exported models: requests, signatures, the repository.

It does not import Python TensorFlow, except where it builds signatures for an export.
"""
