"""Targets, signs and FP16 by settings and available backends."""

from typing import Any

import pytest

from qat_lib.engines import cpu_kind
from qat_lib.errors import BackendUnavailableError, ConfigError, ExportError
from qatline.components.export import choice as export_choice
from qatline.components.export.choice import (
    ExportChoice,
    choose_export,
    choose_integers,
    engine_dependencies,
    sign_problem,
    target_dependencies,
)
from qatline.components.settings import EngineSettings, ExportSettings, QuantizationSettings

BACKENDS = ("tensorrt", "openvino", "onnxruntime")


@pytest.fixture(params=[*BACKENDS, None])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The backend of this machine, or None."""

    def choose(wanted: str) -> str:
        assert wanted == "auto"
        if request.param is None:
            raise BackendUnavailableError("none works")
        return str(request.param)

    monkeypatch.setattr(export_choice, "_choose", choose)
    monkeypatch.setattr("qat_lib.engines.choose_backend", choose)
    return request.param


def test_engine_dependencies_are_backend_and_fp16(machine: str | None) -> None:
    backend: Any = machine or "auto"
    given = EngineSettings(fp16="never", threads=3)
    assert engine_dependencies(given) == EngineSettings(backend=backend, fp16="never")
    given = EngineSettings(backend="onnxruntime")
    assert engine_dependencies(given) == given
    engine = EngineSettings(backend="openvino", fp16="never", cpu="avx2")
    assert target_dependencies(ExportSettings(opset=18), engine) == {
        "export": ExportSettings(),
        "engine": EngineSettings(backend="openvino", cpu="avx2"),
    }
    default = EngineSettings(backend=backend, cpu=cpu_kind())
    assert target_dependencies(ExportSettings(), EngineSettings())["engine"] == default


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fp16", "wanted"), [("always", True), ("never", False), ("auto", None)])
def test_choose_export_writes_fp16_for_tensorrt(
    machine: str | None, backend: Any, fp16: Any, wanted: bool | None
) -> None:
    expected = backend == "tensorrt" if wanted is None else wanted
    choice = choose_export(ExportSettings(), EngineSettings(backend=backend, fp16=fp16))
    assert choice == ExportChoice(target=backend, fp16=expected)


def test_choose_export_probes_only_if_both_auto(machine: str | None) -> None:
    assert choose_export(ExportSettings(target="openvino"), EngineSettings()).target == "openvino"
    if machine is None:
        with pytest.raises(BackendUnavailableError):
            choose_export(ExportSettings(), EngineSettings())
    else:
        choice = choose_export(ExportSettings(), EngineSettings())
        assert choice == ExportChoice(target=machine, fp16=machine == "tensorrt")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", BACKENDS)
def test_choose_export_refuses_openvino_graphs_for_tensorrt_alone(
    target: Any, backend: Any
) -> None:
    settings = ExportSettings(target=target), EngineSettings(backend=backend)
    if (target, backend) == ("openvino", "tensorrt"):
        with pytest.raises(ConfigError, match=r"export\.target=openvino stores unsigned"):
            choose_export(*settings)
    else:
        assert sign_problem("auto", target, backend) is None
        assert choose_export(*settings).target == target


def test_choose_export_refuses_int4_weights_for_tensorrt() -> None:
    for target in ("auto", "tensorrt"):
        settings = ExportSettings(target=target, weights="int4")
        with pytest.raises(ExportError, match="no convolution with INT4"):
            choose_export(settings, EngineSettings(backend="tensorrt"))
    settings = ExportSettings(weights="int4")
    assert choose_export(settings, EngineSettings(backend="openvino")).target == "openvino"


@pytest.mark.parametrize("unsigned", ["auto", "always", "never"])
def test_choose_integers_goes_by_the_machine(machine: str | None, unsigned: Any) -> None:
    asked = QuantizationSettings(unsigned=unsigned), ExportSettings(), EngineSettings()
    if unsigned == "always" and machine == "tensorrt":
        with pytest.raises(ConfigError, match=r"Received: engine\.backend=tensorrt"):
            choose_integers(*asked)
        return
    expected = {"never": False, "always": True, "auto": machine not in (None, "tensorrt")}
    found = choose_integers(*asked)
    assert found["unsigned"] is expected[unsigned]
    assert found["cpu"] == (None if machine == "tensorrt" else cpu_kind())


@pytest.mark.parametrize("cpu", ["avx2", "vnni", "arm"])
def test_choose_integers_takes_the_cpu_of_the_engines(cpu: Any) -> None:
    settings = QuantizationSettings(), ExportSettings()
    assert choose_integers(*settings, EngineSettings(backend="openvino", cpu=cpu))["cpu"] == cpu
    assert choose_integers(*settings, EngineSettings(backend="tensorrt", cpu=cpu))["cpu"] is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime"])
def test_choose_integers_is_false_for_tensorrt(target: Any, backend: Any) -> None:
    asked = ExportSettings(target=target), EngineSettings(backend=backend)
    expected = "tensorrt" not in (target, backend)
    found = choose_integers(QuantizationSettings(unsigned="auto"), *asked)
    assert found["unsigned"] is expected
    assert (sign_problem("always", target, backend) is None) is expected
    assert sign_problem("auto", target, backend) is None


def test_sign_problem_names_the_setting() -> None:
    assert "Received: export.target=tensorrt" in (
        sign_problem("always", "tensorrt", "openvino") or ""
    )
    assert "Received: engine.backend=tensorrt" in (
        sign_problem("always", "onnxruntime", "tensorrt") or ""
    )
