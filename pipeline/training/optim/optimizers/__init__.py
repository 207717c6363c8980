"""Additional optimizers."""
