"""Loads a SavedModel with TensorFlow's C++ loader, like TensorFlow Serving.

Python TensorFlow is not imported.
The shared libraries of the installed wheel are called through their C interface
(tensorflow/c/c_api.h): `TF_LoadSessionFromSavedModel` and `TF_SessionRun` are also the
server's loader and session.
"""

import ctypes
import functools
import os
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.runtime import native_logs
from pipeline.utils import protobuf, tf_paths

INVALID_ARGUMENT = 3  # absl status code; 400 over REST
_UNIMPLEMENTED = 12
_STRING = protobuf.NUMBERS[np.dtype(object)]
_STRING_SIZE = 24  # sizeof(TF_TString)


class _Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


# Result and arguments of each function; undeclared pointers would be truncated to 32
# bits.
_FUNCTIONS = {
    "Version": (c_char_p,),
    "NewStatus": (c_void_p,),
    "DeleteStatus": (None, c_void_p),
    "GetCode": (c_int, c_void_p),
    "Message": (c_char_p, c_void_p),
    "NewGraph": (c_void_p,),
    "NewSessionOptions": (c_void_p,),
    "NewSession": (c_void_p, c_void_p, c_void_p, c_void_p),
    "LoadSessionFromSavedModel": (
        c_void_p, c_void_p, c_void_p, c_char_p, POINTER(c_char_p), c_int,
        c_void_p, c_void_p, c_void_p,
    ),
    "GraphOperationByName": (c_void_p, c_void_p, c_char_p),
    "SessionRun": (
        None, c_void_p, c_void_p, POINTER(_Output), POINTER(c_void_p), c_int,
        POINTER(_Output), POINTER(c_void_p), c_int, c_void_p, c_int, c_void_p, c_void_p,
    ),
    "AllocateTensor": (c_void_p, c_int, POINTER(c_int64), c_int, c_size_t),
    "DeleteTensor": (None, c_void_p),
    "TensorData": (c_void_p, c_void_p),
    "TensorByteSize": (c_size_t, c_void_p),
    "TensorType": (c_int, c_void_p),
    "NumDims": (c_int, c_void_p),
    "Dim": (c_int64, c_void_p, c_int),
    "StringInit": (None, c_void_p),
    "StringCopy": (None, c_void_p, c_char_p, c_size_t),
    "StringDealloc": (None, c_void_p),
    "StringGetDataPointer": (c_void_p, c_void_p),
    "StringGetSize": (c_size_t, c_void_p),
}  # fmt: skip


