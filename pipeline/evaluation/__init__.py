"""What a trained model is worth: metrics, calibration, tests of differences, causes.

It measures networks and exported versions alike. Which metrics there are is
up to the task; `report` shows them.
"""
