import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

SPLITS = ("train", "calibration", "validation", "test")


def prepare(out: Path, *, seed: int = 0, progress: Any = None, **data: Any) -> dict[str, float]:
    out.mkdir(parents=True, exist_ok=True)
    return prepare_data_step(
        out, data=DataSettings(**data), seed=seed, progress=progress or NullProgress()
    )


def test_digits_are_all_there_once(digits_dataset: Path) -> None:
    from sklearn.datasets import load_digits

    images = load_digits().images.astype(np.uint8)
    info = Dataset(digits_dataset).info()
    assert info.kind == "digits"
    assert info.classes == tuple("0123456789")
    assert (info.image_shape, info.dtype) == ((8, 8, 1), "uint8")
    assert sum(info.splits.values()) == 1797
    assert info.splits["calibration"] == 256
    assert info.splits["test"] == round(0.2 * 1797)
    found = np.concatenate([load_split(digits_dataset, split, raw=True)[0] for split in SPLITS])
    assert sorted(image.tobytes() for image in found) == sorted(image.tobytes() for image in images)


def test_digits_are_scaled_to_one(digits_dataset: Path) -> None:
    assert Dataset(digits_dataset).preprocessing().scale == 1 / 16
    x, y = load_split(digits_dataset, "train")
    assert (x.dtype, x.min(), x.max()) == (np.float32, 0.0, 1.0)
    assert y.dtype == np.int64


def test_every_part_holds_the_classes_in_proportion(digits_dataset: Path) -> None:
    for split in SPLITS:
        counts = np.bincount(load_split(digits_dataset, split)[1], minlength=10)
        expected = (
            counts.sum() * np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]) / 1797
        )
        assert np.abs(counts - expected).max() <= 2


