"""How predictions are shown: a module for each target with its name."""
