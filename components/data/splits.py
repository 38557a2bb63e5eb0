"""Seeded, disjoint splits, stratified by class where targets are classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qatline.components.settings import DataSettings

# Calibration uses at most one in this many samples: small data sets serve training first.
_LEAST_REST = 4

Indices = npt.NDArray[np.int64]


def split_indices(
    labels: Indices,
    settings: DataSettings,
    *,
    seed: int,
    classes: Sequence[str],
    own: frozenset[str] = frozenset(),
) -> dict[str, Indices]:
    """Split the samples of a source into train, calibration, validation and test.

    Each part contains the classes in their proportions, to within one sample. Test is taken first,
    then calibration (at most a quarter of the remaining samples), then validation; the rest is for
    training. The order within a part is random.

    Args:
        labels: label of each sample, int64 ``(samples,)``.
        settings: the fractions and the number of calibration samples.
        seed: seed of the split; equal seeds give equal splits.
        classes: names, for messages; empty for targets other than classes, with zeros as labels.
        own: parts provided by the source separately and not taken from these samples: ``test``,
            ``validation``.

    Returns:
        Indices into ``labels`` by part, without those of ``own``. Every index occurs once.

    Raises:
        DataError: a class has too few samples for all parts, or no sample remains for calibration.
    """
    carved = [name for name in ("test", "validation") if name not in own]
    groups = max(1, len(classes))
    counts = np.bincount(labels, minlength=groups)
    needed = 1 + len(carved)
    if (worst := int(counts.argmin())) >= 0 and counts[worst] < needed:
        who = f"class {classes[worst]!r} has" if classes else "the data has"
        raise DataError(
            f"{who} {counts[worst]} samples; at least {needed} are needed, one for each of "
            f"{', '.join(['train', *carved])}. Add samples{' or leave the class out' * bool(classes)}."
        )
    # A second seed per purpose: splits and subsets of the same run draw independent numbers.
    generator = np.random.default_rng([seed, 0x5EED])
    rest = [generator.permutation(np.flatnonzero(labels == label)) for label in range(groups)]
    parts: dict[str, Indices] = {}
    if "test" in carved:
        parts["test"], rest = _take(
            rest, round(settings.test_fraction * len(labels)), keep=len(carved), least=1
        )
    available = sum(map(len, rest))
    calibration = min(settings.calibration_samples, max(1, available // _LEAST_REST))
    keep = 1 + ("validation" in carved)
    parts["calibration"], rest = _take(rest, calibration, keep=keep, least=0)
    if not len(parts["calibration"]):
        raise DataError(
            f"no sample is left for calibration after {len(parts.get('test', ()))} of "
            f"{len(labels)} went to testing: add samples, or lower data.test_fraction"
        )
    if "validation" in carved:
        wanted = round(settings.validation_fraction * sum(map(len, rest)))
        parts["validation"], rest = _take(rest, wanted, keep=1, least=1)
    parts["train"] = np.concatenate(rest)
    return {name: generator.permutation(part) for name, part in parts.items()}


def stratified_subset(labels: Indices, count: int, *, seed: int, classes: int) -> Indices:
    """Return the sorted indices of at most ``count`` samples, stratified by class."""
    if count >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    generator = np.random.default_rng([seed, 0x11317])
    groups = [generator.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    return np.sort(_take(groups, count, keep=0, least=0)[0])


def _take(
    groups: list[Indices], count: int, *, keep: int, least: int
) -> tuple[Indices, list[Indices]]:
    """Take about ``count`` samples from the groups, in proportion.

    At least ``least`` samples are taken from each group and at least ``keep`` remain; both have
    priority over ``count``.
    """
    sizes = np.array([len(group) for group in groups], np.int64)
    room = np.maximum(sizes - keep, 0)
    exact = sizes * (count / max(int(sizes.sum()), 1))
    shares = np.minimum(np.maximum(np.floor(exact).astype(np.int64), least), room)
    # Largest remainder method: distribute the samples lost by rounding down.
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    missing = count - int(shares.sum())
    while missing > 0 and (open_groups := [g for g in order if shares[g] < room[g]]):
        for group in open_groups[:missing]:
            shares[group] += 1
            missing -= 1
    taken = np.concatenate([group[:n] for group, n in zip(groups, shares, strict=True)])
    return taken.astype(np.int64), [group[n:] for group, n in zip(groups, shares, strict=True)]
