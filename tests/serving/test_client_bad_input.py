"""What no model, server, file or caller can do to the client and to the command."""

import contextlib
import http.client
import io
import json
import os
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import serving
from served_models import SIDE, WIDTH, png

from pipeline import predict
from pipeline.serving import file_inputs, rest
from pipeline.serving.client import Client
from pipeline.serving.file_predictions import Question
from pipeline.serving.signatures import Field, ServingError, Signature
from pipeline.utils.errors import UsageError

IMAGES = np.random.default_rng(5).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
pytestmark = pytest.mark.usefixtures("direct")


def test_threads_may_ask_one_model_right_and_wrong(models):
    """One status for all requests ended the process: an answer that was none was read."""
    here = Client(models / "pictures/1")

    def asks(good):
        for _ in range(200):
            if good:
                assert len(here.predict(images=IMAGES)["label"]) == 3
            else:
                with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
                    here.predict(images=IMAGES[0])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(asks, (True, False, False)))


class Saying:
    """What answers each request for files with these columns, instead of a server."""

    feature_names = None

    def __init__(self, **columns):
        self.columns = columns

    def metadata(self):
        text, number = np.dtype(object), np.dtype(np.float32)
        outputs = {
            "label": Field(text, (None,)),
            "class": Field(np.dtype(np.int32), (None,)),
            "probabilities": Field(number, (None, 2)),
            "top_labels": Field(text, (None, 2)),
            "top_scores": Field(number, (None, 2)),
        }
        return {"image_bytes": Signature({"image_bytes": Field(text, (None,))}, outputs)}

    def predict(self, signature, inputs, outputs):
        return self.columns


def answering(columns):
    """A client that gets these answers."""
    client = Client("http://localhost:8501/v1/models/m")
    client._transport = Saying(**columns)
    return client


TWO = {
    "label": np.array([b"a", b"b"], object),
    "class": np.array([0, 1], np.int32),
    "probabilities": np.array([[0.75, 0.25], [0.25, 0.75]], np.float32),
    "top_labels": np.array([[b"a", b"b"], [b"b", b"a"]], object),
    "top_scores": np.array([[0.75, 0.25], [0.75, 0.25]], np.float32),
}


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ({name: column[:1] for name, column in TWO.items()}, "label is string [1] for 2 examples"),
        (
            {name: np.concatenate([column, column]) for name, column in TWO.items()},
            "label is string [4] for 2 examples, not string [?]",
        ),
        ({}, "the reply lacks the output label"),
        ({"class": np.int32([0, 7])}, "class[1] is 7, but the most probable class is 1"),
        ({"class": np.int32([0, -1])}, "class[1] is -1, but the most probable class is 1"),
        ({"class": np.int32([1, 1])}, "class[0] is 1, but the most probable class is 0"),
        ({"class": np.float32([0, 1.5])}, "class is float32 [2] for 2 examples, not int32 [?]"),
        ({"class": np.int32(0)}, "class is int32 [] for 2 examples"),
        ({"probabilities": np.float32([0.75, 0.25])}, "probabilities is float32 [2] for 2"),
        ({"probabilities": np.zeros((2, 0), np.float32)}, "probabilities is float32 [2, 0]"),
        ({"label": np.array([[b"a"], [b"b"]], object)}, "label is string [2, 1] for 2 examples"),
        ({"label": TWO["label"][::-1]}, "label[0] is 'b', but top_labels begin with 'a'"),
        ({"top_scores": np.float32([0.75, 0.25])}, "top_scores is float32 [2] for 2 examples"),
    ],
)
def test_answers_that_no_signature_gives_are_said_to_be(strange, said, workplace):
    for name in "ab":
        (workplace / f"{name}.png").write_bytes(b"x")
    asked_of = Question(answering(TWO), 2)
    assert [row["label"] for row in asked_of.answers(["a.png", "b.png"], 2)] == ["a", "b"]
    wrong = answering({**TWO, **strange} if strange else {})
    with pytest.raises(ServingError) as caught:
        list(Question(wrong, 2).answers(["a.png", "b.png"], 2))
    assert str(caught.value).startswith(f"http://localhost:8501/v1/models/m: UNKNOWN: {said}")


