"""Additional losses."""
