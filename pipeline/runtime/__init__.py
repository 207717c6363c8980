"""What is set up before the model is built: devices, precision, workers, signals.

Also the files of a run. It knows neither data nor networks.
"""
