"""What a trained model is worth: metrics, calibration, tests of differences, causes.

It measures networks and exported versions alike. Metrics, calibration and tables of
predictions are those of the target, in `targets`; `report` shows them.
"""
