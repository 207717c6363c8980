"""Keras layers and parts of networks that several models use.

A network that can be selected by name belongs in `models`.
"""
