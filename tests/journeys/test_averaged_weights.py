"""A run with averaged weights, however short it is."""

from pipeline.fit import fit


def test_the_average_of_a_short_run_is_as_good_as_the_last_weights(workplace):
    """A constant momentum of 0.999 would keep 90% of the first weights after 100
    steps.
    """
    losses = [
        fit(
            "digits",
            train={"steps": 100, "ema": momentum},
            data={"validation": 0.2},
            export={"enabled": False},
        ).history["val_loss"][-1]
        for momentum in (None, 0.999)
    ]
    assert losses[1] < 1.2 * losses[0]
