"""What is printed with everything that a run prints with."""

from pipeline.utils import console, output, progress_bar


def printed(mode, capsys):
    """(stdout, stderr) of a line, a table, an epoch, a print and a result in a mode."""
    with output.using(mode):
        console.say("note", "a\nb")
        console.say_lines("table", "one\ntwo", metrics={"loss": float("nan")})
        progress_bar.finish("epoch 1/2", "", epoch=1)
        print("a callback of the user")
        console.say_result("test", "accuracy 1")
    return capsys.readouterr()
