"""Runtime setup: devices, precision, workers, signals.

Also the files of a run. It knows neither data nor networks.
"""
