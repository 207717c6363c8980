"""Networks: one file for each network or family of networks.

A function from inputs to features; the task adds the output layer. What several of them
use belongs in `layers`.
"""
