"""The order in which the callbacks of every run are called."""

# The callbacks of every run before and after the checkpoint callback. Each can add to
# the logs of an epoch for the callbacks after it. The metric logger comes after the
# checkpoint callback, because it writes only what has been saved.
BEFORE_CHECKPOINT = (
    "gradient_monitor",
    "unfreeze",
    "average_weights",
    "log_learning_rate",
    "throughput",
    "time_budget",
    "terminate_on_nan",
    "evaluate_predictions",
)
AFTER_CHECKPOINT = ("metric_logger", "progress")
