import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.data import image_split
from qatline.components.data.reader import (
    load_split,
    numpy_batches,
    open_split,
    tf_dataset,
)


@pytest.fixture
def digits(digits_dataset: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(digits_dataset, tmp_path / "digits"))


@pytest.mark.parametrize("batch_size", [1, 64, 359, 1000])
def test_batches_together_are_the_split(digits_dataset: Path, batch_size: int) -> None:
    x, y = load_split(digits_dataset, "test")
    batches = list(numpy_batches(digits_dataset, "test", batch_size))
    assert {len(labels) for _, labels in batches[:-1]} <= {batch_size}
    np.testing.assert_array_equal(np.concatenate([images for images, _ in batches]), x)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), y)


def test_raw_and_preprocessed_belong_together(digits_dataset: Path) -> None:
    raw, _ = load_split(digits_dataset, "calibration", raw=True)
    assert (raw.dtype, raw.shape) == (np.uint8, (256, 8, 8, 1))
    x, _ = load_split(digits_dataset, "calibration")
    np.testing.assert_array_equal(Dataset(digits_dataset).preprocessing().apply(raw), x)


def test_limit_takes_the_first(digits_dataset: Path) -> None:
    x, y = load_split(digits_dataset, "train", limit=7)
    whole_x, whole_y = load_split(digits_dataset, "train")
    np.testing.assert_array_equal(x, whole_x[:7])
    np.testing.assert_array_equal(y, whole_y[:7])


def test_a_caller_may_write_into_what_it_got(digits_dataset: Path) -> None:
    x, y = load_split(digits_dataset, "test")
    x += 1
    y += 1
    assert load_split(digits_dataset, "test")[0].max() == 1.0


def test_arrays_are_mapped_not_loaded(digits_dataset: Path) -> None:
    split = open_split(digits_dataset, "train")
    assert isinstance(split._arrays["x"], np.memmap)  # type: ignore[attr-defined]


def test_an_unknown_part_is_refused(digits_dataset: Path) -> None:
    with pytest.raises(
        DataError, match="has the parts train, calibration, validation, test; received 'dev'"
    ):
        load_split(digits_dataset, "dev")


def test_folder_without_data_set_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prepared data set"):
        Dataset(tmp_path).info()
    with pytest.raises(DataError, match=r"Expected a preprocessing definition at .*there is none"):
        Dataset(tmp_path).preprocessing()


def _description(**changed: Any) -> str:
    content = {
        "kind": "npz",
        "classes": ["a", "b"],
        "image_shape": [8, 8, 1],
        "dtype": "uint8",
        "splits": {"train": 1},
        "fingerprint": "",
        "source": "",
    }
    return json.dumps({**content, **changed})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expected the description of a data set at .*no valid JSON"),
        ("[]", "does not describe a data set"),
        ("{}", "does not describe a data set"),
        ('{"image_shape": [1, 2], "classes": []}', "does not describe a data set"),
        (_description(splits=True), "does not describe a data set"),
        (_description(splits={"train": "many"}), "expected the number of samples of each part"),
        (_description(classes=[["a"]]), "expected names as text"),
        (_description(image_shape=[8, 8, float("inf")]), "does not describe a data set"),
    ],
)
def test_a_broken_description_is_told(digits: Path, text: str, message: str) -> None:
    (digits / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=message):
        Dataset(digits).info()


@pytest.mark.parametrize("name", ["test_x.npy", "test_y.npy"])
@pytest.mark.parametrize("keep", [0, 50, 200])
def test_a_damaged_array_is_told(digits: Path, name: str, keep: int) -> None:
    data = (digits / name).read_bytes()
    (digits / name).write_bytes(data[:keep])
    with pytest.raises(DataError, match=f"{name} can't be read.*prepare_data again"):
        load_split(digits, "test")


