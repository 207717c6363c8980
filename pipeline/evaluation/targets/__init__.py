"""How predictions are evaluated: one module per target, with the same name."""
