"""Additional metrics."""
