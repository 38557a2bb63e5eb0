"""What quantized numbers must be, in NumPy alone."""

import numpy as np

AMAX_FLOOR = np.float32(127.0 * 2.0**-24)


def scale(amax: np.ndarray | float, num_bits: int = 8, *, unsigned: bool = False) -> np.ndarray:
    """Step between two quantized values, float32."""
    high = 2 ** (num_bits if unsigned else num_bits - 1) - 1
    return np.maximum(np.asarray(amax, np.float32), AMAX_FLOOR) / np.float32(high)


def fake_quantize(
    x: np.ndarray,
    amax: np.ndarray | float,
    *,
    num_bits: int = 8,
    narrow_range: bool = False,
    unsigned: bool = False,
) -> np.ndarray:
    """Divide, round half to even, saturate, multiply: QuantizeLinear and DequantizeLinear, in float32."""
    high = 2 ** (num_bits if unsigned else num_bits - 1) - 1
    low = 0 if unsigned else -high if narrow_range else -high - 1
    step = scale(amax, num_bits, unsigned=unsigned)
    with np.errstate(over="ignore"):
        integers = np.clip(np.rint(np.asarray(x, np.float32) / step), low, high)
    return (integers * step).astype(np.float32)


def range_of(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Largest magnitude per element of the kept axes.

    The others are kept as 1.
    """
    magnitude = np.abs(x.astype(np.float32))
    if axes is None:
        return magnitude.max()
    kept = {axis % x.ndim for axis in axes}
    return magnitude.max(axis=tuple(i for i in range(x.ndim) if i not in kept), keepdims=True)


def published_entropy(counts: np.ndarray, levels: int) -> int:
    """Range in bins by Migacz 2017, one bin after the other.

    "8-bit Inference with TensorRT", slides 36 to 39. Zeros are left out as in NVIDIA's toolkits:
    the first bin counts as much as the second.
    """
    counts = counts.astype(float)
    counts[0] = counts[1]
    divergence = {}
    for end in range(levels, len(counts) + 1):
        reference = [*counts[: end - 1], counts[end - 1 :].sum()]
        candidate = np.zeros(end)
        for part in range(levels):
            # A level holds the bins whose place in the range, times the levels, has its number
            # before the point.
            first, beyond = -(-part * end // levels), -(-(part + 1) * end // levels)
            bins = counts[first:beyond]
            if bins.any():
                candidate[first:beyond] = np.where(bins > 0, bins.sum() / np.count_nonzero(bins), 0)
        p, q = np.array(reference) / np.sum(reference), candidate / candidate.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            divergence[end] = np.where(p > 0, p * np.log(p / q), 0).sum()
    least = min(divergence.values())
    return max(end for end, value in divergence.items() if value <= least + 1e-12)
