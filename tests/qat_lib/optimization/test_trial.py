"""Builds and timing of engines: their batches, and the fastest float engine of sufficient quality."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from qat_lib.engines import BuildSpec, load_engine
from qat_lib.engines.backend import get_backend
from qat_lib.errors import EngineBuildError, EngineError
from qat_lib.optimization import trial as module
from qat_lib.optimization.trial import EngineTrial

SUFFIXES = (".engine", ".engine.json", ".layers.json")


class Builds:
    """Engines that state their precision, in place of OpenVINO's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **times: float) -> None:
        self.trial = EngineTrial(folder=folder, backend="openvino")
        self.path = folder / "float.engine"
        self._times = times
        self.wrong: set[str] = set()
        self.failing: set[str] = set()
        backend = type(get_backend("openvino"))
        monkeypatch.setattr(backend, "float_precisions", lambda _: tuple(times))
        monkeypatch.setattr(module, "build_engine", self.build)
        monkeypatch.setattr(module, "load_engine", self.load)
        monkeypatch.setattr(EngineTrial, "_spec", lambda *_: BuildSpec(backend="openvino"))
        monkeypatch.setattr(EngineTrial, "compare", self.compare)
        self.build(folder / "float.onnx", BuildSpec(backend="openvino"), output=self.path)

    def build(self, onnx: Path, spec: BuildSpec, *, output: Path, verify: bool = True) -> Any:
        precision = spec.float_precision
        if verify and precision in self.wrong:
            raise EngineBuildError(f"{precision} of {onnx.name} is wrong")
        if self._times[precision] == float("inf"):
            raise EngineBuildError(f"{precision} of {onnx.name} overflows")
        for suffix in SUFFIXES:
            output.with_suffix(suffix).write_text(precision)
        return SimpleNamespace(path=output)

    def load(self, path: Path) -> Any:
        def infer(_: Any) -> None:
            if path.read_text() in self.failing:
                raise EngineError("OpenVINO failed on the batch")

        engine = SimpleNamespace(infer=infer, random_batch=lambda _: None)
        return nullcontext(engine)

    def compare(self, engines: Mapping[str, Path]) -> dict[str, float]:
        return {name: self._times[path.read_text()] for name, path in engines.items()}

    def left(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.path.parent.iterdir()}


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"fp32": 1.0}, "fp32"),
        ({"fp32": 1.0, "fp16": 1.2}, "fp32"),
        ({"fp32": 1.0, "fp16": 0.8, "bf16": 0.9}, "fp16"),
        ({"fp32": 1.0, "fp16": float("inf"), "bf16": 0.3}, "bf16"),
    ],
)
def test_fastest_float_engine_replaces_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: dict[str, float], best: str
) -> None:
    builds = Builds(monkeypatch, tmp_path, **times)
    found = builds.trial.fastest(builds.path)
    assert (found.path, found.precision) == (builds.path, best)
    assert builds.left() == {f"float{suffix}": best for suffix in SUFFIXES}
    failed = [name for name, time in times.items() if time == float("inf")]
    assert found.warnings == tuple(
        f"No {name.upper()} engine: {name} of float.onnx overflows" for name in failed
    )


def test_float_engine_of_low_quality_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = Builds(monkeypatch, tmp_path, fp32=1.0, bf16=0.1)
    found = builds.trial.fastest(builds.path, lambda path: path.read_text() != "bf16")
    assert found.precision == "fp32"
    assert set(builds.left().values()) == {"fp32"}


def test_wrong_float_engine_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = Builds(monkeypatch, tmp_path, fp32=1.0, bf16=0.5, fp16=0.1)
    builds.wrong.add("fp16")
    found = builds.trial.fastest(builds.path)
    assert found.precision == "bf16"
    assert set(builds.left().values()) == {"bf16"}
    assert found.warnings == ("No FP16 engine: fp16 of float.onnx is wrong",)


def test_engine_that_does_not_run_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = Builds(monkeypatch, tmp_path, fp32=1.0, fp16=0.1)
    builds.failing.add("fp16")
    found = builds.trial.fastest(builds.path)
    assert found.precision == "fp32"
    assert set(builds.left().values()) == {"fp32"}
    assert found.warnings == ("No FP16 engine: OpenVINO failed on the batch",)


@pytest.mark.parametrize("side", [8, None])
@pytest.mark.parametrize(
    ("samples", "limit", "expected"), [(None, 2**30, 32), (None, 5 * 2**14, 5), (7, 1, 7)]
)
def test_batch_of_large_samples_is_smaller(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: int | None,
    samples: int | None,
    limit: int,
    expected: int,
) -> None:
    """The largest tensor has 32 x 32 x 4 values of 4 bytes, the weights 4 times as many."""
    x = keras.Input((side, side, 3))
    y = keras.layers.UpSampling2D(4)(keras.layers.Conv2D(4, 3, padding="same")(x))
    pooled = keras.layers.GlobalAveragePooling2D()(y)
    model = keras.Model(x, keras.layers.Dense(4096)(pooled))
    monkeypatch.setattr("qat_lib.optimization.trial.LARGEST_TENSOR", limit)
    trial = EngineTrial(
        folder=tmp_path,
        backend="openvino",
        # Read for inputs of open sizes only.
        batches=lambda: (
            [[np.zeros((2, 8, 8, 3), "float32")]] if side is None else pytest.fail("read")
        ),
        max_batch_size=samples,
    )
    with load_engine(trial.build_float(model).path) as engine:
        assert engine.batch_sizes == (1, expected)
