"""How predictions are shown: one module per target, with the same name."""
