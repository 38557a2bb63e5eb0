"""A champion that can't be fetched: damaged, or in a store that is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_registry import MemoryRegistry

from qat_lib.errors import TrackingError
from qatline.components.artifacts.comparison import ChampionComparison
from qatline.components.evaluation.against_champion import compare_with_version
from qatline.components.registry.registry import DIGEST, ModelState, RegisteredVersion
from qatline.components.settings import EngineSettings

VERSION = RegisteredVersion(number=3, tags={DIGEST: "d"})


class BrokenRegistry(MemoryRegistry):
    """A registry whose files can't be fetched."""

    def __init__(self, folder: Path, reason: str, *, away: bool = False) -> None:
        super().__init__(folder)
        self.reason, self.away = reason, away

    def state(self) -> ModelState:
        if self.away:
            raise TrackingError("the store is away")
        return super().state()

    def download(self, number: int, folder: Path) -> None:
        raise TrackingError(self.reason)


def compare(registry: MemoryRegistry, folder: Path) -> ChampionComparison:
    candidate = folder / "candidate.onnx"
    candidate.write_bytes(b"graph")
    return compare_with_version(
        registry,
        VERSION,
        candidate,
        folder,
        settings=EngineSettings(),
        backend="onnxruntime",
        seed=0,
    )


def test_champion_whose_files_are_gone_is_a_problem(tmp_path: Path) -> None:
    found = compare(BrokenRegistry(tmp_path, "no such artifact"), tmp_path)
    assert found.problem == "version 3 can't be fetched: no such artifact"
    assert (found.version, found.digest) == (3, "d")


def test_store_that_is_away_is_no_verdict_on_the_candidate(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="the store is away"):
        compare(BrokenRegistry(tmp_path, "timed out", away=True), tmp_path)


def test_full_disk_is_no_verdict_on_the_candidate(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="No space left"):
        compare(BrokenRegistry(tmp_path, "No space left on device"), tmp_path)
