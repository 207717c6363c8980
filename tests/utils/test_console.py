"""Tables on the console: aligned, complete, and never taken for markup."""

from pipeline.utils import console


def test_a_table_is_aligned_and_neither_wrapped_nor_interpreted():
    long = "x" * 300
    rows = [("blank", 1, "a[b]/1.png"), ("\u732b\x1b", "1,000", long), ("short",)]
    text = console.table(rows, ["reason", "n", "file"], right=[1])
    assert text.splitlines() == [
        "reason      n  file",
        "blank       1  a[b]/1.png",
        f"\u732b\\x1b  1,000  {long}",
        "short",
    ]
    assert console.table([("a", 1), ("bc", 2)]) == "a   1\nbc  2"
    assert console.table([]) == ""
