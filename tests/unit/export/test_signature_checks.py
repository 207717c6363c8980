"""Signatures and operations that a released server accepts."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference_exports
import tensorflow as tf

from pipeline.export import graph_checks, request_checks
from pipeline.serving.signatures import strings
from pipeline.utils.errors import Failure
from pipeline.utils.protobuf import DTYPES


def signature(inputs, outputs):
    def side(tensors):
        found = {}
        for name, (dtype, shape) in tensors.items():
            axes = [SimpleNamespace(size=size) for size in shape]
            shape = SimpleNamespace(unknown_rank=False, dim=axes)
            found[name] = SimpleNamespace(dtype=dtype, tensor_shape=shape)
        return found

    return SimpleNamespace(inputs=side(inputs), outputs=side(outputs))


def examples(signature):
    """Stored examples as the signature describes them."""
    return {
        side: {
            name: np.zeros(
                [abs(axis.size) for axis in tensor.tensor_shape.dim],
                DTYPES[tensor.dtype],
            )
            for name, tensor in getattr(signature, side).items()
        }
        for side in ("inputs", "outputs")
    }


IMAGES = {"images": (4, [-1, 8, 8, 3])}
CLASSES = {"class": (3, [-1])}
GOOD = signature(IMAGES, CLASSES)


def test_good_signatures_pass():
    files = signature({"image_bytes": (7, [-1])}, CLASSES)
    signatures = {"serving_default": GOOD, "image_bytes": files}
    golden = {name: examples(signature) for name, signature in signatures.items()}
    signatures["__saved_model_init_op"] = None
    detail = "2 signatures: image_bytes, serving_default"
    assert graph_checks.check_signatures(signatures, golden) == detail


Y = {"y": (1, [-1])}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("other", signature({"x": (1, [-1])}, {"y": (19, [-1])}), "REST cannot carry"),
        ("other", signature({"x": (1, [8, 3])}, Y), "is not the batch: float32 [8, 3]"),
    ],
)
def test_bad_signatures_fail(name, wrong, message):
    signatures = {"serving_default": GOOD, name: wrong}
    golden = {key: examples(each) for key, each in signatures.items()}
    with pytest.raises(Failure) as caught:
        graph_checks.check_signatures(signatures, golden)
    assert message in str(caught.value)


SIDES = examples(GOOD)


@pytest.mark.parametrize(
    ("inputs", "outputs", "golden", "message"),
    [
        (
            {"images": (3, [-1, 8, 8, 3])},
            CLASSES,
            SIDES,
            "is int32 [?, 8, 8, 3], stored is uint8 [1, 8, 8, 3]",
        ),
        (
            IMAGES,
            {"other": (3, [-1])},
            SIDES,
            "outputs are ['other'], stored are ['class']",
        ),
        (IMAGES, CLASSES, None, "stored predictions are of ['other']"),
    ],
)
def test_stored_examples_must_be_complete_and_agree(inputs, outputs, golden, message):
    model = signature(inputs, outputs)
    stored = {"serving_default": golden} if golden else {"other": SIDES}
    with pytest.raises(Failure) as caught:
        graph_checks.check_signatures({"serving_default": model}, stored)
    assert message in str(caught.value)


def node(op, name="n", device=""):
    return SimpleNamespace(op=op, name=name, device=device)


def graph(*nodes, inside=()):
    """A graph of nodes and a function that contains others."""
    signature = SimpleNamespace(name="mine")
    function = SimpleNamespace(signature=signature, node_def=inside, attr={})
    return SimpleNamespace(node=nodes, library=SimpleNamespace(function=[function]))


def test_operations_that_a_server_runs():
    nodes = node("Conv2D", device="/device:CPU:*"), node("NoOp"), node("mine")
    detail = graph_checks.check_operations(graph(*nodes, inside=[node("MatMul")]))
    assert detail.startswith("3 operations")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (node("SentencepieceOp"), "lacks operations: SentencepieceOp"),
        (node("CudnnRNNV3"), "lacks operations: CudnnRNNV3"),  # not on a CPU
        (node("Conv2D", "c", "/device:GPU:0"), "c is placed on /device:GPU:0"),
    ],
)
def test_operations_that_no_server_runs(wrong, message):
    for found in (graph(wrong), graph(inside=[wrong])):
        with pytest.raises(Failure) as caught:
            graph_checks.check_operations(found)
        assert message in str(caught.value)


def test_the_list_is_that_of_the_released_server():
    released = graph_checks.server_operations()
    assert (
        len(released) > 1400 and {"Conv2D", "If", "ParseExampleV2", "NoOp"} <= released
    )
    assert "DecodeJxl" not in released, "which is new in 2.21"


def traced(function):
    """A graph that calls the function, as a SavedModel does."""

    def served(x):
        return tf.function(function, autograph=False)(x)

    concrete = tf.function(
        served, [tf.TensorSpec([None], tf.float32)]
    ).get_concrete_function()
    return concrete.graph.as_graph_def()


def aborts(x):
    tf.cond(tf.reduce_sum(x) > 7, lambda: tf.raw_ops.Abort(error_msg="x"), tf.no_op)
    return x + 1


def saves(x):
    tf.raw_ops.SaveV2(
        prefix="stolen", tensor_names=["x"], shape_and_slices=[""], tensors=[x]
    )
    return x + 1


@pytest.mark.parametrize("harmful", [aborts, saves])
def test_a_harmful_graph_is_refused(harmful):
    with pytest.raises(Failure, match="accesses its files"):
        graph_checks.check_operations(traced(harmful))


def test_an_axis_of_any_length_may_be_longer():
    values = np.zeros((2, 5, 3), np.float32)
    fixed, free = (
        set(request_checks.malformed_arrays(values, axes)) for axes in ((), (0, 1))
    )
    assert fixed - free == {"axis 1 too long", "axis 1 empty"}
    assert {"axis 2 too long", "one axis too many", "nan"} <= free
    definition = signature({"x": (1, [-1, -1, 3])}, CLASSES)
    session = SimpleNamespace(signatures={"serving_default": definition})
    assert request_checks._free_axes(session, "serving_default", "x") == [0, 1]


@pytest.mark.parametrize(
    "content", [b"RIFF\x24\x00\x00\x00WAVE", bytes(range(128, 160))]
)
def test_garbage_in_place_of_a_file_must_be_refused(content):
    wrong = request_checks.malformed_arrays(strings([content, content]))
    assert wrong["empty string"].tolist() == [content, b""]
    assert wrong["not such a file"].tolist() == [content, b"garbage"]

    def answers_nan(x):
        return {"y": np.full(np.size(x), np.nan)}

    server = reference_exports.Server(answers_nan)
    ((_, check),) = request_checks.refusal_checks(
        server, "s", {"x": strings([content])}
    )
    with pytest.raises(Failure, match="the model answered"):
        check()


@pytest.mark.parametrize("text", ["a sentence", "größer\n\tals 1"])
def test_any_text_may_be_valid(text):
    assert request_checks.malformed_strings(text.encode()) == {}