def test_only_the_seed_decides_the_parts(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(tmp_path / name, seed=seed)
    digests = {name: load_split(tmp_path / name, "test", raw=True)[0].tobytes() for name in "abc"}
    assert digests["a"] == digests["b"] != digests["c"]
    assert len({Dataset(tmp_path / name).info().fingerprint for name in "abc"}) == 1


def test_the_metrics_tell_the_sizes(tmp_path: Path) -> None:
    metrics = prepare(tmp_path, limit=200)
    assert metrics["classes"] == 10
    assert sum(metrics[f"{split}_samples"] for split in SPLITS) == 200


def test_limit_keeps_the_proportions(tmp_path: Path) -> None:
    prepare(tmp_path, limit=100)
    labels = np.concatenate([load_split(tmp_path, split)[1] for split in SPLITS])
    assert len(labels) == 100
    assert set(np.bincount(labels)) <= {9, 10, 11}


def test_small_set_reduces_calibration_samples(tmp_path: Path, progress: Any) -> None:
    prepare(tmp_path, limit=100, progress=progress)
    assert Dataset(tmp_path).info().splits["calibration"] == 20
    assert [
        "calibration part has 20 samples instead of 256" in text for text in progress.warnings
    ] == [True]


def test_images_are_resized_when_asked(tmp_path: Path) -> None:
    prepare(tmp_path, limit=100, image_size=(12, 16))
    assert Dataset(tmp_path).info().image_shape == (12, 16, 1)
    assert Dataset(tmp_path).preprocessing().resize == "bilinear"
    assert load_split(tmp_path, "train", raw=True)[0].shape[1:] == (12, 16, 1)


def test_preprocessing_of_the_settings_is_written(tmp_path: Path) -> None:
    prepare(tmp_path, limit=100, preprocessing={"scale": 0.5, "mean": [1.0], "std": [2.0]})
    raw, x = load_split(tmp_path, "test", raw=True)[0], load_split(tmp_path, "test")[0]
    np.testing.assert_array_equal(x, (raw.astype(np.float32) * 0.5 - 1.0) / 2.0)


def test_a_mean_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mean: expected 1"):
        prepare(tmp_path, limit=100, preprocessing={"mean": [0.1, 0.2, 0.3]})


def test_class_names_are_optional_but_must_suffice(tmp_path: Path) -> None:
    names = [f"digit {index}" for index in range(10)]
    prepare(tmp_path / "a", limit=100, classes=names)
    assert Dataset(tmp_path / "a").info().classes == tuple(names)
    with pytest.raises(DataError, match=r"expected 0 to 8 \(9 classes\), received 9"):
        prepare(tmp_path / "b", limit=100, classes=names[:9])


def test_nothing_else_is_left_in_the_output(tmp_path: Path) -> None:
    prepare(tmp_path, limit=100)
    arrays = {f"{split}_{kind}.npy" for split in SPLITS for kind in "xy"}
    assert {path.name for path in tmp_path.iterdir()} == arrays | {
        "dataset.json",
        "preprocessing.json",
    }
    assert json.loads((tmp_path / "dataset.json").read_text())["root"] is None


@pytest.fixture
def keras_datasets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for ``keras.datasets.<name>``, so that neither Keras nor a network is needed."""
    from qatline.components.data import named_source

    loaders: dict[str, Any] = {}

    def import_module(name: str) -> ModuleType:
        module = ModuleType(name)
        try:
            module.load_data = loaders[name.removeprefix("keras.datasets.")]  # type: ignore[attr-defined]
        except KeyError as error:
            raise ModuleNotFoundError(f"No module named {name!r}") from error
        return module

    monkeypatch.setattr(named_source.importlib, "import_module", import_module)
    return loaders


def test_a_keras_data_set_keeps_its_test_part(
    tmp_path: Path, keras_datasets: dict[str, Any]
) -> None:
    generator = np.random.default_rng(0)
    x_train, x_test = (generator.integers(0, 256, (n, 4, 4, 3), np.uint8) for n in (90, 30))
    y_train, y_test = np.arange(90).reshape(-1, 1) % 3, np.arange(30).reshape(-1, 1) % 3
    keras_datasets["cifar10"] = lambda: ((x_train, y_train), (x_test, y_test))
    prepare(tmp_path, kind="keras", name="cifar10")
    x, y = load_split(tmp_path, "test", raw=True)
    assert sorted(image.tobytes() for image in x) == sorted(image.tobytes() for image in x_test)
    assert sorted(y) == sorted(y_test.ravel())
    assert Dataset(tmp_path).info().source == "keras.datasets.cifar10"


def test_what_keras_cannot_load_is_one_clear_message(
    tmp_path: Path, keras_datasets: dict[str, Any]
) -> None:
    def unreachable() -> None:
        raise Exception(
            "URL fetch failure on https://example: None -- [Errno -2] Name or service not known"
        )

    keras_datasets["mnist"] = unreachable
    keras_datasets["texts"] = lambda: (
        (np.zeros(5, object), np.zeros(5)),
        (np.zeros(5, object), np.zeros(5)),
    )
    with pytest.raises(DataError, match=r"URL fetch failure.*needs a network"):
        prepare(tmp_path / "a", kind="keras", name="mnist")
    with pytest.raises(DataError, match="no such data set; expected mnist"):
        prepare(tmp_path / "b", kind="keras", name="minst")
    with pytest.raises(DataError, match="train inputs: expected uint8 or a floating type"):
        prepare(tmp_path / "c", kind="keras", name="texts")


def test_the_component_runs_without_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
from qatline.components.runtime.step import run_component
settings = {{"data": {{"limit": 100}}}}
run_component("prepare_data", settings=settings, seed=0, inputs={{}}, output={str(tmp_path / "out")!r})
sys.stdout.write(" ".join(m for m in ("tensorflow", "keras", "mlflow", "boto3") if m in sys.modules))
"""
    environment = {**os.environ, "_KFP_RUNTIME": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert Dataset(tmp_path / "out").info().splits["test"] == 20


@pytest.mark.matrix
def test_prepare_data_reports_full_disk(tmp_path: Path) -> None:
    code = f"""
import resource, signal, sys
from qatline.components.runtime.step import run_component
from qat_lib.errors import StorageError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    run_component("prepare_data", settings={{}}, seed=0, inputs={{}}, output={str(tmp_path / "out")!r})
except StorageError as error:
    sys.stdout.write(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the disk is full")
    assert list(tmp_path.iterdir()) == []
