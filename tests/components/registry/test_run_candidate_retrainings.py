"""Retrainings that can be left alone: good, bad, equal and late ones on a real registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_retraining import MARGINS, Retraining, digits

from qatline.components.artifacts.evaluation import Measurements
from qatline.components.artifacts.models import ModelInfo
from qatline.components.registry.by_hand import rollback
from qatline.components.registry.journal import history
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.registry.run_candidate import RunFiles
from qatline.components.tracking.store import ensure_store

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

Make = Callable[..., Retraining]


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    return uri, ensure_store(uri, "qatline", (folder / "artifacts").as_uri())


@pytest.fixture
def tracked(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", store[1])


@pytest.fixture
def registry(store: tuple[str, str], tracked: None, request: Any) -> MlflowRegistry:
    from mlflow import MlflowClient

    return MlflowRegistry(MlflowClient(store[0]), request.node.name[:60], experiment_id=store[1])


@pytest.fixture
def retrain(tmp_path: Path) -> Make:
    """Return what makes a retraining on so many samples, of which a share has random labels."""
    train, test = digits()
    made = 0

    def make(samples: int, wrong: float = 0.0, **options: Any) -> Retraining:
        nonlocal made
        made += 1
        generator = np.random.default_rng(made)
        labels = train[1][:samples].copy()
        noise = generator.random(samples) < wrong
        labels[noise] = generator.integers(0, 10, int(noise.sum()))
        data = (train[0][:samples], labels)
        return Retraining(tmp_path / f"{made}", data, test, **options)

    return make


@pytest.mark.matrix
def test_retrainings_protect_the_champion(registry: MlflowRegistry, retrain: Make) -> None:
    first = retrain(100).run(registry.name)
    assert (first.action, first.champion) == ("promoted", 1)
    bad = retrain(300, wrong=0.6)
    assert bad.run(registry.name).action == "rejected"
    assert "champion_quality" in bad.verdict.failed
    good = retrain(1000, scale=1 / 8)  # fed otherwise than the champion is
    assert good.run(registry.name).champion == 3
    assert "significantly better" in good.verdict.reasons[-1].message
    equal = retrain(995, scale=1 / 8)
    outcome = equal.run(registry.name)
    assert (outcome.action, outcome.champion) == ("rejected", 3)
    assert registry.state().aliases == {"champion": 3, "challenger": 4, "previous": 1}


@pytest.mark.matrix
def test_model_at_chance_is_never_promoted(registry: MlflowRegistry, retrain: Make) -> None:
    lenient = {
        "max_drop": 1.0,
        "champion": {**MARGINS, "require": "not_worse", "max_drop": 1.0},
    }
    guessing = retrain(300, wrong=1.0, gate=lenient)
    assert guessing.run(registry.name).action == "rejected"
    assert guessing.verdict.failed == ("chance",)
    assert registry.state().aliases == {"challenger": 1}


@pytest.mark.matrix
def test_late_candidate_is_judged_against_the_champion_of_now(
    registry: MlflowRegistry, retrain: Make
) -> None:
    retrain(40).run(registry.name)
    late, quick = retrain(100), retrain(1000)
    late.evaluate(registry.name)  # better than the champion of now
    assert quick.run(registry.name).champion == 2
    outcome = late.promote(registry.name)
    assert (outcome.action, outcome.champion) == ("rejected", 2)
    assert "champion version 2" in " ".join(reason.message for reason in late.verdict.reasons)


def test_versions_tell_what_they_are(registry: MlflowRegistry, retrain: Make) -> None:
    run = retrain(500)
    run.run(registry.name)
    (version,) = registry.versions()
    assert version.tags["qatline.backend"] == "openvino"
    assert 0.8 < float(version.tags["qatline.quality"]) < 1
    assert float(version.tags["qatline.latency_ms"]) > 0
    assert version.tags["qatline.data"].endswith("500")
    assert version.tags["qatline.verdict"] == "promote"
    assert version.tags["qatline.better_than_chance"] == "true"


@pytest.mark.matrix
def test_same_files_make_no_second_version(registry: MlflowRegistry, retrain: Make) -> None:
    retrain(500).run(registry.name)
    again = retrain(500)
    outcome = again.run(registry.name)
    assert (outcome.action, outcome.champion) == ("unchanged", 1)
    assert "The candidate is the champion" in again.verdict.reasons[-1].message
    assert len(registry.versions()) == 1


@pytest.mark.parametrize("recipe", [True, False])
def test_run_files_hold_the_baseline(retrain: Make, tmp_path: Path, recipe: bool) -> None:
    """A PyTorch baseline is its weights and the recipe of its network; Keras has no recipe."""
    folder = retrain(40).folder
    if recipe:
        (folder / "baseline" / "network.json").write_text("{}")
    RunFiles(
        dataset=folder / "dataset",
        baseline=folder / "baseline",
        onnx=folder / "onnx",
        model=ModelInfo(),
        measured=Measurements(),
        card="# Card",
    ).write(tmp_path / "model")
    stored = {path.name for path in (tmp_path / "model").rglob("*")}
    assert "model.keras" in stored
    assert ("network.json" in stored) == recipe


@pytest.mark.slow
def test_ten_nights(registry: MlflowRegistry, retrain: Make) -> None:
    expected = []
    late = retrain(150)
    nights: list[tuple[int, float, str]] = [
        (60, 0.0, "promoted"),
        (300, 0.6, "rejected"),
        (250, 0.0, "promoted"),
        (250, 0.0, "unchanged"),
        (248, 0.0, "rejected"),
        (60, 0.0, "rejected"),
        (1000, 0.0, "promoted"),
        (600, 1.0, "rejected"),
    ]
    champions = []
    for number, (samples, wrong, action) in enumerate(nights):
        if number == 1:
            late.evaluate(registry.name)
        outcome = retrain(samples, wrong).run(registry.name)
        champions.append(outcome.champion)
        expected.append(action)
        assert outcome.action == action, f"night {number}: {outcome.message}"
    assert late.promote(registry.name).action == "rejected"
    state = registry.state()
    moves = history(state.tags)
    assert [move.to for move in moves] == sorted(set(champions))
    accuracies = []
    for version in registry.versions():
        if version.number in {move.to for move in moves}:
            accuracies.append(float(version.tags["qatline.quality"]))
    assert accuracies == sorted(accuracies)
    rollback(registry, by="me", lease=60)
    assert registry.state().aliases["champion"] == moves[-1].left
    tenth = retrain(1000)
    assert tenth.run(registry.name).action == "rejected"  # was rolled back by hand
