"""From a command line or a call to a `Config`: options, their checks, help and errors.

It imports neither TensorFlow nor NumPy, so it knows options and names but neither data
nor Keras: what reads data is in `data`, what inspects a user's model in `training`.
"""
