"""Causes of quantization error: rules on the measured error, channels and range of a tensor.

The first matching rule determines the cause. Each rule returns its fix as spec entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.core.ranges import greatest_integer
from qat_lib.core.spec import LayerConfig
from qat_lib.keras.diagnosis.report import Cause
from qat_lib.keras.diagnosis.sites import Site
from qat_lib.keras.diagnosis.statistics import ErrorSums, decibels

DEAD = 1e-7
"""Share of the largest magnitude of the tensor up to which a channel counts as zero."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A cause with its message and fix."""

    cause: Cause
    message: str
    change: tuple[LayerConfig, ...] = ()
    advice: str = ""
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Measurements of one quantizer.

    Attributes:
        site: position in the model.
        sums: error sums of the quantized tensor.
        quantizer: the quantizer itself.
    """

    site: Site
    sums: ErrorSums
    quantizer: Any

    @property
    def live(self) -> np.ndarray:
        """Mask of the channels with a signal."""
        peaks = self.sums.peaks
        return np.asarray(peaks > DEAD * float(peaks.max(initial=0.0)))

    @property
    def spread(self) -> float:
        """Largest magnitude of a channel over the median channel's; 1 without a signal."""
        peaks = self.sums.peaks[self.live]
        return float(peaks.max() / np.median(peaks)) if len(peaks) else 1.0

    @property
    def is_per_channel(self) -> bool:
        """Whether each channel has a separate range."""
        return self.quantizer.channel_axes is not None


OUTLIER = 8.0
"""Ratio of a channel's largest magnitude to the median channel's from which it is an outlier: the
median channel gets at most 127 / 8 = 16 steps."""
FEW = 0.25
"""Largest share of outlier channels; beyond it, large channels are typical of the tensor."""
COARSE_DB = 20.0
"""SQNR in dB below which a tensor is coarse; INT8 gives a normal distribution 35 to 40 dB."""
GAIN_DB = 3.0
"""Minimum SQNR gain of another range, in dB."""
_SHOWN = 4


def find_cause(evidence: Evidence) -> Diagnosed | None:
    """Return the cause of the first matching rule, or None."""
    # From specific to general: an outlier channel also causes lost channels and a low SQNR, and its
    # fix removes them.
    for rule in (_outlier_channel, _clipped_range, _lost_channels, _coarse):
        found = rule(evidence)
        if found is not None:
            return found
    return None


def find_dead_channels(evidence: Evidence) -> Diagnosed | None:
    """Return a finding for channels that are zero in every sample, or None."""
    dead = np.flatnonzero(~evidence.live)
    # If all channels are zero, the samples don't reach this tensor: no channel is dead.
    if not len(dead) or len(dead) == len(evidence.live):
        return None
    what = "of this weight" if evidence.site.kind == "weight" else "of this tensor"
    return Diagnosed(
        cause="dead channel",
        message=f"{_channels(dead)} {what} {_are(dead)} zero in every sample.",
        advice="They cost time and no accuracy: remove them from the network, and train on.",
        channels=tuple(map(int, dead)),
    )


def unexplained(evidence: Evidence) -> Diagnosed:
    """Return a fallback cause for an effect without a matching rule."""
    site = evidence.site
    if (found := find_uneven_inputs(evidence)) is not None:
        return found
    if site.kind == "weight" and site.depthwise:
        return _in_float(
            evidence,
            "depthwise weight spread",
            "Each channel has few weights, of unlike size: rounding them changes its filter.",
        )
    return _in_float(
        evidence,
        "unquantizable pattern",
        f"No outlier and no clipping ({evidence.sums.sqnr_db:.0f} dB), but the layers behind it "
        f"need more than {evidence.quantizer.num_bits} bits of it.",
    )


