"""How examples are shown: one module per input, with the same name."""
