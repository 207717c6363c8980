"""Evaluation: metrics, calibration, significance tests, attribution.

It measures networks and exported versions alike. Metrics, calibration and tables of
predictions are those of the target, in `targets`; `report` shows them.
"""
