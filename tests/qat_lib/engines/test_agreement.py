"""Distance between answers, and the bound for each precision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.engines.agreement import bound_of, difference, differences, widened_bounds

X86 = {"architecture": "x86_64", "name": "A CPU"}
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.standard_normal((6, 10)).astype(np.float32)


def test_equal_answers_do_not_differ() -> None:
    assert difference([LOGITS, LOGITS[:1]], [LOGITS, LOGITS[:1]]) == 0.0


def test_unrelated_answers_differ_by_more_than_any_bound() -> None:
    assert difference([RANDOM.standard_normal((6, 10))], [LOGITS]) > 1


def test_scale_of_the_outputs_does_not_matter() -> None:
    noisy = LOGITS + 0.01 * RANDOM.standard_normal(LOGITS.shape)
    expected = pytest.approx(difference([noisy], [LOGITS]))
    assert difference([1e6 * noisy], [1e6 * LOGITS]) == expected
    assert 0.003 < difference([noisy], [LOGITS]) < 0.03


def test_one_wrong_sample_among_many_is_seen() -> None:
    many = RANDOM.standard_normal((256, 10))
    wrong = many.copy()
    wrong[255] = RANDOM.standard_normal(10)
    assert difference([wrong], [many]) > 0.75


def test_nearly_constant_answers_may_differ_by_their_rounding() -> None:
    constant = np.full((6, 10), 0.1, np.float32)
    assert difference([np.nextafter(constant, np.float32(1))], [constant]) < 1e-5
    assert difference([constant * 1.1], [constant]) > 0.75
    assert difference([np.zeros((6, 10))], [np.zeros((6, 10))]) == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinite_answers_must_be_infinite_in_both(value: float) -> None:
    infinite = LOGITS.copy()
    infinite[2, 3] = value
    assert difference([infinite], [infinite]) == 0.0
    assert difference([infinite], [LOGITS]) == float("inf")
    assert difference([LOGITS], [infinite]) == float("inf")


def test_other_shapes_differ() -> None:
    assert difference([LOGITS[:, :9]], [LOGITS]) == float("inf")


def test_integers_differ_by_the_share_that_is_unequal() -> None:
    labels = np.arange(10)
    assert difference([labels, labels], [labels, np.roll(labels, 1)]) == 0.5


def test_answers_without_a_batch_are_one_sample() -> None:
    assert difference([np.float32(1.0)], [np.float32(1.0)]) == 0.0  # type: ignore[list-item]


def test_every_output_is_compared() -> None:
    found = differences([{"a": LOGITS, "b": -LOGITS}], [{"a": LOGITS, "b": LOGITS}])
    assert found["a"] == 0.0
    assert found["b"] > 1


@pytest.mark.parametrize(
    ("facts", "half", "bound"),
    [
        ({}, False, 0.001),
        ({}, True, 0.15),
        ({"spec": {"float_precision": "bf16"}}, False, 0.15),
        ({"backend": "tensorrt"}, False, 0.02),
        ({"quantized": True}, False, 0.15),
        ({"quantized": True, "device": X86 | {"flags": ["avx2", "avx512_vnni"]}}, False, 0.15),
        ({"quantized": True, "device": X86 | {"flags": ["amx_int8"]}}, False, 0.15),
        ({"quantized": True, "device": X86 | {"flags": ["avx2", "avx512f"]}}, False, 0.75),
        ({"quantized": False, "device": X86 | {"flags": ["avx2"]}}, False, 0.001),
        ({"quantized": True, "device": {"architecture": "aarch64", "flags": []}}, False, 0.15),
    ],
)
def test_bound_is_what_the_precision_explains(
    facts: dict[str, Any], half: bool, bound: float
) -> None:
    usual = {
        "backend": "openvino",
        "quantized": False,
        "spec": {"float_precision": "fp32"},
        "device": {},
    }
    assert bound_of(SimpleNamespace(**(usual | facts)), half=half) == bound  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("amplified", "expected"),
    [(0.0, 0.15), (0.05, 0.15), (0.1, 0.2), (0.2, 0.4), (0.9, 0.5), (np.inf, 0.15)],
)
def test_widened_bound_is_twice_the_noise(amplified: float, expected: float) -> None:
    """The reference's answers move by ``amplified`` of their spread for a nudge of the input."""
    request = {"x": np.float32([[1.0, -1.0]]), "ids": np.array([[1, 2]])}
    answer = {"y": np.array([[1.0, -1.0]]), "still": np.array([[1.0, -1.0]])}  # of spread 1

    def run(moved: Any) -> dict[str, Any]:
        assert np.array_equal(moved["ids"], request["ids"])
        assert np.array_equal(moved["x"], request["x"] * np.float32(1 + 2.0**-14))
        return {"y": answer["y"] + amplified, "still": answer["still"]}

    bounds = widened_bounds(0.15, run, [request], [answer])
    assert bounds["y"] == pytest.approx(expected)
    assert bounds["still"] == 0.15
