import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from components.runtime.reader import load_info, load_preprocessing, load_split, numpy_batches, open_split
from qat_lib.errors import DataError


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
    np.testing.assert_array_equal(load_preprocessing(digits_dataset).apply(raw), x)


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
    assert isinstance(split._x, np.memmap)  # type: ignore[attr-defined]


def test_an_unknown_part_is_refused(digits_dataset: Path) -> None:
    with pytest.raises(DataError, match="has the parts train, calibration, validation, test; received 'dev'"):
        load_split(digits_dataset, "dev")


def test_a_folder_that_is_no_data_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prepared data set"):
        load_info(tmp_path)
    with pytest.raises(DataError, match=r"Expected a preprocessing definition at .*there is none"):
        load_preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expected the description of a data set at .*no valid JSON"),
        ("[]", "does not describe a data set"),
        ("{}", "does not describe a data set"),
        ('{"image_shape": [1, 2], "classes": []}', "does not describe a data set"),
    ],
)
def test_a_broken_description_is_told(digits: Path, text: str, message: str) -> None:
    (digits / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=message):
        load_info(digits)


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
from components.runtime.reader import load_split, numpy_batches
dataset = Path({str(digits_dataset)!r})
load_split(dataset, "test"), list(numpy_batches(dataset, "train", 100))
sys.stdout.write(" ".join(m for m in ("tensorflow", "keras", "kfp", "mlflow", "sklearn") if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
