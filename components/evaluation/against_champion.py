"""Comparison of a candidate with a version of the registry."""

from __future__ import annotations

import tempfile
from pathlib import Path

from qat_lib.engines import choose_backend
from qat_lib.errors import DataError, TrackingError
from qat_lib.options import Backend
from qatline.components.artifacts.comparison import ChampionComparison
from qatline.components.evaluation.champion import compare_with_champion
from qatline.components.registry.access import current_champion, run_registry
from qatline.components.registry.package import fetch_champion
from qatline.components.registry.registry import RegisteredVersion, Registry
from qatline.components.settings import EngineSettings, RegistrySettings
from qatline.components.store.fingerprints import file_digest
from qatline.components.support.disk_errors import is_disk_full
from qatline.components.support.events import Progress


def compare_with_version(
    registry: Registry,
    version: RegisteredVersion | None,
    candidate: Path,
    dataset: Path,
    *,
    settings: EngineSettings,
    backend: Backend,
    seed: int,
) -> ChampionComparison:
    """Fetch a champion from the registry and measure it together with the candidate.

    Args:
        registry: the registered model.
        version: its champion, or None.
        candidate: the candidate's ONNX file.
        dataset: directory of prepare_data.
        settings: settings of the engines and their benchmark.
        backend: backend of both engines.
        seed: seed of random requests.

    Returns:
        The comparison; ``problem`` is set if the champion's files are damaged or missing.

    Raises:
        TrackingError: the store is unreachable or the disk is full, independent of the champion.
    """
    if version is None:
        return ChampionComparison(version=None)
    known = ChampionComparison(version=version.number, digest=version.digest)
    if version.digest and version.digest == file_digest(candidate):
        return known.model_copy(update={"same": True})
    with tempfile.TemporaryDirectory() as folder:
        try:
            champion = fetch_champion(registry, version, Path(folder))
        except (TrackingError, DataError) as error:
            if is_disk_full(error):
                raise
            registry.state()  # raises if the store itself is unreachable
            problem = f"version {version.number} can't be fetched: {error}"
            return known.model_copy(update={"problem": problem})
        return compare_with_champion(
            dataset, candidate, champion, settings=settings, backend=backend, seed=seed
        )


def compare_with_current(
    settings: RegistrySettings,
    candidate: Path,
    dataset: Path,
    *,
    engine: EngineSettings,
    backend: str,
    seed: int,
    progress: Progress,
) -> ChampionComparison | None:
    """Measure a candidate together with the current champion; return None without a registry.

    Args:
        settings: the registered model.
        candidate: the candidate's ONNX file.
        dataset: directory of prepare_data.
        engine: settings of the engines and their benchmark.
        backend: backend of the candidate's engine.
        seed: seed of random requests.
        progress: receives the start and end of the comparison.

    Raises:
        TrackingError: the store fails and tracking is required.
    """
    registry = run_registry(settings, progress.warn)
    if registry is None:
        return None
    progress.update("champion", 0, 1)
    found = compare_with_version(
        registry,
        current_champion(registry),
        candidate,
        dataset,
        settings=engine,
        backend=choose_backend(backend or "auto"),
        seed=seed,
    )
    progress.update("champion", 1, 1)
    return found
