"""How predictions are evaluated: a module for each target with its name."""