def test_pickled_arrays_are_never_loaded(digits: Path) -> None:
    np.save(digits / "test_y.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DataError, match="can't be read"):
        load_split(digits, "test")


def test_a_damaged_file_list_is_told(digits: Path) -> None:
    info = json.loads((digits / "dataset.json").read_text())
    (digits / "dataset.json").write_text(json.dumps({**info, "root": "/somewhere"}))
    (digits / "test_files.json").write_text("[[1]]")
    with pytest.raises(DataError, match=r"test_files\.json can't be read"):
        load_split(digits, "test")


def test_reading_needs_no_tensorflow(digits_dataset: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from typing import Any
from qatline.components.data.reader import load_split, numpy_batches
dataset = Path({str(digits_dataset)!r})
load_split(dataset, "test"), list(numpy_batches(dataset, "train", 100))
sys.stdout.write(" ".join(m for m in ("tensorflow", "keras", "kfp", "mlflow", "sklearn") if m in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["test_x.npy", "test_y.npy"])
def test_an_array_of_another_rank_is_told(digits: Path, name: str) -> None:
    np.save(digits / name, np.uint8(1))
    with pytest.raises(DataError, match=r"test holds .* Run prepare_data again"):
        load_split(digits, "test")


@pytest.mark.parametrize("name", ["test_x.npy", "test_y.npy"])
@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_as_many_labels_as_images_are_expected(digits: Path, name: str, change: str) -> None:
    array = np.load(digits / name)
    np.save(digits / name, np.concatenate([array, array[:1]]) if change == "longer" else array[:-1])
    with pytest.raises(DataError, match="one for each"):
        load_split(digits, "test")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("test_x.npy", lambda a: a[..., 0]),
        ("test_x.npy", lambda a: a[..., None]),
        ("test_y.npy", lambda a: a[:, None]),
        ("test_x.npy", lambda a: a.astype(np.float32)),
    ],
)
def test_arrays_of_other_axes_or_types_are_told(digits: Path, name: str, change: Any) -> None:
    np.save(digits / name, change(np.load(digits / name)))
    with pytest.raises(DataError, match=r"test holds .* Run prepare_data again"):
        load_split(digits, "test")


def files(
    digits: Path,
    root: Path,
    listed: Any,
    labels: Sequence[int] = (),
    shape: tuple[int, int, int] = (6, 8, 3),
) -> Path:
    """Turn a data set of arrays into one of image files."""
    info = json.loads((digits / "dataset.json").read_text())
    images = {"x": {"shape": list(shape), "dtype": "uint8"}}
    (digits / "dataset.json").write_text(json.dumps({**info, "root": str(root), "inputs": images}))
    (digits / "test_files.json").write_text(json.dumps(listed))
    np.save(digits / "test_y.npy", np.array(labels, np.int64))
    preprocessing = json.loads((digits / "preprocessing.json").read_text())
    (digits / "preprocessing.json").write_text(
        json.dumps({**preprocessing, "color": "rgb", "resize": None})
    )
    return digits


def test_files_of_another_size_are_told(digits: Path, image_folder: Any) -> None:
    root = image_folder(("cat",), 2)
    files(digits, root, ["cat/000.png", "cat/001.png"], [1, 0])
    part = open_split(digits, "test")
    assert part.targets.tolist() == [1, 0]
    assert part.targets.dtype == np.int64
    assert part.inputs(np.array([1, 0])).shape == (2, 6, 8, 3)
    assert part.inputs(np.array([], np.int64)).shape == (0, 6, 8, 3)
    for shape in ((6, 9, 3), (6, 7, 3)):
        files(digits, root, ["cat/000.png"], [1], shape)
        with pytest.raises(DataError, match=r"is \(6, 8, 3\), expected"):
            open_split(digits, "test").inputs(np.array([0]))


@pytest.mark.parametrize("listed", [[["a", "b"]], 5, [5], {"a": 1}])
def test_malformed_file_list_is_reported(digits: Path, tmp_path: Path, listed: Any) -> None:
    files(digits, tmp_path, listed)
    with pytest.raises(DataError, match=r"test_files\.json can't be read"):
        open_split(digits, "test")


def test_reader_resizes_files_to_data_set(digits: Path, image_folder: Any) -> None:
    root = image_folder(("cat",), 2)
    files(digits, root, ["cat/000.png", "cat/001.png"], [1, 0], (3, 4, 3))
    text = json.loads((digits / "preprocessing.json").read_text())
    (digits / "preprocessing.json").write_text(json.dumps({**text, "resize": "bilinear"}))
    assert open_split(digits, "test").inputs(np.array([0, 1])).shape == (2, 3, 4, 3)


@pytest.mark.parametrize(("processors", "threads"), [(None, 1), (1, 1), (4, 4), (8, 8), (64, 8)])
def test_files_are_decoded_by_eight_threads_at_most(
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processors: int | None,
    threads: int,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(image_split.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(
        image_split, "ThreadPoolExecutor", lambda *, max_workers, **_: asked.append(max_workers)
    )
    open_split(files(digits, tmp_path, []), "test")
    assert asked == [threads]


def test_a_list_of_files_may_have_a_gibibyte(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        image_split, "read_json", lambda path, *, limit, **_: asked.append(limit) or []
    )
    open_split(files(digits, tmp_path, []), "test")
    assert asked == [2**30]


def test_tf_dataset_neither_shuffles_nor_repeats_unless_asked() -> None:
    assert tf_dataset.__kwdefaults__ == {
        "shuffle_seed": None,
        "augment": "none",
        "mirrored": None,
        "repeat": False,
        "worker": (0, 1),
    }