class ServerError(Exception):
    """An error as a client of the server would get it: a status code and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session:
    """A SavedModel loaded from a directory; raises ServerError if it cannot be."""

    def __init__(self, directory: Path) -> None:
        self._c = _library()
        status = self._c.TF_NewStatus()
        self._graph = self._c.TF_NewGraph()
        with tf_paths.literal(directory) as path:
            self._session = self._c.TF_LoadSessionFromSavedModel(
                self._c.TF_NewSessionOptions(), None, os.fsencode(path),
                (c_char_p * 1)(b"serve"), 1, self._graph, None, status,
            )  # fmt: skip
        self._check(status)
        self.signatures: Mapping[str, Any] = dict(saved_graph(directory).signature_def)

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs a signature, as for one request.

        Strings are arrays of bytes objects. Raises ServerError with the status and
        message that a client of a server would get.
        """
        definition = self.signatures[signature]
        count = len(inputs)
        names = list(definition.outputs)
        sources = (_Output * count)(
            *(self._output(definition.inputs[name].name) for name in inputs)
        )
        feeds = (c_void_p * count)(*map(self._to_tensor, inputs.values()))
        targets = (_Output * len(names))(
            *(self._output(definition.outputs[name].name) for name in names)
        )
        fetches = (c_void_p * len(names))()
        status = self._c.TF_NewStatus()  # one for each request, because of threads
        self._c.TF_SessionRun(
            self._session, None, sources, feeds, count, targets, fetches, len(names),
            None, 0, None, status,
        )  # fmt: skip
        try:
            self._check(status)
            return dict(zip(names, map(self._to_array, fetches), strict=True))
        finally:
            for tensor in (*feeds, *fetches):
                if tensor:
                    self._c.TF_DeleteTensor(tensor)
            self._c.TF_DeleteStatus(status)

    def _check(self, status: int) -> None:
        if code := self._c.TF_GetCode(status):
            raise ServerError(code, self._c.TF_Message(status).decode(errors="replace"))

    def _output(self, tensor: str) -> _Output:
        operation, _, index = tensor.partition(":")
        pointer = self._c.TF_GraphOperationByName(self._graph, operation.encode())
        if not pointer:  # running the signature would end the process
            raise KeyError(f"the graph has no operation {operation!r}")
        return _Output(pointer, int(index or 0))

    def _to_tensor(self, value: Any) -> int:
        array = np.asarray(value, order="C")
        shape = (c_int64 * array.ndim)(*array.shape)
        if array.dtype.kind in "SO":
            tensor = self._c.TF_AllocateTensor(
                _STRING, shape, array.ndim, _STRING_SIZE * array.size
            )
            data = self._c.TF_TensorData(tensor)
            for i, text in enumerate(array.ravel()):
                self._c.TF_StringInit(data + _STRING_SIZE * i)
                self._c.TF_StringCopy(data + _STRING_SIZE * i, text, len(text))
            return tensor
        code = protobuf.NUMBERS[array.dtype]
        tensor = self._c.TF_AllocateTensor(code, shape, array.ndim, array.nbytes)
        if array.nbytes:
            ctypes.memmove(
                self._c.TF_TensorData(tensor), array.ctypes.data, array.nbytes
            )
        return tensor

    def _to_array(self, tensor: int) -> np.ndarray:
        shape = [
            self._c.TF_Dim(tensor, axis) for axis in range(self._c.TF_NumDims(tensor))
        ]
        data = self._c.TF_TensorData(tensor)
        code = self._c.TF_TensorType(tensor)
        if code not in protobuf.DTYPES:
            raise ServerError(
                _UNIMPLEMENTED, f"an output has the unsupported type {code}"
            )
        if code != _STRING:
            raw = ctypes.string_at(data, self._c.TF_TensorByteSize(tensor))
            return np.frombuffer(raw, protobuf.DTYPES[code]).reshape(shape).copy()
        texts = np.empty(int(np.prod(shape)), object)
        for i in range(texts.size):
            text = data + _STRING_SIZE * i
            size = self._c.TF_StringGetSize(text)
            texts[i] = ctypes.string_at(self._c.TF_StringGetDataPointer(text), size)
        return texts.reshape(shape)


def runtime_version() -> str:
    """Returns the version of the TensorFlow that loads and runs models."""
    return _library().TF_Version().decode()


@functools.cache
def _library() -> ctypes.CDLL:
    # Not RTLD_GLOBAL: with it, importing TensorFlow afterwards would end the process.
    root = protobuf.wheel()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # only errors
    with native_logs.filter_startup():
        ctypes.CDLL(str(root / "libtensorflow_framework.so.2"))
        library = ctypes.CDLL(str(root / "libtensorflow_cc.so.2"))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, f"TF_{name}")
            function.restype = result
            function.argtypes = arguments
        # The first session logs the devices. Logs from loading a model are shown,
        # because they may be the last ones of the process.
        library.TF_NewSession(
            library.TF_NewGraph(),
            library.TF_NewSessionOptions(),
            library.TF_NewStatus(),
        )
    return library


def saved_graph(directory: Path) -> Any:
    """Returns the only graph of a SavedModel, a `MetaGraphDef`, without loading it."""
    with protobuf.importable():
        from tensorflow.core.protobuf import saved_model_pb2

    raw = (directory / "saved_model.pb").read_bytes()
    graphs = saved_model_pb2.SavedModel.FromString(raw).meta_graphs
    if len(graphs) != 1:
        raise ServerError(
            _UNIMPLEMENTED, f"saved_model.pb has {len(graphs)} graphs, not one"
        )
    return graphs[0]
