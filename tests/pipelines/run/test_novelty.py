"""The fingerprint of a run's inputs, and what was judged before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_registry import MemoryRegistry

from qatline.components.registry.registry import RegisteredVersion
from qatline.pipelines.config.run_config import RunConfig, build_config
from qatline.pipelines.run.novelty import inputs_fingerprint, judged_before


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((4, 2)))
    return path


def config(data: Path, **values: object) -> RunConfig:
    return build_config({"data": {"kind": "npz", "path": str(data)}, **values})


def test_fingerprint_changes_with_what_matters(data: Path) -> None:
    first = inputs_fingerprint(config(data))
    assert inputs_fingerprint(config(data)) == first
    for change in ({"seed": 1}, {"qat": {"epochs": 1}}, {"gate": {"required": 0.5}}):
        assert inputs_fingerprint(config(data, **change)) != first
    np.savez(data, x=np.zeros((4, 2)))
    assert inputs_fingerprint(config(data)) != first


def test_fingerprint_stays_wherever_the_run_has_its_place(data: Path) -> None:
    first = inputs_fingerprint(config(data))
    places: dict[str, object] = {
        "registry": {"name": "other"},
        "output": "elsewhere",
        "tracking": {"experiment": "e"},
        "retrain": {"only_new": True},
    }
    assert inputs_fingerprint(config(data, **places)) == first


@pytest.mark.parametrize(
    ("state", "known"),
    [
        ("promoted", True),
        ("rejected", True),
        ("rolled_back", True),
        ("pending", False),
        ("abandoned", False),
    ],
)
def test_only_what_was_judged_to_the_end_counts(tmp_path: Path, state: str, known: bool) -> None:
    registry = MemoryRegistry(tmp_path)
    tags = {"qatline.inputs": "f", "qatline.state": state}
    registry.found = [RegisteredVersion(number=1, tags=tags), RegisteredVersion(number=2)]
    assert bool(judged_before(registry, "f")) is known
    assert judged_before(registry, "another") == ""
