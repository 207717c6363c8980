"""Additional learning rate schedules."""
