"""How examples are shown: a module for each input with its name."""
