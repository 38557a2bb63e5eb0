"""Step prepare_data: check, split and fingerprint images from any source.

Their preprocessing is written as well.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.data.array_checks import check_finite
from qatline.components.data.folder_source import read_folder
from qatline.components.data.images import SUFFIXES
from qatline.components.data.named_source import read_digits, read_keras_dataset
from qatline.components.data.npz_source import read_npz
from qatline.components.data.source import Source, deal
from qatline.components.settings import DataSettings
from qatline.components.storage.remote_folder import fetch_folder, is_remote_folder
from qatline.components.storage.storage import local_path
from qatline.components.support.events import Progress

_COLORS = {1: "gray", 3: "rgb"}


def prepare_data_step(
    out: Path, *, data: DataSettings, seed: int, progress: Progress
) -> dict[str, float]:
    """Read, check and split the source; write it into ``out``.

    Args:
        out: existing empty directory.
        data: source of the images and their split.
        seed: seed of the split; equal seeds give equal parts.
        progress: receives the phases ``checking images`` and ``writing <part>``, and warnings.

    Returns:
        Samples of each part, number of classes, skipped images, and images that occur both in
            training
        and elsewhere.

    Raises:
        DataError: the source is missing, broken or inconsistent; the message contains the remedy.
        StorageError: a source in S3 cannot be fetched.
    """
    scratch = out / ".source"
    scratch.mkdir()
    try:
        source = _open_source(data, scratch, progress, seed)
        return _write(source, out, data, seed, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open_source(data: DataSettings, scratch: Path, progress: Progress, seed: int) -> Source:
    if data.kind == "digits":
        return read_digits(data)
    if data.kind == "folder":
        return _open_folder(data, progress, seed)
    arrays = (
        read_keras_dataset(data)
        if data.kind == "keras"
        else read_npz(local_path(data.path or ""), scratch, data)
    )
    for name, part in arrays.parts.items():
        check_finite(name, part.x)
    return arrays


def _open_folder(data: DataSettings, progress: Progress, seed: int) -> Source:
    """Read a folder of images; fetch or unpack it first if necessary."""
    location = data.path or ""
    if not is_remote_folder(location):
        return read_folder(Path(location).expanduser(), data, progress, seed=seed)
    found = fetch_folder(
        location if "://" in location else str(Path(location).expanduser()),
        lambda name: Path(name).suffix.lower() in SUFFIXES,
        told=lambda done, total: progress.update("fetching images", done, total),
    )
    copied = data.model_copy(update={"storage": "shards"})
    return replace(read_folder(found, copied, progress, seed=seed), location=location)


def _write(
    source: Source, out: Path, data: DataSettings, seed: int, progress: Progress
) -> dict[str, float]:
    dealt = deal(source, data, seed=seed)
    dataset = Dataset(out)
    digests = {
        split: source.write(dataset, split, samples, progress) for split, samples in dealt.items()
    }
    trained = set(digests["train"])
    duplicates = sum(
        digest in trained for split in digests if split != "train" for digest in digests[split]
    )
    if duplicates:
        progress.warn(
            f"{duplicates} images of the calibration, validation and test parts also occur, byte "
            "for byte, in the training part: the source holds them more than once, which inflates "
            "the accuracy."
        )
    counts = {split: len(samples.indices) for split, samples in dealt.items()}
    DatasetInfo(
        kind=data.kind,
        classes=source.classes,
        image_shape=source.image_shape,
        dtype=source.dtype,
        splits=counts,
        fingerprint=source.fingerprint(),
        source=source.description,
        root=source.root,
        duplicates=duplicates,
    ).save(out)
    if counts["calibration"] < data.calibration_samples:
        progress.warn(
            f"the calibration part has {counts['calibration']} samples instead of "
            f"{data.calibration_samples}: the data set is small, and at most a quarter of the "
            "samples outside of the test part is used for calibration."
        )
    settings = data.preprocessing
    preprocessing = Preprocessing(
        image_shape=source.image_shape,
        dtype=source.dtype,
        scale=settings.scale or source.scale,
        mean=tuple(settings.mean),
        std=tuple(settings.std),
        color=_COLORS.get(source.image_shape[-1], "channels"),
        resize=source.resize,
    )
    dataset.write_preprocessing(preprocessing)
    return {
        **{f"{split}_samples": float(count) for split, count in counts.items()},
        "classes": float(len(source.classes)),
        "broken_images": float(source.broken),
        "duplicates": float(duplicates),
    }
