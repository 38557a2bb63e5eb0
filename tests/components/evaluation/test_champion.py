"""The candidate and the champion on the same test part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_retraining import CLASSES, ENGINE, digits, fit_linear, write_linear

from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts.comparison import ChampionComparison
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.evaluation.champion import compare_with_champion
from qatline.components.registry.package import Champion

RAW = Preprocessing(image_shape=(8, 8, 1), dtype="float32", scale=1.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 300 digits, and one classifier fed with pixels in [0, 1]."""
    folder = tmp_path_factory.mktemp("champion")
    train, (images, labels) = digits()
    (folder / "dataset").mkdir()
    Preprocessing(image_shape=(8, 8, 1), dtype="float32", scale=1 / 16).save(
        folder / "dataset" / "preprocessing.json"
    )
    np.save(folder / "dataset" / "test_x.npy", images[:300])
    np.save(folder / "dataset" / "test_y.npy", labels[:300])
    DatasetInfo(
        kind="npz",
        classes=CLASSES,
        inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
        splits={"test": 300},
        fingerprint="",
        source="",
    ).save(folder / "dataset")
    weights, bias = fit_linear(train[0] / 16, train[1])
    write_linear(folder / "unit.onnx", weights, bias, 1.0, True)
    write_linear(folder / "raw.onnx", weights / 16, bias, 16.0, True)
    write_linear(folder / "reversed.onnx", weights[:, ::-1], bias[::-1], 1.0, True)
    return folder


def compare(
    place: Path,
    graph: str,
    *,
    preprocessing: Preprocessing | None = None,
    classes: tuple[str, ...] = (),
) -> ChampionComparison:
    champion = Champion(
        version=3, digest="d", graph=place / graph, preprocessing=preprocessing, classes=classes
    )
    return compare_with_champion(
        place / "dataset", place / "unit.onnx", champion, settings=ENGINE, backend="openvino",
        seed=0,
    )  # fmt: skip


def test_same_graph_answers_the_same(place: Path) -> None:
    found = compare(place, "unit.onnx")
    assert (found.version, found.digest, found.problem) == (3, "d", "")
    assert found.candidate.value == found.champion.value
    assert found.champion.value is not None
    assert found.champion.value > 0.85
    assert (found.test.only_candidate, found.test.only_champion, found.test.samples) == (0, 0, 300)
    assert len(found.groups or ()) == 10
    for row in (found.candidate, found.champion):
        assert row.latency_ms_p50 is not None
        assert row.throughput is not None
        assert row.bytes is not None
        assert row.batch_size == 8


def test_champion_is_fed_as_it_was_trained(place: Path) -> None:
    found = compare(place, "raw.onnx", preprocessing=RAW)
    assert found.champion.value == pytest.approx(found.candidate.value, abs=0.01)
    wrong = compare(place, "raw.onnx")
    assert wrong.champion.value is not None
    assert found.champion.value is not None
    assert wrong.champion.value < found.champion.value


def test_classes_are_matched_by_their_names(place: Path) -> None:
    found = compare(place, "reversed.onnx", classes=CLASSES[::-1])
    assert found.champion.value == found.candidate.value


def test_class_that_the_data_has_not_is_never_right(place: Path) -> None:
    found = compare(place, "unit.onnx", classes=("zero", *CLASSES[1:]))
    assert found.groups is not None
    assert found.groups[0].champion == 0.0
    assert found.groups[1].champion == found.groups[1].candidate


@pytest.mark.parametrize(
    ("preprocessing", "classes", "problem"),
    [
        (Preprocessing(image_shape=(9, 9, 1), dtype="float32"), (), "images of shape (9, 9, 1)"),
        (None, ("a", "b"), "gives 10 classes, 2 are known"),
    ],
)
def test_champion_that_does_not_fit_is_a_problem(
    place: Path, preprocessing: Preprocessing | None, classes: tuple[str, ...], problem: str
) -> None:
    found = compare(place, "unit.onnx", preprocessing=preprocessing, classes=classes)
    assert problem in found.problem
    assert found.champion.value is None


def test_damaged_champion_is_a_problem(place: Path) -> None:
    (place / "damaged.onnx").write_bytes(b"no graph")
    assert "version 3 can't be measured here" in compare(place, "damaged.onnx").problem
