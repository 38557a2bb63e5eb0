"""The files of a registered version, written and opened again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_registry import MemoryRegistry
from tiny_retraining import write_linear

from qat_lib.errors import DataError, TrackingError
from qat_lib.preprocessing import Preprocessing
from qatline.components.registry.package import fetch_champion, write_package
from qatline.components.registry.registry import DIGEST
from qatline.components.store.fingerprints import file_digest

pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")

PREPROCESSING = Preprocessing(image_shape=(8, 8, 1), dtype="float32", scale=1 / 16)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "qat.onnx"
    write_linear(path, np.ones((64, 10), np.float32), np.zeros(10, np.float32), 1.0, True)
    return path


@pytest.fixture
def registry(tmp_path: Path, graph: Path) -> MemoryRegistry:
    """A registry with the graph as its one version."""
    model = tmp_path / "model.keras"
    model.write_bytes(b"float")
    write_package(
        tmp_path / "package",
        graph=graph,
        preprocessing=PREPROCESSING,
        classes=("a", "b"),
        baseline=[model],
        card="# Card",
    )
    made = MemoryRegistry(tmp_path / "registry")
    made.ensure()
    source = made.upload("place", tmp_path / "package")
    made.create_version(source, {DIGEST: file_digest(graph)}, "text")
    return made


def test_package_is_an_mlflow_model_with_all_that_feeds_it(
    registry: MemoryRegistry, graph: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    champion = fetch_champion(registry, registry.found[0], tmp_path / "copy")
    assert champion.graph.read_bytes() == graph.read_bytes()
    assert champion.preprocessing == PREPROCESSING
    assert champion.classes == ("a", "b")
    assert champion.version == 1
    assert (tmp_path / "copy" / "baseline" / "model.keras").read_bytes() == b"float"
    assert (tmp_path / "copy" / "MODEL_CARD.md").read_text() == "# Card"
    assert "signature" in (tmp_path / "copy" / "MLmodel").read_text()


def test_fetch_champion_of_an_earlier_release_has_no_facts(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    (tmp_path / "registry" / "place" / "qatline.json").unlink()
    (tmp_path / "copy").mkdir()
    champion = fetch_champion(registry, registry.found[0], tmp_path / "copy")
    assert (champion.preprocessing, champion.classes) == (None, ())


@pytest.mark.parametrize("content", [b"another graph", None])
def test_fetch_champion_refuses_other_files(
    registry: MemoryRegistry, tmp_path: Path, content: bytes | None
) -> None:
    stored = tmp_path / "registry" / "place" / "model.onnx"
    stored.unlink()
    if content is not None:
        stored.write_bytes(content)
    (tmp_path / "copy").mkdir()
    with pytest.raises(TrackingError, match=r"holds no model\.onnx with the digest"):
        fetch_champion(registry, registry.found[0], tmp_path / "copy")


def test_fetch_champion_refuses_damaged_facts(registry: MemoryRegistry, tmp_path: Path) -> None:
    facts = tmp_path / "registry" / "place" / "qatline.json"
    for number, text in enumerate(['{"classes": 5}', "{", '{"preprocessing": 3}']):
        facts.write_text(text)
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        with pytest.raises(DataError, match=r"[Ee]xpected"):
            fetch_champion(registry, registry.found[0], copy)
