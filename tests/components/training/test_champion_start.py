"""Training that begins with the champion: what it gets, and why it may begin from scratch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memory_registry import MemoryRegistry
from tiny_retraining import write_linear

from qat_lib.errors import UnsupportedModelError
from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Baseline
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.registry.package import write_package
from qatline.components.registry.registry import DIGEST
from qatline.components.settings import RegistrySettings
from qatline.components.store.fingerprints import file_digest
from qatline.components.training import champion_start
from qatline.components.training.champion_start import champion_network

pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")

INFO = DatasetInfo(
    kind="npz",
    classes=("a", "b"),
    inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
    splits={"test": 2},
    fingerprint="f",
    source="",
)
NAMED = RegistrySettings(name="model")


class Loader:
    """A framework that returns what the model's file holds."""

    def load(self, folder: Baseline) -> bytes:
        return folder.model_file.read_bytes()

    def check_model(self, model: bytes, shapes: object, task: object) -> None:
        """Take images of 8 x 8 pixels, as Keras's and PyTorch's checks would say of this model."""
        if shapes != (8, 8, 1):
            raise UnsupportedModelError("The model expects inputs of shape (8, 8, 1)")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryRegistry:
    """The registry of the run, with a champion for two classes."""
    graph, model = tmp_path / "qat.onnx", tmp_path / "model.keras"
    write_linear(graph, np.ones((64, 10), np.float32), np.zeros(10, np.float32), 1.0, True)
    model.write_bytes(b"the float weights")
    write_package(
        tmp_path / "package",
        graph=graph,
        preprocessing=Preprocessing(image_shape=(8, 8, 1), dtype="float32"),
        classes=("a", "b"),
        baseline=[model],
        card="# Card",
    )
    made = MemoryRegistry(tmp_path / "registry")
    made.ensure()
    source = made.upload("place", tmp_path / "package")
    number = made.create_version(source, {DIGEST: file_digest(graph)}, "text")
    made.set_alias("champion", number)
    monkeypatch.setattr(champion_start, "run_registry", lambda settings, warn: made)
    return made


def test_champion_network_is_loaded_from_the_registry(registry: MemoryRegistry) -> None:
    told = list[str]()
    assert champion_network(NAMED, Loader(), INFO, warn=told.append) == b"the float weights"
    assert told == []


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (replace(INFO, classes=("a", "c")), "it has the classes a, b; the data has a, c"),
        (
            replace(INFO, inputs={"x": InputInfo(shape=(9, 9, 1), dtype="float32")}),
            "expects inputs of shape (8, 8, 1)",
        ),
    ],
)
def test_champion_of_other_data_is_left(
    registry: MemoryRegistry, info: DatasetInfo, reason: str
) -> None:
    told = list[str]()
    assert champion_network(NAMED, Loader(), info, warn=told.append) is None
    assert reason in told[0]
    assert "training begins from scratch" in told[0]


def test_champion_without_float_weights_is_left(registry: MemoryRegistry, tmp_path: Path) -> None:
    (tmp_path / "registry" / "place" / "baseline" / "model.keras").unlink()
    told = list[str]()
    assert champion_network(NAMED, Loader(), INFO, warn=told.append) is None
    assert "version 1 can't be trained further" in told[0]


def test_first_run_begins_from_scratch(registry: MemoryRegistry) -> None:
    registry.delete_alias("champion")
    told = list[str]()
    assert champion_network(NAMED, Loader(), INFO, warn=told.append) is None
    assert "no champion exists yet" in told[0]
