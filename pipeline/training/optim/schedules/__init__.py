"""Learning rate schedules beside those of Keras."""
