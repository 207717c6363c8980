"""Report views of the input `audio`."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline.report.input_report import InputReport
from pipeline.tasks.inputs.audio import SAMPLE_SCALE, AudioInput, wav_file

_DRAWN_BANDS = 40  # if the model gets waveforms
_MAX_PLAYED = 80_000  # samples of a recording in a report, 210 kB as base64


class AudioReport(InputReport):
    """Shows an example of `audio`."""

    input: AudioInput

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws the spectrogram up to the end of the recording."""
        picture = self._picture(example["audio"])
        step = self.input.frames.hop / self.input.frames.rate
        axes.imshow(picture, origin="lower", aspect="auto")
        axes.xaxis.set_major_formatter(lambda window, _: f"{window * step:.2g} s")
        axes.set(yticks=[])
        axes.tick_params(labelsize=6)

    def html(self, example: Mapping[str, Any]) -> str:
        """The spectrogram, and an audio element that plays its first seconds."""
        from matplotlib import colormaps

        samples = np.trim_zeros(np.asarray(example["audio"]), "b")
        picture = self._picture(samples)[::-1]
        low, high = picture.min(), picture.max()
        levels = (picture - low) / max(high - low, 1e-6)
        colors = colormaps["viridis"](levels, bytes=True)
        image = io.BytesIO()
        Image.fromarray(colors[..., :3]).save(image, "png")
        sound = wav_file(samples[:_MAX_PLAYED], self.input.frames.rate, 2, 1)
        urls = []
        for kind, content in (("image/png", image.getvalue()), ("audio/wav", sound)):
            urls.append(f"data:{kind};base64,{base64.b64encode(content).decode()}")
        return (
            f'<img src="{urls[0]}" alt="" style="width:100%;height:6em">'
            f'<audio controls preload="none" style="width:100%" src="{urls[1]}">'
            "</audio>"
        )

    def _picture(self, samples: Any) -> np.ndarray:
        """The spectrogram up to the end of a recording, (bands, windows)."""
        missing = self.input.frames.samples - len(samples)
        samples = np.pad(np.asarray(samples, np.float32) * SAMPLE_SCALE, (0, missing))
        bands = _DRAWN_BANDS if self.input.metadata.get("raw") else self.input.bands
        spectrogram, mask = self.input.log_mel(tf.constant(samples[None]), bands)
        return np.asarray(spectrogram)[0, : int(np.sum(mask))].T
