"""Sound: recordings in WAV files, as spectrograms or waveforms."""

import functools
import io
import math
import wave
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Input,
    Metadata,
    Request,
    ServingInput,
    Source,
    TrainingExamples,
)
from pipeline.data import audio_decoding
from pipeline.data.log_mel import frames_of, log_mel
from pipeline.serving import request_guards
from pipeline.utils import compressed_sound
from pipeline.utils.errors import UsageError, reason

_MAX_RATE = 16_000  # that is chosen; speech has little above half of it
_MAX_QUANTILE = 0.99  # of the recordings, which are not cut
_MARGIN = 1.5  # of the longest recording beyond them, none is cut up to it
_MAX_SECONDS = 30.0
SAMPLE_SCALE = 2.0**-15


@register
def audio(
    info: Info | Metadata,
    *,
    field: str = "audio",
    suffixes: tuple[str, ...] = (".wav", ".flac", ".mp3", ".ogg"),
    rate: Annotated[int, (1000, 48000)] | None = None,
    seconds: Annotated[float, (0.01, 600)] | None = None,
    bands: Annotated[int, (1, 256)] = 40,
    center: Literal["recording", "band"] = "recording",
    raw: bool = False,
) -> Input:
    """Recordings in WAV files of any length and rate, averaged to mono.

    The model gets the logarithms of the power in bands of the mel scale, `spectrogram`,
    for windows of 25 ms every 10 ms, and `mask`, which is 0 for windows after the end.
    Zeros at the end of a recording are padding.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        suffixes: The files of a directory that are recordings.
        rate: Samples per second to convert recordings to; None: the rate of most
            training recordings, at most 16000.
        seconds: Length of the recordings; longer ones are cut at their end. None: that
            of 99% of the training recordings, or of all if the longest is little
            longer, at most 30 s.
        bands: Bands of the spectrogram.
        center: What has mean 0: the spectrogram of a `recording`, or each `band` of it,
            for words of speakers or microphones that are not in the training data;
            sounds that do not change over time then become indistinguishable.
        raw: Give the model the waveform, from -1 to 1.

    Raises:
        UsageError: The field is missing or has another type.
    """
    if not isinstance(info, Info):
        return AudioInput(info)
    spec = info.field(field)
    if spec.dtype != tf.string or spec.shape.rank != 0:
        raise UsageError(
            f"{field}: recordings must be the contents of WAV files; got"
            f" {spec.dtype.name} of shape {spec.shape}"
        )
    metadata: dict[str, Any] = {"bands": bands}
    if rate is not None:
        metadata["rate"] = rate
    if seconds is not None:
        metadata["seconds"] = seconds
    if field != "audio":
        metadata["input_field"] = field
    if center == "band":
        metadata["center"] = center
    if raw:
        metadata["raw"] = True
    return AudioInput(metadata)


