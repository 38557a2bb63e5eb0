"""The promote step: verdict and report from earlier steps' evidence.

What is missing counts against the engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_classifier import write_graph

from qat_lib.errors import StepError
from qatline.components.serving.package import read_package
from qatline.components.settings import GateSettings, PackageSettings
from qatline.components.steps.promote import promote_step
from qatline.components.storage.published import fetch_published
from qatline.components.store.manifest import MANIFEST_NAME, describe

STEPS = ("dataset", "baseline", "ptq", "qat", "onnx", "engines", "evaluation")


class Listener:
    """Remembers what the step says."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.warnings: list[str] = []

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        self.phases.append((phase, current, total))

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Path]:
    folders = {name: tmp_path / name for name in (*STEPS, "out")}
    for folder in folders.values():
        folder.mkdir()
    write(folders["evaluation"] / "evaluation.json", evidence())
    write(
        folders["onnx"] / "export.json",
        {"qat": {"verification": []}, "fp32": {"verification": [{"code": "C01"}]}},
    )
    write(folders["onnx"] / "analysis.json", {"findings": []})
    (folders["onnx"] / "qat.onnx").write_bytes(b"the graph")
    write(folders["baseline"] / "model.json", {"name": "resnet/digits v1"})
    return folders


def evidence(accuracy: float = 0.98) -> dict[str, Any]:
    engine = {"latency_ms_p50": 0.5, "int8_layers": 10, "weighted_layers": 10}
    results = {
        "fp32": {"accuracy": 0.98},
        "fp32_engine": {"accuracy": 0.98, "latency_ms_p50": 1.0},
        "qat_engine": {"accuracy": accuracy, **engine},
    }
    return {
        "results": results,
        "chance": {"samples": 20, "value": 1.0, "chance": 0.5, "p_value": 0.0005},
        "infrastructure_check": {"passed": True, "message": "32 requests equal"},
    }


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def call(
    run: dict[str, Path], listener: Listener | None = None, **bounds: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    metrics = promote_step(
        **run, gate=GateSettings.model_validate(bounds), seed=1, progress=listener or Listener()
    )
    return metrics, json.loads((run["out"] / "verdict.json").read_text())


def test_sound_engine_is_promoted(run: dict[str, Path]) -> None:
    listener = Listener()
    metrics, verdict = call(run, listener, min_speedup=1.9)
    assert verdict["verdict"] == "promote"
    assert metrics == {
        "promoted": 1.0, "checks": 7.0, "checks_failed": 0.0, "accuracy": 0.98, "accuracy_drop": 0.0, "speedup": 2.0,
    }  # fmt: skip
    assert listener.warnings == []
    assert listener.phases[-1] == ("reporting", 2, 2)
    assert "Promoted" in (run["out"] / "report.html").read_text()
    assert verdict["model"] == "resnet_digits_v1"
    assert (run["out"] / "champion.onnx").read_bytes() == b"the graph"


def test_inaccurate_engine_is_rejected_with_report(run: dict[str, Path]) -> None:
    write(run["evaluation"] / "evaluation.json", evidence(accuracy=0.95))
    listener = Listener()
    metrics, verdict = call(run, listener)
    assert verdict["verdict"] == "reject"
    assert metrics["promoted"] == 0.0
    assert metrics["checks_failed"] == 1.0
    assert listener.warnings[0].startswith(
        "quality_drop: The INT8 engine loses 3.00 percentage points"
    )
    assert "Rejected" in (run["out"] / "report.html").read_text()
    assert not (run["out"] / "champion.onnx").exists()


@pytest.mark.parametrize(
    ("name", "check"), [("export.json", "verification"), ("analysis.json", "analysis")]
)
@pytest.mark.parametrize("content", [None, "{", "[]", '{"qat": 3, "findings": "none"}'])
def test_missing_evidence_counts_against(
    run: dict[str, Path], name: str, check: str, content: str | None
) -> None:
    path = run["onnx"] / name
    path.unlink() if content is None else path.write_text(content)
    _, verdict = call(run)
    assert [reason["check"] for reason in verdict["reasons"] if not reason["passed"]] == [check]


@pytest.mark.parametrize("content", [None, "", "{"])
def test_without_measurements_there_is_nothing_to_judge(
    run: dict[str, Path], content: str | None
) -> None:
    path = run["evaluation"] / "evaluation.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(StepError, match="Run evaluate again"):
        call(run)
    assert list(run["out"].iterdir()) == []


def test_measurements_of_another_shape_are_rejected_not_promoted(run: dict[str, Path]) -> None:
    write(run["evaluation"] / "evaluation.json", {"results": [1], "infrastructure_check": 7})
    _, verdict = call(run)
    assert verdict["verdict"] == "reject"


@pytest.mark.parametrize("accuracy", [0.98, 0.5])
def test_promoted_engines_are_packaged_and_published(
    run: dict[str, Path], tmp_path: Path, accuracy: float
) -> None:
    from qat_lib.engines import BuildSpec, build_engine

    write(run["evaluation"] / "evaluation.json", evidence(accuracy))
    graph = write_graph(run["onnx"] / "qat.onnx")
    engine = run["engines"] / "qat.engine"
    build_engine(graph, BuildSpec(backend="onnxruntime"), output=engine)
    manifest = describe(run["ptq"], step="quantize_model", settings={})
    write(run["ptq"] / MANIFEST_NAME, manifest.to_dict())
    published = tmp_path / "store"
    promote_step(
        **run,
        gate=GateSettings(),
        seed=1,
        progress=Listener(),
        package=PackageSettings(target="plain", publish=str(published)),
    )
    assert "# resnet/digits v1 in INT8" in (run["out"] / "MODEL_CARD.md").read_text()
    assert (run["out"] / "package").exists() == published.exists() == (accuracy == 0.98)
    if accuracy == 0.98:
        package = read_package(run["out"] / "package")
        assert package.model.name == "resnet_digits_v1"
        fetch_published(str(published), tmp_path / "copy")
        assert read_package(tmp_path / "copy").files == package.files
