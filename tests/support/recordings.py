"""Recordings as files."""

import io
import struct

import numpy as np
import soundfile

PCM = 1
FLOAT = 3
RATE = 8000
TONE = 5000 * np.sin(np.arange(2400) / 7)


def wav(samples, rate=8000, *, bits=16, code=PCM, extensible=False, extra=b""):
    """The content of a WAV file.

    Args:
        samples: On the scale of 16 bits, (n,) or (n, channels).
        rate: Samples per second.
        bits: Of a sample.
        code: Kind of the samples.
        extensible: Whether the kind stands in an extension of the format.
        extra: A chunk before the samples.
    """
    samples = np.asarray(samples, np.float64)
    if samples.ndim == 1:
        samples = samples[:, None]
    channels = samples.shape[1]
    data = _encode(samples, bits, code)
    size = bits // 8 * channels
    kind = 0xFFFE if extensible else code
    format = struct.pack("<HHIIHH", kind, channels, rate, rate * size, size, bits)
    if extensible:
        rest = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
        format += struct.pack("<HHIH", 22, bits, 0, code) + rest
    body = b"WAVE" + chunk(b"fmt ", format) + extra + chunk(b"data", data)
    return chunk(b"RIFF", body)


def chunk(name, content):
    """A chunk of a RIFF file, padded to an even length."""
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _encode(samples, bits, code):
    if code == FLOAT:
        return (samples / 2**15).astype(f"<f{bits // 8}").tobytes()
    whole = np.round(samples * 2.0 ** (bits - 16)).astype(np.int64)
    whole = whole.clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    octets = whole.astype("<i8")[..., None].view(np.uint8)
    return octets[..., : bits // 8].tobytes()


def compressed(kind):
    """The tone as a file of another format, such as FLAC."""
    file = io.BytesIO()
    soundfile.write(file, TONE / 2**15, RATE, format=kind)
    return file.getvalue()


def write(folder, files):
    """Writes files: name -> content."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