class AudioInput(Input):
    """Decoded examples have `audio`, int16 (samples,), filled with zeros."""

    not_decoded = frozenset({"audio_notes", "bands", "center", "raw"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self._field = metadata.get("input_field", "audio")
        self.bands = int(metadata.get("bands", 1))
        rate = int(metadata.get("rate", _MAX_RATE))
        self.frames = frames_of(rate, float(metadata.get("seconds", 1.0)))

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns rate and length from the headers of the files, if they are open."""
        if {"rate", "seconds"} <= self.metadata.keys():
            return {}
        rates: Counter[int] = Counter()
        lengths: list[float] = []
        problem = "there is none"
        read_header = _header_reader()
        for batch in examples.batches():
            for content in batch[self._field]:
                try:
                    header = read_header(tf.constant(content, tf.string))
                except tf.errors.InvalidArgumentError as error:
                    problem = reason(error)
                    continue  # `decode` reports it
                rates[int(header.rate)] += 1
                lengths.append(int(header.frames) / int(header.rate))
        if not lengths:
            raise UsageError(
                f"{self._field}: no training file can be read; the last one: {problem}"
            )
        rate, rate_note = self._choose_rate(rates)
        seconds, length_note = self._choose_length(np.array(lengths))
        notes = {"rate": rate_note, "length": length_note}
        return {"rate": rate, "seconds": seconds, "audio_notes": notes}

    def _choose_rate(self, rates: Counter[int]) -> tuple[int, list[str]]:
        ((most, count),) = rates.most_common(1)
        if "rate" in self.metadata:
            rate = int(self.metadata["rate"])
            return rate, [f"{rate:,} Hz", "requested"]
        rate = min(most, _MAX_RATE)
        share = _share(count / rates.total())
        reason = f"as {share} have"
        if rate < most:
            reason = f"{share} have {most:,} Hz; speech has little above {rate // 2:,}"
        return rate, [f"{rate:,} Hz", reason]

    def _choose_length(self, lengths: np.ndarray) -> tuple[float, list[str]]:
        longest = float(lengths.max())
        if "seconds" in self.metadata:
            seconds = float(self.metadata["seconds"])
        else:
            usual = float(np.quantile(lengths, _MAX_QUANTILE, method="lower"))
            seconds = longest if longest <= _MARGIN * usual else usual
            seconds = math.ceil(min(seconds, _MAX_SECONDS) * 100) / 100
        if longest <= seconds:
            return seconds, [f"{seconds:g} s", "no training recording is longer"]
        reason = (
            f"{_share((lengths <= seconds).mean())} are not longer; the longest, of"
            f" {longest:,.2f} s, is cut at its end"
        )
        return seconds, [f"{seconds:g} s", reason]

    def review(self) -> list[Decision]:
        notes = self.metadata.get("audio_notes", {})
        return [Decision(name, value, why) for name, (value, why) in notes.items()]

    def decode(self, example: Example) -> tuple[Example, None]:
        """Decodes a file, converts its rate, and cuts or fills it."""
        frames = self.frames
        content = example[self._field]
        samples = audio_decoding.decode_wav(content, frames.rate, frames.samples)
        return {"audio": samples}, None

    def match(self, source: Source) -> "AudioInput":
        field = self._field if self._field in source.info.fields else "audio"
        return AudioInput({**self.metadata, "input_field": field})

    def prepare(self, batch: Example) -> Example:
        """Adds `spectrogram` and `mask`, or `waveform`; both are float32.

        What the augmentation `spec_augment` covers becomes 0, the mean.
        """
        waveform = tf.cast(batch["audio"], tf.float32) * SAMPLE_SCALE
        if self.metadata.get("raw"):
            return {**batch, "waveform": waveform}
        spectrogram, mask = self.log_mel(waveform, self.bands)
        if "covered_bands" in batch:
            spectrogram *= _outside(batch["covered_bands"], self.bands)[:, None, :]
            windows = _outside(batch["covered_times"], self.frames.windows)
            spectrogram *= windows[:, :, None]
        return {**batch, "spectrogram": spectrogram, "mask": mask}

    def log_mel(self, waveform: Any, bands: int) -> tuple[Any, Any]:
        is_band = self.metadata.get("center") == "band"
        return log_mel(waveform, self.frames, bands, center_bands=is_band)

    def inputs(self) -> Any:
        frames = self.frames
        if self.metadata.get("raw"):
            return keras.Input((frames.samples,), dtype="float32", name="waveform")
        shape = (frames.windows, self.bands)
        return {
            "mask": keras.Input((frames.windows,), dtype="float32", name="mask"),
            "spectrogram": keras.Input(shape, dtype="float32", name="spectrogram"),
        }

    def network_inputs(self, batch: Example) -> Any:
        if self.metadata.get("raw"):
            return batch["waveform"]
        return {"mask": batch["mask"], "spectrogram": batch["spectrogram"]}

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes waveforms, `audio_bytes` WAV files."""
        waveform = tf.TensorSpec((None, None), tf.float32, name="waveform")
        contents = tf.TensorSpec((None,), tf.string, name="audio_bytes")
        frames = self.frames
        return [
            ServingInput(
                "serving_default",
                {"waveform": waveform},
                self._read_waveform,
                self._waveforms,
                meaning=(
                    f"from -1 to 1, {frames.rate:,} samples per second; zeros at the"
                    f" end are padding, and what follows {frames.samples:,} samples is"
                    " cut off"
                ),
            ),
            ServingInput(
                "audio_bytes",
                {"audio_bytes": contents},
                self._read_files,
                self._wav_files,
                files=(".wav", *compressed_sound.SUFFIXES),
                meaning="each a WAV file, at any rate",
            ),
        ]

    def _read_waveform(self, waveform: tf.Tensor) -> Example:
        waveform = request_guards.batch(waveform, (None, None))
        waveform = request_guards.finite(waveform, "waveform")
        waveform = waveform[:, : self.frames.samples]
        waveform = request_guards.within(waveform, (-1.0, 1.0), "waveform")
        missing = self.frames.samples - tf.shape(waveform)[1]
        waveform = tf.pad(waveform, [[0, 0], [0, missing]])
        waveform = tf.ensure_shape(waveform, (None, self.frames.samples))
        return {"audio": audio_decoding.to_int16(waveform)}

    def _waveforms(self, columns: Mapping[str, np.ndarray]) -> Request:
        return {
            "waveform": columns["audio"].astype(np.float32) * np.float32(SAMPLE_SCALE)
        }

    def _wav_files(self, columns: Mapping[str, np.ndarray]) -> Request:
        """Files of 16 bits, and in stereo of 24 and 32 bits, in turn."""
        contents = []
        for number, samples in enumerate(columns["audio"]):
            kind = number % 3
            channels = 2 if kind else 1
            file = wav_file(samples, self.frames.rate, 2 + kind, channels)
            contents.append(file)
        return {"audio_bytes": contents}

    def _read_files(self, contents: tf.Tensor) -> Example:
        samples = tf.map_fn(
            lambda content: self.decode({self._field: content})[0]["audio"],
            request_guards.files(contents),
            fn_output_signature=tf.TensorSpec((self.frames.samples,), tf.int16),
        )
        return {"audio": samples}

    def standalone(self) -> tuple[Any, Any]:
        """A waveform of the full length, and the spectrogram made from it."""
        shape = (self.frames.samples,)
        inputs = keras.Input(shape, dtype="float32", name="audio")
        if self.metadata.get("raw"):
            return inputs, inputs
        spectrogram, mask = self.log_mel(inputs, self.bands)
        return inputs, {"mask": mask, "spectrogram": spectrogram}

    def limitations(self) -> list[str]:
        frames = self.frames
        return [
            (
                f"Recordings are converted to mono at {frames.rate:,} samples per"
                f" second; what follows {frames.samples / frames.rate:.2f} s is cut"
                " off."
            ),
            (
                "The metrics hold for recordings like those in the test split; other"
                " voices, microphones and rooms have not been tested."
            ),
        ]


def _share(share: float) -> str:
    """A share of the training recordings in words."""
    if share == 1:
        return "all training recordings"
    return f"{share:.1%} of the training recordings"


@functools.cache
def _header_reader() -> Any:
    """The header of the contents of a file, compiled once."""
    spec = tf.TensorSpec((), tf.string)
    return tf.function(audio_decoding.header, [spec], autograph=False)


def _outside(intervals: tf.Tensor, count: int) -> tf.Tensor:
    """0 at the positions in the intervals, else 1, float32 (batch, count).

    `intervals`, float32 (batch, n, 2), has starts and ends as shares of `count`.
    """
    positions = (tf.range(count, dtype=tf.float32) + 0.5) / count
    starts, ends = intervals[..., :1], intervals[..., 1:]
    is_inside = (positions >= starts) & (positions < ends)
    return 1.0 - tf.cast(tf.reduce_any(is_inside, axis=1), tf.float32)


def wav_file(samples: np.ndarray, rate: int, width: int, channels: int) -> bytes:
    """A WAV file of int16 samples, with `width` bytes for each of equal channels."""
    content = np.zeros((len(samples), channels, width), np.uint8)
    content[:, :, -2:] = samples.astype("<i2").view(np.uint8).reshape(-1, 1, 2)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content.tobytes())
    return buffer.getvalue()