def find_uneven_inputs(evidence: Evidence) -> Diagnosed | None:
    """Return a finding for input channels of a weight with very different magnitudes, or None.

    All input channels of an output channel share one range, so per-channel ranges do not help.
    """
    peaks = evidence.sums.input_peaks
    live = peaks > DEAD * float(peaks.max(initial=0.0))
    if live.sum() < 2:
        return None
    # Below half a step, all weights of an input channel round to zero.
    lost = np.flatnonzero(live & (peaks < float(peaks.max()) / _high(evidence) / 2))
    if len(lost) and len(lost) < live.sum() / 2:
        return Diagnosed(
            cause="dead channel",
            message=(
                f"The weights of input {_channels(lost).lower()} are smaller than half a step of "
                "the range that they share with the others: quantized, nothing is left."
            ),
            change=_left_in_float(evidence.site),
            channels=tuple(map(int, lost)),
        )
    median = float(np.median(peaks[live]))
    outliers = np.flatnonzero(live & (peaks >= OUTLIER * median))
    if not 0 < len(outliers) <= max(1, int(FEW * live.sum())):
        return None
    times = float(peaks[outliers].max() / median)
    return Diagnosed(
        cause="outlier channel",
        message=(
            f"The weights of input {_channels(outliers).lower()} reach {times:.3g} times the "
            "median input channel's: in one range with them the others have few steps."
        ),
        change=_left_in_float(evidence.site),
        advice="The layer in front makes that channel too small: scaled up there, and down here, "
        "it fits.",
        channels=tuple(map(int, outliers)),
    )


def _outlier_channel(evidence: Evidence) -> Diagnosed | None:
    peaks, live = evidence.sums.peaks, evidence.live
    if evidence.is_per_channel or live.sum() < 2:
        return None
    median = float(np.median(peaks[live]))
    outliers = np.flatnonzero(live & (peaks >= OUTLIER * median))
    others = live.copy()
    others[outliers] = False
    is_few = 0 < len(outliers) <= max(1, int(FEW * live.sum()))
    # Judge the remaining channels: the outliers dominate the SQNR of the whole tensor.
    if not is_few or _median_db(evidence, others) >= COARSE_DB:
        return None
    steps = max(1, round(_high(evidence) * median / float(np.max(evidence.quantizer.amax))))
    times = float(peaks[outliers].max() / median)
    message = (
        f"{_channels(outliers)} {'reach' if len(outliers) > 1 else 'reaches'} {times:.3g} times "
        f"the median channel's range, which is left {steps} of {_high(evidence)} steps."
    )
    cause: Cause = "outlier channel"
    if evidence.site.kind == "weight" and evidence.site.depthwise:
        cause = "depthwise weight spread"
    return _for_channels(evidence, cause, message, outliers)


def _lost_channels(evidence: Evidence) -> Diagnosed | None:
    """Find channels with a signal smaller than half a step, so that all values round to zero."""
    if evidence.is_per_channel:
        return None
    step = float(np.max(evidence.quantizer.amax)) / _high(evidence)
    lost = np.flatnonzero(evidence.live & (evidence.sums.peaks < step / 2))
    if not len(lost):
        return None
    is_spread = evidence.site.kind == "weight" and evidence.site.depthwise
    return _for_channels(
        evidence,
        "depthwise weight spread" if is_spread else "dead channel",
        f"{_channels(lost)} {_are(lost)} smaller than half a step of the range that all channels "
        "share: quantized, nothing is left.",
        lost,
    )


def _for_channels(
    evidence: Evidence, cause: Cause, message: str, channels: Sequence[int] | np.ndarray
) -> Diagnosed:
    found = tuple(map(int, channels))
    if evidence.site.kind == "weight":
        change = (LayerConfig(name=evidence.site.layer, per_channel=True),)
        return Diagnosed(cause=cause, message=message, change=change, channels=found)
    advice = "Or scale the channels alike first: qatline quantize --equalize."
    return Diagnosed(
        cause=cause,
        message=message,
        change=_left_in_float(evidence.site),
        advice=advice,
        channels=found,
    )


