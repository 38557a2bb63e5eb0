"""Fixtures that several packages share. Nothing heavy is imported before a test asks for it."""

import fnmatch
import gc
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes that share the cores: threads of each would only wait for those of the others.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Traced graphs are millions of small objects: at the default threshold an eighth of the time goes to their collection.
gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str
) -> Generator[None, list[pytest.Function], list[pytest.Function]]:
    """Mark as ``matrix`` the cases of a test that no pattern of its ``matrix_except`` matches."""
    made = yield
    cases = made if isinstance(made, list) else []
    mark = next((mark for case in cases for mark in case.iter_markers("matrix_except")), None)
    if mark is not None:
        ids = [case.callspec.id for case in cases]
        kept = {id for pattern in mark.args for id in fnmatch.filter(ids, pattern)}
        # Without this, the default run would lose a test whose cases are renamed.
        if unknown := [pattern for pattern in mark.args if not fnmatch.filter(ids, pattern)]:
            raise collector.CollectError(f"{name} has no case {unknown}, but {ids}")
        for case in cases:
            if case.callspec.id not in kept:
                case.add_marker("matrix")
    return made


class RecordingProgress:
    """Progress that a test can look at."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int]] = []
        self.warnings: list[str] = []

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        self.updates.append((phase, current, total))

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of the machine that runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith(("QATLINE_", "MLFLOW_", "AWS_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _own_determinism() -> Iterator[None]:
    """Undo what the training steps switch on for their whole process: Keras refuses XLA where it is on."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework import config

        if config.is_op_determinism_enabled():
            config.disable_op_determinism()
    if "torch" in sys.modules:
        sys.modules["torch"].use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _no_open_scopes() -> Iterator[None]:
    """Fail a test that leaves one of Keras's name scopes open: every model that is built later would bear its name."""
    yield
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state

        stack = global_state.get_global_attribute("name_scope_stack") or []
        names = [scope.name for scope in stack]
        stack.clear()
        assert not names, f"left open: {names}"


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture(scope="session")
def digits_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's digits, prepared with seed 0."""
    from qatline.components.settings import DataSettings
    from qatline.components.steps.prepare_data import prepare_data_step

    out = tmp_path_factory.mktemp("digits")
    prepare_data_step(out, data=DataSettings(), seed=0, progress=RecordingProgress())
    return out


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Put an empty MLflow store into a folder, and return its URI.

    A copy: MLflow takes more than a second to make the tables of each new one.
    """
    from mlflow import MlflowClient

    original = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{original}").search_experiments()

    def copied(folder: Path) -> str:
        shutil.copy(original, folder / "mlflow.db")
        return f"sqlite:///{folder}/mlflow.db"

    return copied


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder of small PNG images: ``make(classes, count, size=(height, width))``."""
    from PIL import Image

    def make(
        classes: tuple[str, ...] = ("cat", "dog"), count: int = 12, size: tuple[int, int] = (6, 8)
    ) -> Path:
        generator = np.random.default_rng(7)
        root = tmp_path / "images"
        for name in classes:
            (root / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 256, (*size, 3), np.uint8)
                Image.fromarray(pixels).save(root / name / f"{index:03d}.png")
        return root

    return make


@pytest.fixture(scope="session")
def pin_fp16() -> Callable[[bool, pytest.MonkeyPatch], None]:
    """``pin_fp16(has_fp16, monkeypatch)`` gives OpenVINO a CPU with FP16 or without, whatever the machine has."""

    def pin(has_fp16: bool, patch: pytest.MonkeyPatch) -> None:
        # What it computes in is FP32 in both cases, which every CPU has.
        hints = {"fp32": "f32", "fp16": "f32"} if has_fp16 else {"fp32": "f32"}
        patch.setattr("qat_lib.engines.openvino.float_hints", lambda: hints)

    return pin
