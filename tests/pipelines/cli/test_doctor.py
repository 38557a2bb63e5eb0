from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from qat_lib.errors import EngineBuildError
from qatline.pipelines.cli import doctor
from qatline.pipelines.cli.main import app


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["doctor", *arguments])
    return done.exit_code, done.output


def test_doctor_builds_an_engine_with_each_backend() -> None:
    code, output = run("--json")
    found = {each["name"]: each for each in json.loads(output)["findings"]}
    assert code == 0
    for name in ("openvino", "onnxruntime"):
        assert found[f"backend {name}"]["status"] == "works"
        assert "built and ran an engine" in found[f"backend {name}"]["detail"]


@pytest.mark.parametrize(
    ("kind", "flags", "effect"),
    [
        ("avx2", ["avx2"], "(avx2): neither VNNI nor AMX"),
        ("vnni", ["avx2", "avx512f", "avx512_vnni"], "(avx2, avx512f, avx512_vnni): VNNI or AMX"),
        ("arm", [], "(aarch64): 64-bit ARM"),
    ],
)
def test_doctor_explains_the_effect_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, kind: str, flags: list[str], effect: str
) -> None:
    device = {"name": "A", "flags": flags, "architecture": "aarch64", "cpu": kind}
    monkeypatch.setattr(doctor, "cpu_device", lambda: device)
    monkeypatch.setattr(doctor, "BACKENDS", ())
    found = {each.name: each for each in doctor.examine()}
    assert effect in found["cpu"].detail


def test_doctor_names_the_command_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_packages", list)
    code, output = run()
    assert code == 0  # extras are optional
    assert "extra sweep: pip install 'qatline[sweep]'" in output
    assert "backend tensorrt: pip install tensorrt-cu12 'qatline[engine,tensorrt]'" in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_doctor_fails_if_an_installed_backend_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise EngineBuildError(f"{name} is damaged")

    monkeypatch.setattr(doctor, "_run_tiny_engine", fail)
    code, output = run()
    assert code == 1
    assert "openvino is damaged" in output
