"""Statistics of each quantized tensor, summed over batches: error, clipping and channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.collecting import collecting
from qat_lib.keras.calibration.observing import Histogram
from qat_lib.keras.diagnosis.sites import Site
from qat_lib.keras.structure import pack_inputs, run_eagerly

# Samples per run, kept small because several copies of each tensor are live at once.
_CHUNK = 8
_TINY = 1e-30


@dataclass
class ErrorSums:
    """Sums over the values of a tensor and its quantized values.

    Attributes:
        signal: sum of squares of each channel.
        noise: sum of squared errors of each channel.
        peaks: largest magnitude of each channel.
        clip_noise: sum of squared clipping errors of the values beyond the range.
        clipped: number of values beyond the range.
        count: number of values.
        cross: sum of products of the values and the quantized values.
        quantized: sum of squares of the quantized values.
        histogram: histogram of the magnitudes.
        input_peaks: largest magnitude of each input channel of a weight; else empty.
    """

    signal: np.ndarray
    noise: np.ndarray
    peaks: np.ndarray
    clip_noise: float = 0.0
    clipped: int = 0
    count: int = 0
    cross: float = 0.0
    quantized: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)
    input_peaks: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of_width(cls, channels: int) -> ErrorSums:
        """Return empty sums for a number of channels."""
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(channels))

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in dB; infinite without noise."""
        return decibels(float(self.signal.sum()), float(self.noise.sum()))

    @property
    def channel_sqnr_db(self) -> float:
        """Median SQNR of the channels with a signal, in dB.

        An outlier channel dominates ``sqnr_db``; the median shows the error of the other channels.
        """
        ratios = []
        for signal, noise in zip(self.signal, self.noise, strict=True):
            if signal > 0:
                ratios.append(decibels(float(signal), float(noise)))
        return float(np.median(ratios)) if ratios else float("inf")

    @property
    def input_spread(self) -> float:
        """Largest weight of an input channel over the median channel's; 1 for an activation."""
        peaks = self.input_peaks[self.input_peaks > 0]
        return float(peaks.max() / np.median(peaks)) if len(peaks) else 1.0

    @property
    def cosine(self) -> float:
        """Cosine similarity of the values and the quantized values."""
        length = float(np.sqrt(self.signal.sum() * self.quantized))
        return self.cross / length if length > _TINY else 1.0

    @property
    def clip_share(self) -> float:
        """Share of the noise caused by clipping, in [0, 1]."""
        noise = float(self.noise.sum())
        return min(self.clip_noise / noise, 1.0) if noise > _TINY else 0.0

    def add(self, values: Any, quantized: Any, amax: float, unsigned: bool) -> None:
        """Add values ``(positions, channels)`` and their quantized values."""
        error = quantized - values
        self.signal += tf.reduce_sum(tf.square(values), axis=0).numpy()
        self.noise += tf.reduce_sum(tf.square(error), axis=0).numpy()
        magnitude = tf.nn.relu(values) if unsigned else tf.abs(values)
        peaks = tf.reduce_max(magnitude, axis=0).numpy()
        self.peaks = np.maximum(self.peaks, peaks)
        beyond = tf.nn.relu(magnitude - amax)
        self.clip_noise += float(tf.reduce_sum(tf.square(beyond)))
        self.clipped += int(tf.math.count_nonzero(beyond))
        self.count += int(tf.size(values))
        self.cross += float(tf.reduce_sum(values * quantized))
        self.quantized += float(tf.reduce_sum(tf.square(quantized)))
        self.histogram.add(magnitude, float(peaks.max(initial=0.0)))


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB; infinite without noise."""
    return float("inf") if noise <= _TINY else 10 * float(np.log10(max(signal, _TINY) / noise))


class _Watcher:
    """A collector that runs each quantizer and records its error."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = sites
        self.found: dict[str, ErrorSums] = {}

    def observe(self, quantizer: Any, tensor: Any) -> Any:
        """Return the quantized tensor."""
        # Suspend the collector, or the quantizer would call ``observe`` again.
        with collecting(None):
            quantized = quantizer(tensor)
        site = self.sites.get(quantizer.name)
        if site is None or not quantizer.enabled or tf.size(tensor) == 0:
            return quantized
        if site.kind == "weight" and quantizer.name in self.found:
            return quantized  # weights don't change between batches
        values = _by_channel(tensor, quantizer, site)
        sums = self.found.setdefault(quantizer.name, ErrorSums.of_width(values.shape[-1]))
        if len(sums.peaks) != values.shape[-1]:  # tensors of several widths share it
            return quantized
        amax = float(np.max(quantizer.amax))
        if site.kind == "weight":
            # Ranges of weights cover their largest values: count no value as clipped.
            amax = float("inf")
            if not site.depthwise and len(tensor.shape) > 1:
                # Kernels end with the axes (input channels, output channels), except those of
                # transposed convolutions.
                inner = [axis for axis in range(len(tensor.shape)) if axis != len(tensor.shape) - 2]
                sums.input_peaks = tf.reduce_max(tf.abs(tensor), axis=inner).numpy()
        sums.add(values, _by_channel(quantized, quantizer, site), amax, quantizer.unsigned)
        return quantized


def _by_channel(tensor: Any, quantizer: Any, site: Site) -> Any:
    """Return a tensor as float32 ``(positions, channels)``."""
    # Activations have their channels on the last axis, weights on the axes of their ranges. A
    # depthwise kernel with a single range has them on its last two axes.
    x = tf.cast(tensor, tf.float32)
    rank = len(x.shape)
    if rank == 0:
        return tf.reshape(x, (1, 1))
    axes: Sequence[int] = (-1,)
    if site.kind == "weight":
        axes = quantizer.channel_axes or ((-2, -1) if site.depthwise and rank > 2 else (-1,))
    kept = sorted(axis % rank for axis in axes)
    order = [axis for axis in range(rank) if axis not in kept] + kept
    channels = int(np.prod([x.shape[axis] for axis in kept]))
    return tf.reshape(tf.transpose(x, order), (-1, channels))


def watch_errors(model: Any, batches: Iterable[Any], sites: Sequence[Site]) -> dict[str, ErrorSums]:
    """Run a quantized model and return the errors of its quantizers, by name.

    The inputs of each quantizer are computed from quantized tensors, as in inference.

    Args:
        model: the quantized model.
        batches: batches of inputs, each a tensor or a list with one tensor per input.
        sites: sites of the quantizers to measure.
    """
    watcher = _Watcher({site.quantizer: site for site in sites})
    with collecting(watcher):
        for batch in batches:
            parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
            for start in range(0, len(parts[0]), _CHUNK):
                chunk = [part[start : start + _CHUNK] for part in parts]
                run_eagerly(model, pack_inputs(model, chunk))
    return watcher.found