OK = b"HTTP/1.1 200 OK\r\n"
DROPS = {
    "body": (OK + b"\r\n", b" "),
    "header": (OK + b"x", b"y"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "refusal": (b"HTTP/1.1 500 no\r\nContent-Length: 99999\r\n\r\n", b" "),
    "chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"x"),
}


@contextlib.contextmanager
def saying(first, again):
    """The address of a server that says something, and then something else without end."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(2**16)
            with contextlib.suppress(OSError):
                self.request.sendall(first)
                while not over.wait(0.02):
                    self.request.sendall(again)

    over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/models/m"
        finally:
            over.set()
            server.shutdown()


@pytest.mark.parametrize("drops", DROPS)
def test_a_server_that_answers_in_drops_is_slow(drops):
    with saying(*DROPS[drops]) as address:
        start = time.monotonic()
        with pytest.raises(ServingError) as raised:
            Client(address, 0.3).status()
        assert time.monotonic() - start < 30, "not for ever"
    if drops == "refusal":  # that it refuses is known
        assert str(raised.value).endswith("INTERNAL: HTTP 500 no")
    else:
        assert str(raised.value).endswith("DEADLINE_EXCEEDED: no answer within 0.3 s")


def test_of_a_refusal_a_part_is_read():
    """At 50 MB/s, the first megabyte takes a fiftieth of a second, all of it ten minutes."""
    head = b"HTTP/1.1 500 no\r\nContent-Length: 30000000000\r\n\r\n"
    with saying(head, b" " * 2**20) as address, pytest.raises(ServingError, match="HTTP 500 no"):
        Client(address, 600.0).status()


def test_a_reply_that_is_cut_off_is_no_reply():
    class Cut(io.BytesIO):
        length = 5

    with pytest.raises(http.client.IncompleteRead):
        rest.whole(Cut(b"{}"), 60)


@pytest.mark.parametrize("host", ["a..b:80", f"{'a' * 70}:80", "\u202e:80", "\udcff:80"])
def test_names_that_no_address_can_have(host):
    with pytest.raises(ServingError, match="UNAVAILABLE: "):
        Client(f"http://{host}/v1/models/m").status()


@pytest.mark.parametrize("address", ["grpc://h:99999/m", "grpc://h:0/m", f"grpc://h:1/m/{10**20}"])
def test_ports_and_versions_that_there_cannot_be(address):
    serving.needs_stubs()
    with pytest.raises(UsageError, match="an address whose port and version there can be"):
        Client(address)


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ({"image/encoded": b"x"}, "an example must be a dict, .* received str"),
        ([b"x"], "received bytes"),
        ([None], "received NoneType"),
        ([{"a": 2**70}], "more than 64 bits"),
        ([{3: 1.0}], "names of features must be texts"),
        ([{"a": "\ud800"}], "no Unicode"),
        (np.array([]), "there are no examples"),
        (None, "examples must be a list of dicts, received NoneType"),
        (5, "examples must be a list of dicts, received int"),
        ([{"a": [1.5, 10**400]}], "beyond all floats"),
        ([{"\ud800": 1.0}], "names of features must be texts"),
    ],
)
def test_examples_that_are_none(models, examples, said):
    here = Client(models / "pictures/1")
    with pytest.raises(UsageError, match=said):
        here.classify(examples)


@pytest.mark.parametrize("signature", [None, [], 3])
def test_a_signature_has_a_name(models, signature):
    here = Client(models / "pictures/1")
    with pytest.raises(UsageError, match="the signature must be a name; got"):
        here.predict(signature)
    with pytest.raises(UsageError, match="the signature must be a name; got"):
        here.classify([{"image/encoded": b"x"}], signature)


def test_a_signature_of_another_kind_is_refused(models):
    with pytest.raises(ServingError, match="answers no examples with outputs; there are: none"):
        Client(models / "pictures/1").regress([{"image/encoded": b"x"}], "classify")


def test_patterns_name_a_file_once(workplace):
    for name in ("g/a.png", "g/sub/b.png"):
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        (workplace / name).write_bytes(b"x")
    assert sorted(file_inputs.named(["g/**"], file_inputs.IMAGES)) == ["g/a.png", "g/sub/b.png"]
    assert file_inputs.named(["**/b.png"], file_inputs.IMAGES) == ["g/sub/b.png"]
    assert file_inputs.named([f"{workplace}/**/*.png"], file_inputs.IMAGES) == [
        f"{workplace}/{name}" for name in ("g/a.png", "g/sub/b.png")
    ]
    assert file_inputs.named(["g/a.png", "g/a.png"], file_inputs.IMAGES) == ["g/a.png"] * 2, (
        "as it was asked"
    )


def test_links_that_lead_in_a_circle_are_followed_once(workplace):
    """40 levels of two links are 2**40 paths."""
    (workplace / "g/sub").mkdir(parents=True)
    (workplace / "g/sub/b.png").write_bytes(b"x")
    for name in ("one", "two"):
        (workplace / "g" / name).symlink_to(".")
    for pattern in ("g/**/*.png", "g/**/sub/**/*.png", "g"):
        assert file_inputs.named([pattern], file_inputs.IMAGES) == ["g/sub/b.png"]


def test_an_empty_word_names_nothing(workplace):
    with pytest.raises(UsageError, match="FILES must be names, and no empty one"):
        file_inputs.named([""], file_inputs.IMAGES)


TABLES = {
    "empty.npy": b"",
    "zip.npy": b"PK\3\4junk",
    "cut.npy": b"\x93NUMPY\1\0v\0{'descr': '<f4', 'fortran_order",
    "deep.npy": b"\x93NUMPY\1\0"
    + b"v\0"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': "
    b"(1000000000000000000000000000000, 3), }".ljust(118 - 50)
    + b"\n",
    "pickled.npy": None,
    "none.csv": b"",
    "blank.csv": b"\n\n",
    "heading.csv": b"a,b,c\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_without_rows_are_named(workplace, name):
    raw = TABLES[name]
    if raw is None:
        saved = io.BytesIO()
        np.save(saved, np.array([{"a": 1}], object), allow_pickle=True)
        raw = saved.getvalue()
    (workplace / name).write_bytes(raw)
    (item,) = file_inputs.rows([name], WIDTH)
    assert "no array of numbers" in item.error or "no rows of numbers" in item.error


NAMES = ["age", "bmi", "s 1"]


@pytest.mark.parametrize(
    ("heading", "columns", "found"),
    [
        ("age,bmi,s 1", NAMES, [1, 2, 3]),
        ("s 1, age,bmi", NAMES, [2, 3, 1]),
        ("s 1,age,bmi", None, [1, 2, 3]),
        ("s 1,age,bmi", ["0", "1", "2"], [1, 2, 3]),
        ('age, "bmi", s 1', NAMES, [1, 2, 3]),
        ("age,bmi,s 1", ["age ", "bmi", " s 1"], [1, 2, 3]),
        ("2021,2019,2020", ["2019", "2020", "2021"], [2, 3, 1]),
        ("age,bmi,s1", NAMES, "its heading is 'age, bmi, s1', and the model takes 'age, bmi, s 1'"),
        ("age,age,bmi", NAMES, "its heading is 'age, age, bmi'"),
        ("a,a,b", ["a", "a", "b"], [1, 2, 3]),
        ("a,b,a", ["a", "a", "b"], "its heading is"),
    ],
)
def test_a_heading_puts_columns_in_order_or_is_refused(workplace, heading, columns, found):
    (workplace / "a.csv").write_text(f"{heading}\n1,2,3\n")
    (item,) = file_inputs.rows(["a.csv"], 3, columns)
    if isinstance(found, str):
        assert item.error.startswith(found)
    else:
        assert item.value.tolist() == found and item.name == {"file": "a.csv", "row": 0}


@pytest.mark.parametrize("columns", [None, ["a", "b", "c", "d"]])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0,1,2,4\n1,2,3,4", [[0, 1, 2, 4], [1, 2, 3, 4]]),
        ("0,1,2,3\n1,2,3,4", [[1, 2, 3, 4]]),
        # Of so few numbers it is as likely to be a row.
        ("0,1\n1,0\n2,5", [[0, 1], [1, 0], [2, 5]]),
    ],
)
def test_of_whole_numbers_only_a_long_count_from_0_is_a_heading(workplace, text, found, columns):
    (workplace / "a.csv").write_text(text)
    assert [
        item.value.tolist() for item in file_inputs.rows(["a.csv"], len(found[0]), columns)
    ] == found


def test_rows_below_a_heading_are_counted_from_0(workplace):
    (workplace / "b.csv").write_text("s 1,bmi,age\n1,2\n1,2,3\n")
    short, whole = file_inputs.rows(["b.csv"], 3, NAMES)
    assert short.error == "it has 2 numbers, and the model takes 3" and short.name["row"] == 0
    assert whole.name["row"] == 1 and whole.value.tolist() == [3, 2, 1]


def test_digits_apart_are_no_number(workplace):
    (workplace / "a.csv").write_text("1_0,2,3\n")
    (item,) = file_inputs.rows(["a.csv"], WIDTH)
    assert item.error == "'1_0' is no number"


@pytest.fixture
def picture(workplace):
    (workplace / "p.png").write_bytes(png(IMAGES[0]))
    return workplace / "p.png"


def test_answers_do_not_take_the_place_of_a_picture(models, picture):
    raw = picture.read_bytes()
    os.symlink("p.png", "link.png")
    for output in ("p.png", "link.png"):
        with pytest.raises(UsageError, match="is one of the files that are asked about"):
            predict.main([str(models / "pictures"), "p.png", "--output", output])
    assert picture.read_bytes() == raw


def test_answers_go_through_pipes_and_links(models, picture):
    os.mkfifo("pipe")
    os.symlink("far.csv", "near.csv")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: (picture.parent / "pipe").read_text())
        assert predict.main([str(models / "pictures"), "p.png", "--output", "pipe"]) == 0
        assert json.loads(read.result())["file"] == "p.png"
    assert (picture.parent / "pipe").is_fifo()
    assert predict.main([str(models / "pictures"), "p.png", "--output", "near.csv"]) == 0
    assert os.path.islink("near.csv")
    assert (picture.parent / "far.csv").read_text().startswith("file,label,"), "by its name"