def _clipped_range(evidence: Evidence) -> Diagnosed | None:
    sums, site = evidence.sums, evidence.site
    if site.kind == "weight" or sums.clip_share < 0.5 or not sums.histogram.observed_max:
        return None
    amax = float(np.max(evidence.quantizer.amax))
    noises = {}
    for method in ("mse", "max"):
        steps = evidence.quantizer.num_bits
        unsigned = evidence.quantizer.unsigned
        other = range_from_histogram(sums.histogram, method, 100.0, steps, unsigned=unsigned)
        noises[method] = _noise(sums, other, _high(evidence))
    best = min(noises, key=noises.__getitem__)
    gain = decibels(_noise(sums, amax, _high(evidence)), noises[best])
    if gain < GAIN_DB:
        return None
    share = sums.clipped / max(sums.count, 1)
    change = tuple(LayerConfig(name=reader, calibrator=best) for reader in site.readers)
    return Diagnosed(
        cause="clipped range",
        message=(
            f"The range of {amax:.3g} clips {share:.2%} of the values, which reach "
            f"{sums.histogram.observed_max:.3g}; calibrator {best} gains {gain:.0f} dB."
        ),
        change=change,
    )


def _noise(sums: ErrorSums, amax: float, high: int) -> float:
    """Return the sum of squared quantization errors for a range, from the histogram."""
    histogram = sums.histogram
    edges = histogram.edges
    centers = (edges[:-1] + edges[1:]) / 2
    scale = max(amax, _TINY_RANGE) / high
    error = centers - np.clip(np.rint(centers / scale), 0, high) * scale
    # The error at the centre of a bin can be zero by chance: add the variance of the rounding
    # error within a bin, that of a uniform distribution over a step or over a narrower bin.
    least = min(scale, float(edges[1] - edges[0])) ** 2 / 12
    return float(np.sum(histogram.counts * (error**2 + least)))


_TINY_RANGE = 1e-30


def _coarse(evidence: Evidence) -> Diagnosed | None:
    sums = evidence.sums
    if sums.sqnr_db >= COARSE_DB or not sums.signal.sum():
        return None
    num_bits = evidence.quantizer.num_bits
    if num_bits < 8:
        names = (evidence.site.layer,) if evidence.site.kind == "weight" else evidence.site.readers
        return Diagnosed(
            cause="unquantizable pattern",
            message=f"{num_bits} bits leave {sums.sqnr_db:.0f} dB of signal to noise.",
            change=tuple(LayerConfig(name=name, num_bits=8) for name in names),
        )
    rms = float(np.sqrt(sums.signal.sum() / max(sums.count, 1)))
    times = sums.histogram.observed_max / max(rms, _TINY_RANGE)
    return _in_float(
        evidence,
        "unquantizable pattern",
        f"Its values reach {times:.0f} times their root mean square in all channels: no range of "
        f"{num_bits} bits gives more than {sums.sqnr_db:.0f} dB of signal to noise.",
    )


def _in_float(evidence: Evidence, cause: Cause, message: str) -> Diagnosed:
    return Diagnosed(cause=cause, message=message, change=_left_in_float(evidence.site))


def _left_in_float(site: Site) -> tuple[LayerConfig, ...]:
    entries = []
    for name in site.readers:
        entries.append(LayerConfig(name=name, quantize_input=False, quantize_weight=False))
    return tuple(entries)


def _median_db(evidence: Evidence, mask: np.ndarray) -> float:
    """Return the median SQNR of the selected channels, in dB."""
    ratios = []
    for signal, noise in zip(evidence.sums.signal[mask], evidence.sums.noise[mask], strict=True):
        ratios.append(decibels(float(signal), float(noise)))
    return float(np.median(ratios)) if ratios else float("inf")


def _high(evidence: Evidence) -> int:
    return int(greatest_integer(evidence.quantizer.num_bits, evidence.quantizer.unsigned))


def _channels(numbers: Any) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"Channel{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _are(numbers: Any) -> str:
    return "are" if len(numbers) > 1 else "is"
