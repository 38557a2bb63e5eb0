"""Parts never overlap, whatever the data looks like."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qat_lib.errors import DataError
from qatline.components.data.splits import split_indices, stratified_subset
from qatline.components.settings import DataSettings

OWN = [
    frozenset(),
    frozenset({"test"}),
    frozenset({"validation"}),
    frozenset({"test", "validation"}),
]


@given(
    counts=st.lists(st.integers(3, 60), min_size=2, max_size=8),
    test=st.floats(0.01, 0.9),
    validation=st.floats(0.01, 0.9),
    calibration=st.integers(1, 300),
    own=st.sampled_from(OWN),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_exactly_one_part(
    counts: list[int],
    test: float,
    validation: float,
    calibration: int,
    own: frozenset[str],
    seed: int,
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    fractions = DataSettings(
        test_fraction=test, validation_fraction=validation, calibration_samples=calibration
    )
    try:
        parts = split_indices(
            labels, fractions, seed=seed, classes=[str(c) for c in range(len(counts))], own=own
        )
    except DataError as error:
        assume("no sample is left for calibration" not in str(error))
        raise
    assert set(parts) == {"train", "calibration", "validation", "test"} - own
    np.testing.assert_array_equal(
        np.sort(np.concatenate(list(parts.values()))), np.arange(len(labels))
    )
    for name in set(parts) - {"calibration"}:
        assert set(labels[parts[name]]) == set(range(len(counts))), name
    assert 1 <= len(parts["calibration"]) <= calibration


@given(
    counts=st.lists(st.integers(20, 80), min_size=2, max_size=5),
    test=st.floats(0.1, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_classes_keep_their_proportions(counts: list[int], test: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    chosen = DataSettings(test_fraction=test, calibration_samples=10)
    parts = split_indices(labels, chosen, seed=seed, classes=["c"] * len(counts))
    assert len(parts["test"]) == round(test * len(labels))
    found = np.bincount(labels[parts["test"]], minlength=len(counts))
    assert np.abs(found - test * np.array(counts)).max() <= 1


def test_the_order_within_a_part_is_random() -> None:
    labels = np.repeat(np.arange(4), 50)
    parts = split_indices(
        labels, DataSettings(calibration_samples=20), seed=0, classes=list("abcd")
    )
    for part in parts.values():
        assert len(set(labels[part[: len(part) // 2]])) == 4


def test_empty_calibration_part_is_reported() -> None:
    labels = np.repeat(np.arange(2), 10)
    with pytest.raises(DataError, match="no sample is left for calibration after 16 of 20"):
        split_indices(labels, DataSettings(test_fraction=0.9), seed=0, classes=["a", "b"])


@pytest.mark.parametrize(("own", "needed"), [(OWN[0], 3), (OWN[1], 2), (OWN[2], 2), (OWN[3], 1)])
def test_a_class_with_too_few_samples_is_named(own: frozenset[str], needed: int) -> None:
    labels = np.r_[np.zeros(50, int), np.ones(needed - 1, int)]
    with pytest.raises(
        DataError, match=rf"class 'rare' has {needed - 1} samples; at least {needed} are needed"
    ):
        split_indices(labels, DataSettings(), seed=0, classes=["common", "rare"], own=own)
    enough = np.r_[np.zeros(50, int), np.ones(needed, int)]
    assert split_indices(enough, DataSettings(), seed=0, classes=["common", "rare"], own=own)


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    share=st.floats(0.05, 1.2),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_a_subset_keeps_the_proportions(counts: list[int], share: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    wanted = round(share * len(labels))
    chosen = stratified_subset(labels, wanted, seed=seed, classes=len(counts))
    assert len(chosen) == len(set(chosen.tolist())) == min(wanted, len(labels))
    if wanted < len(labels):
        found = np.bincount(labels[chosen], minlength=len(counts))
        assert np.abs(found - np.array(counts) * wanted / len(labels)).max() <= 1


def test_stratified_subset_follows_its_seed() -> None:
    labels = np.repeat(np.arange(3), 40)
    first, again, other = (
        stratified_subset(labels, 30, seed=seed, classes=3).tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
