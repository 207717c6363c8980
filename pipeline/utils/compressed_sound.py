"""FLAC, MP3 and Ogg files, which the package soundfile converts to WAV at reading."""

import importlib.util
import io

from pipeline.utils.errors import UsageError

SUFFIXES = (".flac", ".mp3", ".ogg")
DAMAGED = b"damaged: no FLAC, MP3 or Ogg"
"""What `to_wav` returns for a file that it cannot convert; decoders refuse it."""


def require_soundfile(name: str) -> None:
    """Raises UsageError that names a file unless soundfile is installed."""
    if importlib.util.find_spec("soundfile") is None:
        raise UsageError(
            f"{name} needs the package soundfile: pip install soundfile, or convert the"
            " files to WAV"
        )


def to_wav(content: bytes) -> bytes:
    """The content of a WAV file of 16 bits with the same samples and rate.

    `DAMAGED` for a damaged file, so that whoever decodes it can name the file.
    """
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except soundfile.SoundFileError:
        return DAMAGED
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
