"""Signatures and operations that a released server takes."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.export import operation_checks, signature_checks
from pipeline.utils.errors import Failure


def signature(inputs, outputs):
    def side(tensors):
        return {
            name: SimpleNamespace(
                dtype=dtype,
                tensor_shape=SimpleNamespace(
                    unknown_rank=False, dim=[SimpleNamespace(size=size) for size in shape]
                ),
            )
            for name, (dtype, shape) in tensors.items()
        }

    return SimpleNamespace(inputs=side(inputs), outputs=side(outputs))


GOOD = signature({"images": (4, [-1, 8, 8, 3])}, {"class": (3, [-1])})
CALL = {"inputs": (7, [-1])}


def test_a_contract_that_is_kept():
    classify = signature(CALL, {"classes": (7, [-1, 3]), "scores": (1, [-1, 3])})
    regress = signature(CALL, {"outputs": (1, [-1])})
    signatures = {"serving_default": GOOD, "classify": classify, "regress": regress}
    assert signature_checks.check({**signatures, "__saved_model_init_op": None}, signatures)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("other", signature({"keras_tensor_2": (1, [-1])}, {"y": (1, [-1])}), "keras_tensor_2"),
        ("other", signature({"x": (1, [-1])}, {"output_0": (1, [-1])}), "a name that changes"),
        ("other", signature({"x": (1, [-1])}, {"y": (19, [-1])}), "REST cannot carry"),
        ("other", signature({"x": (1, [8, 3])}, {"y": (1, [-1])}), "is not the batch: [8, 3]"),
        ("other", signature({}, {"y": (1, [-1])}), "no inputs"),
        ("classify", signature(CALL, {"classes": (7, [-1, 3])}), "classify must take and give"),
        ("regress", signature(CALL, {"outputs": (2, [-1])}), "regress must take and give"),
        ("regress", signature({"x": (7, [-1])}, {"outputs": (1, [-1])}), "in the types of that"),
    ],
)
def test_a_contract_that_is_broken(name, wrong, said):
    signatures = {"serving_default": GOOD, name: wrong}
    with pytest.raises(Failure) as caught:
        signature_checks.check(signatures, signatures)
    assert said in str(caught.value)


IMAGES, CLASSES = np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int32)
EXAMPLES = {"serving_default": {"inputs": {"images": IMAGES}, "outputs": {"class": CLASSES}}}


def test_examples_as_the_signature_tells():
    GOOD.method_name = "tensorflow/serving/predict"
    signature_checks.check_examples({"serving_default": GOOD}, EXAMPLES)


@pytest.mark.parametrize(
    ("inputs", "outputs", "method", "said"),
    [
        ({"images": (3, [-1, 8, 8, 3])}, None, "predict", "images is told to be of the type 3"),
        ({"images": (4, [-1, 16, 8, 3])}, None, "predict", "told to be [-1, 16, 8, 3], but is [2,"),
        ({"images": (4, [-1, 8, 8])}, None, "predict", "told to be [-1, 8, 8]"),
        (None, {"class": (9, [-1])}, "predict", "class is told to be of the type 9"),
        (None, {"class": (3, [-1, 50])}, "predict", "class is told to be [-1, 50]"),
        (None, {"other": (3, [-1])}, "predict", "tells of ['other'], stored are ['class']"),
        (None, None, "thing", "servers have no method 'tensorflow/serving/thing'"),
    ],
)
def test_examples_of_which_the_signature_tells_otherwise(inputs, outputs, method, said):
    told = signature(inputs or {"images": (4, [-1, 8, 8, 3])}, outputs or {"class": (3, [-1])})
    told.method_name = f"tensorflow/serving/{method}"
    with pytest.raises(Failure) as caught:
        signature_checks.check_examples({"serving_default": told}, EXAMPLES)
    assert said in str(caught.value)


def node(op, name="n", device=""):
    return SimpleNamespace(op=op, name=name, device=device)


def graph(*nodes, functions=()):
    return SimpleNamespace(node=nodes, library=SimpleNamespace(function=functions))


@pytest.mark.parametrize("device", ["", "/CPU:0", "/job:localhost/device:CPU:0", "/device:CPU:*"])
def test_operations_that_a_server_runs(device):
    inner = SimpleNamespace(
        signature=SimpleNamespace(name="mine"), node_def=[node("MatMul")], attr={}
    )
    nodes = node("Conv2D", device=device), node("NoOp"), node("mine")
    assert operation_checks.check(graph(*nodes, functions=[inner])).startswith("3 kinds")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (node("SentencepieceOp"), "no operation 'SentencepieceOp'"),
        (node("DecodeJxl"), "no operation 'DecodeJxl'"),  # in TensorFlow 2.21, not in 2.20
        (node("CudnnRNNV3"), "no operation 'CudnnRNNV3'"),  # not on a CPU
        (node("Conv2D", "c", "/device:GPU:0"), "c is pinned to /device:GPU:0"),
        (node("Conv2D", "c", "/device:CPU:1"), "c is pinned to /device:CPU:1"),
        (node("Conv2D", "c", "/job:worker/replica:0/task:0/device:gpu:3"), "c is pinned"),
    ],
)
def test_operations_that_no_server_runs(wrong, said):
    for there in (
        graph(wrong),
        graph(
            functions=[
                SimpleNamespace(signature=SimpleNamespace(name="f"), node_def=[wrong], attr={})
            ]
        ),
    ):
        with pytest.raises(Failure) as caught:
            operation_checks.check(there)
        assert said in str(caught.value)


def test_the_list_is_of_the_released_server():
    released, installed = operation_checks.released(), operation_checks.installed()
    assert len(released) > 1400 and {"Conv2D", "If", "ParseExampleV2", "NoOp"} <= released
    assert "DecodeJxl" in installed - released
    assert len(released - installed) == 0, "an operation was taken out of TensorFlow: look"


def traced(function):
    """(graph, names of its answers) as a SavedModel holds them."""
    concrete = tf.function(function, [tf.TensorSpec([None], tf.float32)]).get_concrete_function()
    return concrete.graph.as_graph_def(), [tensor.name for tensor in concrete.graph.outputs]


def aborts(x):
    tf.cond(tf.reduce_sum(x) > 7, lambda: tf.raw_ops.Abort(error_msg="x"), tf.no_op)
    return x + 1


def writes(x):
    tf.io.write_file("stolen", "x")
    return x + 1


def prints(x):
    tf.print(x, output_stream="file://stolen")
    return x + 1


def saves(x):
    tf.raw_ops.SaveV2(prefix="stolen", tensor_names=["x"], shape_and_slices=[""], tensors=[x])
    return x + 1


def restores(x):
    return x + tf.raw_ops.RestoreV2(
        prefix="other", tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32]
    )


@pytest.mark.parametrize("harmful", [aborts, writes, prints, restores])
def test_a_program_that_does_harm_is_refused(harmful):
    graph, answers = traced(harmful)
    with pytest.raises(Failure, match="it ends the server or touches its files"):
        operation_checks.check(graph, answers)


def test_only_answers_must_not_touch_checkpoints():
    """A loader restores the weights by the same operations."""
    graph, answers = traced(tf.function(saves, autograph=False))
    with pytest.raises(Failure, match="is SaveV2"):
        operation_checks.check(graph, answers)
    assert "kinds, all in" in operation_checks.check(graph, ())


def test_words_on_the_console_are_let_through():
    def tells(x):
        tf.print(x)
        return x + 1

    graph, answers = traced(tells)
    assert "kinds, all in" in operation_checks.check(graph, answers)
