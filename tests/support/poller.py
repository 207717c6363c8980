"""Loads each version of a model the moment it appears, as a server in a hurry would.

`python poller.py MODEL` says "watching", then tells of each version: its number, how it came, what
went wrong with it; all in lines of JSON. A folder `.told` is answered with "told". The kernel tells
of every name in the folder, however short it was there: inotify(7).
"""

import ctypes
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np

from pipeline.export.proof import GOLDEN, read_golden
from pipeline.serving.savedmodel_session import Session
from pipeline.utils import files

_MOVED_TO, _CREATE = 0x80, 0x100
_EVENT = struct.Struct("iIII")


def names(folder):
    """(kind, name) of all that comes into a folder from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_CLOEXEC)
    if libc.inotify_add_watch(handle, os.fsencode(folder), _MOVED_TO | _CREATE) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print(json.dumps("watching"), flush=True)
    while True:
        raw, at = os.read(handle, 65536), 0
        while at < len(raw):
            _, kind, _, length = _EVENT.unpack_from(raw, at)
            at += _EVENT.size + length
            yield kind, os.fsdecode(raw[at - length : at].rstrip(b"\0"))


def wrong(version):
    """What a server and its clients would complain of."""
    try:
        session = Session(version)
        for signature, sides in read_golden(version / GOLDEN).items():
            answers = session.run(signature, sides["inputs"])
            for name, wanted in sides["outputs"].items():
                exact = wanted.dtype.kind != "f"
                same = np.array_equal if exact else lambda a, b: np.allclose(a, b, atol=1e-5)
                if not same(answers[name], wanted):
                    return f"{signature} {name}: other answers"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(model):
    for kind, name in names(model):
        if files.is_version(name):
            how = "renamed" if kind & _MOVED_TO else "made in its place"
            told = {"version": int(name), "how": how, "error": wrong(model / name)}
            print(json.dumps(told), flush=True)
        elif name == ".told" and kind & _CREATE:
            print(json.dumps("told"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
