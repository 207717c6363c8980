"""Tables as CSV: six digits, quotes where they are needed."""

import csv
import io

from pipeline.utils.columns import Columns


def test_a_file_has_the_texts_of_the_values():
    columns = Columns(
        file=["a, b.jpg", 'say "x"', "c"],
        number=[1 / 3, 1e-12, -0.0],
        count=[1, -2, 10**9],
        correct=[True, False, True],
        mixed=[None, 0.123456789, "two\nlines"],
    )
    lines = [
        "file,number,count,correct,mixed",
        '"a, b.jpg",0.333333,1,True,None',
        '"say ""x""",1e-12,-2,False,0.123457',
        'c,-0,1000000000,True,"two\nlines"',
    ]
    assert columns.csv().decode() == "\n".join(lines) + "\n"
    rows = list(csv.reader(io.StringIO(columns.csv().decode())))
    assert rows[1:] == columns.rows()


def test_a_name_that_is_no_text_is_escaped():
    assert Columns(file=["\udcff"]).csv() == b"file\n\\udcff\n"
