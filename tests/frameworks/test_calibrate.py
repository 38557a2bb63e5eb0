"""``calibrate``: data in every form, its effects on quantizers, refusals."""

from typing import Any

import numpy as np
import pytest

from qat_lib.errors import CalibrationError

VALUES = np.arange(1, 15, dtype=np.float32).reshape(7, 2)
LABELS = np.full((7, 1), 99, np.float32)
PARTS = [VALUES[:3], VALUES[3:6], VALUES[6:]]
"""The same seven samples in batches of 3, 3 and 1."""
KINDS: dict[str, Any] = {
    "array": lambda: VALUES,
    "list": lambda: PARTS,
    "tuple": lambda: tuple(PARTS),
    "iterator": lambda: iter(PARTS),
    "pairs": lambda: [(part, LABELS[:3]) for part in PARTS],
    "pairs in lists": lambda: ([part, LABELS[:3]] for part in PARTS),
}


@pytest.mark.parametrize("kind", [*KINDS, "tensor", "loader", "loader of pairs"])
def test_calibrate_takes_data_of_every_kind(framework: Any, kind: str) -> None:
    data = KINDS[kind]() if kind in KINDS else framework.loaders(VALUES, LABELS, 3)[kind]
    seen: list[int] = []
    model = framework.quantizers("q")
    report = framework.api.calibrate(model, data, "max", batch_size=3, on_batch=seen.append)
    assert (seen, report.batches, report.samples) == ([1, 2, 3], 3, 7)
    assert (report.tensors["q"].amax, report.tensors["q"].values) == (14.0, 14)


@pytest.mark.parametrize("form", [dict, list, tuple])
@pytest.mark.parametrize("kind", ["whole", "batches", "pairs"])
def test_calibrate_takes_data_of_several_inputs(framework: Any, form: Any, kind: str) -> None:
    parts = [{"a": VALUES[i : i + 4], "b": -2 * VALUES[i : i + 4]} for i in (0, 4)]
    shaped = [part if form is dict else form(part.values()) for part in parts]
    whole = {"a": VALUES, "b": -2 * VALUES}
    data = {"whole": whole if form is dict else form(whole.values()), "batches": shaped}
    given = data[kind] if kind in data else [(part, np.zeros((4, 1))) for part in shaped]
    report = framework.api.calibrate(framework.two_inputs(form), given, "max", batch_size=4)
    assert {name: found.amax for name, found in report.tensors.items()} == {"qa": 14.0, "qb": 28.0}
    assert (report.batches, report.samples) == (2, 7)


@pytest.mark.parametrize(
    "data", [[], np.zeros((0, 2), np.float32), iter(()), [np.zeros((0, 2), np.float32)]]
)
def test_calibrate_needs_a_sample(framework: Any, data: Any) -> None:
    for method in ("percentile", "auto"):
        with pytest.raises(CalibrationError, match="data is empty"):
            framework.api.calibrate(framework.quantizers("q"), data, method)


def test_calibrate_passes_over_an_empty_batch(framework: Any) -> None:
    data = [VALUES, VALUES[:0], -VALUES]
    report = framework.api.calibrate(framework.quantizers("q"), data, "max")
    assert (report.batches, report.samples, report.tensors["q"].amax) == (3, 14, 14.0)


def test_calibrate_uses_the_calibrator_of_a_quantizer(framework: Any) -> None:
    model = framework.quantizers("q", calibrator="max")
    found = framework.api.calibrate(model, VALUES, "percentile", percentile=10).tensors["q"]
    assert (found.method, found.amax) == ("max", 14.0)


@pytest.mark.parametrize("freeze", [False, True])
def test_calibrate_freezes_where_asked(framework: Any, freeze: bool) -> None:
    model = framework.quantizers("q", range_policy="ema")
    framework.api.calibrate(model, VALUES, "max", freeze=freeze)
    (quantizer,) = framework.api.model_quantizers(model).values()
    assert (quantizer.frozen, quantizer.calibrated, float(quantizer.amax)) == (freeze, True, 14.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 6])
def test_calibrate_refuses_non_finite_values(framework: Any, bad: float, row: int) -> None:
    model, data = framework.quantizers("q"), VALUES.copy()
    (quantizer,) = framework.api.model_quantizers(model).values()
    before = quantizer.amax
    data[row, 1] = bad
    with pytest.raises(CalibrationError, match="'q' has NaN or infinite"):
        framework.api.calibrate(model, data, "max", batch_size=2)
    assert (quantizer.amax, quantizer.calibrated) == (before, False)


def test_calibrate_sees_the_float_tensors(framework: Any) -> None:
    """A quantizer behind another sees the unquantized values."""
    model = framework.quantizers("first", "second")
    framework.api.model_quantizers(model)["first"].amax = 0.5
    report = framework.api.calibrate(model, VALUES, "max")
    found = {name: each.amax for name, each in report.tensors.items()}
    assert found == {"first": 14.0, "second": 14.0}


def test_calibrate_gives_a_shared_quantizer_one_histogram(framework: Any) -> None:
    model = framework.two_inputs(list, shared=True)
    found = framework.api.calibrate(model, [VALUES, 3 * VALUES], "max").tensors["qa"]
    assert (found.amax, found.values) == (42.0, 28)


@pytest.mark.parametrize(("least", "warns"), [(-0.5, True), (0.0, False), (0.25, False)])
def test_calibrate_warns_of_negative_values(
    framework: Any, caplog: pytest.LogCaptureFixture, least: float, warns: bool
) -> None:
    model = framework.quantizers("q", unsigned=True)
    framework.api.calibrate(model, np.float32([[least, 2.0]]), "max")
    assert bool(caplog.text) is warns
    assert ("turn into 0: 1 of them, such as q." in caplog.text) is warns


def test_calibrate_refuses_a_model_without_quantizers(framework: Any) -> None:
    with pytest.raises(CalibrationError, match="The model 'Linear' has no quantizer"):
        framework.api.calibrate(framework.linear(), VALUES)


def test_calibrate_stops_observing_when_data_fail(framework: Any) -> None:
    def fails() -> Any:
        yield VALUES
        raise OSError("disk")

    model = framework.quantizers("q")
    with pytest.raises(OSError, match="disk"):
        framework.api.calibrate(model, fails())
    framework.api.model_quantizers(model)["q"].amax = 6.0
    assert framework.predict(model, np.float32([[100, 1]]))[0, 0] == pytest.approx(6.0)
