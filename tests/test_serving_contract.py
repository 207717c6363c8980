"""Signatures and operations that a released server takes."""

from types import SimpleNamespace

import pytest

from pipeline import server_operations, serving_contract
from pipeline.session import Failure


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
    assert serving_contract.check({**signatures, "__saved_model_init_op": None}, signatures)


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
        serving_contract.check(signatures, signatures)
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
    assert server_operations.check(graph(*nodes, functions=[inner])).startswith("3 kinds")


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
            server_operations.check(there)
        assert said in str(caught.value)


def test_the_list_is_of_the_released_server():
    released, installed = server_operations.released(), server_operations.installed()
    assert len(released) > 1400 and {"Conv2D", "If", "ParseExampleV2", "NoOp"} <= released
    assert "DecodeJxl" in installed - released
    assert len(released - installed) == 0, "an operation was taken out of TensorFlow: look"
