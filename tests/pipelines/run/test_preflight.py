"""Errors found before a run's first step, without heavy imports."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from qat_lib.errors import BackendUnavailableError, MissingPackageError, QatlineError
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run import preflight
from qatline.pipelines.run.preflight import check_before_training

SOURCE = """
import os as system
from math import pi
VALUE: int = 3
other = None
def build(): ...
class Case: ...
if __name__ == "__main__":
    hidden = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's module, package and files."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "loose.py").write_text("for name in 'ab':\n    globals()[name] = print\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "pack" / "inner.py").write_text("def build(): ...\n")
    for name in ("m.keras", "w.npz", "spec.yaml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QATLINE_TRACKING", "off")
    return tmp_path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=n.keras", "expected a Keras file at .*n.keras; there is none"),
        (
            "model.name=keras.applications:MobileNetv2",
            "has no 'MobileNetv2'. Did you mean 'MobileNetV2'?",
        ),
        ("model.name=mein:build", "expected the module 'mein' on the Python path"),
        ("model.name=pack.outer:build", "expected the module 'pack.outer' on the Python path"),
        ("model.name=mine:biuld", "the module 'mine' has no 'biuld'. Did you mean 'build'?"),
        ("model.name=mine:hidden", "has no 'hidden'"),
        ("model.weights=v.npz", "expected a weights file at .*v.npz; there is none"),
        (
            "quantization.spec=spek.yaml",
            "Expected a quantization spec at .*spek.yaml; there is none",
        ),
        ("quantization.cases=[mine:Caes]", "has no 'Caes'. Did you mean 'Case'?"),
        (
            "training.callbacks=[EarlyStoping]",
            "training.callbacks: .* has no 'EarlyStoping'. Did you mean 'EarlyStopping'?",
        ),
        ("qat.callbacks=[{name: 'mine:Caes'}]", "qat.callbacks: the module 'mine' has no 'Caes'"),
        ("qat.optimizer=mine:biuld", "qat.optimizer: .* Did you mean 'build'?"),
        ("training.schedule=mein:rate", "training.schedule: expected the module 'mein'"),
        ("training.augment=mine:hidden", "training.augment: .* has no 'hidden'"),
    ],
)
def test_run_is_refused_for_missing_references(here: Path, override: str, message: str) -> None:
    with pytest.raises(QatlineError, match=message):
        check_before_training(load_config(overrides=[override]))


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "model.name=m.keras",
        "model.name=keras.applications:MobileNetV2",
        "model.name=mine:build",
        "model.name=mine:system",
        "model.name=mine:VALUE",
        "model.name=loose:a",
        "model.name=pack.inner:build",
        "model.weights=w.npz",
        "model.weights=imagenet",
        "quantization.spec=spec.yaml",
        "quantization.cases=[mine:Case, ResNetV1QDQCase]",
        "training.callbacks=[TerminateOnNaN, mine:Case]",
        "qat.optimizer=keras.optimizers:Lion",
    ],
)
def test_a_run_that_may_work_is_let_through(here: Path, override: str) -> None:
    check_before_training(load_config(overrides=[override]))


def test_user_packages_may_have_names_of_our_folders(here: Path) -> None:
    for name in ("components", "pipelines"):
        (here / name).mkdir()
        (here / name / "__init__.py").write_text("")
    (here / "components" / "layers.py").write_text("def head(): ...\n")
    (here / "pipelines" / "net.py").write_text(
        "from components.layers import head\ndef build(): return head()\n"
    )
    check_before_training(load_config(overrides=["model.name=pipelines.net:build"]))
    code = (
        "from qatline.components.support.user_code import find_user_modules, import_callable\n"
        "find_user_modules()\n"
        "print(import_callable('model.name', 'pipelines.net:build')())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "None", done.stderr


def test_a_backend_that_is_not_there_is_told(here: Path) -> None:
    pytest.importorskip("openvino")
    if preflight.missing_packages(["tensorrt"]):
        with pytest.raises(BackendUnavailableError, match="The tensorrt backend needs"):
            check_before_training(load_config(overrides=["engine.backend=tensorrt"]))


def test_missing_packages_are_named_with_their_extras(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def missing(packages: list[str]) -> list[str]:
        asked.extend(packages)
        return ["sklearn", "mlflow"]

    monkeypatch.setattr(preflight, "missing_packages", missing)
    monkeypatch.delenv("QATLINE_TRACKING")
    with pytest.raises(
        MissingPackageError, match=r"needs sklearn, mlflow, which are .*qatline\[data,pipeline\]"
    ):
        check_before_training(load_config(overrides=["data={kind: npz, path: s3://b/k}"]))
    assert {"boto3", "mlflow"} < set(asked)
    assert "sklearn" not in asked


def test_refused_run_leaves_no_folder(here: Path) -> None:
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom qatline.pipelines.cli.main import app\n"
        "done = CliRunner().invoke(app, ['run', '--set', 'quantization.cases=[mine:Caes]'])\n"
        "heavy = [name for name in ('tensorflow', 'keras', 'kfp') if name in sys.modules]\n"
        "sys.exit(f'{done.exit_code} {done.stderr} {heavy}')"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": root},
        cwd=here,
    )
    assert done.stderr.startswith("2 Error: quantization.cases: the module 'mine' has no 'Caes'.")
    assert done.stderr.endswith("[]\n")
    assert not (here / "runs").exists()


def test_pytorch_is_asked_for_before_anything_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(packages: Iterable[str]) -> list[str]:
        return [name for name in packages if name in ("torch", "onnxscript")]

    monkeypatch.setattr(preflight, "missing_packages", missing)
    check_before_training(load_config())
    overrides = ["model.framework=torch", "model.name=mine:build"]
    with pytest.raises(
        MissingPackageError, match=r"needs torch, onnxscript, .* pip install 'qatline\[torch\]'"
    ):
        check_before_training(load_config(overrides=overrides))
