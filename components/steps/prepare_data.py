"""Step prepare_data: check, split and fingerprint data from any source.

Its preprocessing and its task are written as well.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from qat_lib.errors import DataError, QatlineError
from qat_lib.preprocessing import AnyPreprocessing, Preprocessing, PreprocessingByInput
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.data.array_checks import Array, check_finite, chunks, first_samples
from qatline.components.data.array_source import ArraySource
from qatline.components.data.coco_source import read_coco
from qatline.components.data.file_source import FileSource
from qatline.components.data.folder_source import CLASS_NAMES, read_folder, read_masks
from qatline.components.data.huggingface_source import read_huggingface
from qatline.components.data.images import SUFFIXES
from qatline.components.data.named_source import read_digits, read_keras_dataset
from qatline.components.data.npz_source import read_npz
from qatline.components.data.python_source import read_python
from qatline.components.data.source import Samples, Source, deal
from qatline.components.data.splits import Indices
from qatline.components.data.stored_arrays import write_targets
from qatline.components.data.table_source import image_digest, read_table
from qatline.components.data.tfrecord_source import is_record_file, read_tfrecords
from qatline.components.settings import DataSettings, Settings, TaskSettings
from qatline.components.settings.source_settings import FOLDERS, ValueSettings
from qatline.components.storage.remote_folder import fetch_folder, is_remote_folder
from qatline.components.storage.storage import local_path
from qatline.components.storage.stored_file import split_pattern
from qatline.components.store.fingerprints import user_code_digest
from qatline.components.support.events import Progress
from qatline.components.tasks import Task, derive_task, make_task

_COLORS = {1: "gray", 3: "rgb"}
_DERIVED = TaskSettings()
_SAMPLE = re.compile(r"for sample (\d+)")


def prepare_data_step(
    out: Path,
    *,
    data: DataSettings,
    seed: int,
    progress: Progress,
    task: TaskSettings = _DERIVED,
) -> dict[str, float]:
    """Read, check and split the source; write it into ``out``.

    Args:
        out: existing empty directory.
        data: source of the data and its split.
        seed: seed of the split; equal seeds give equal parts.
        progress: receives the phases ``checking images`` and ``writing <part>``, and warnings.
        task: meaning of the targets; by default it is derived from them.

    Returns:
        Samples of each part, number of classes, skipped images, and samples that occur both in the
        training part and elsewhere.

    Raises:
        DataError: the source is missing, broken or inconsistent; the message contains the remedy.
        ConfigError: the task or the user's function cannot be used.
        StorageError: a source in S3 cannot be fetched.
    """
    scratch = out / ".source"
    scratch.mkdir()
    try:
        source = open_source(data, scratch, progress, seed)
        return _write(source, out, data, task, seed, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def prepare_data_state(sections: Mapping[str, Settings]) -> dict[str, str]:
    """Return further dependencies of the result: images of a table, and what a function reads.

    A function without a fingerprint may return other data at any time: its result is never reused.
    """
    data = sections["data"]
    if not isinstance(data, DataSettings):
        return {}
    if data.kind == "python" and data.fingerprint is None:
        return {"data.name": uuid.uuid4().hex}
    if data.kind == "table" and data.image_column is not None:
        try:
            return {"data.image_column": image_digest(Path(data.path or "").expanduser(), data)}
        except (QatlineError, OSError, KeyError):  # reported by the step
            return {}
    return {}


def open_source(
    data: DataSettings, scratch: Path, progress: Progress, seed: int, head: int | None = None
) -> Source:
    """Return the checked source.

    Args:
        data: the source.
        scratch: folder for unpacked arrays.
        progress: receives images and batches, and warnings.
        seed: seed of a selection of images.
        head: number of samples of each part to read and check, for a quick look; inputs of others
            are undefined. Default: all.

    Raises:
        DataError: the source is missing, broken or inconsistent.
        ConfigError: the user's function cannot be used.
        StorageError: a source in S3 cannot be fetched.
    """
    source: ArraySource | FileSource
    if data.kind == "digits":
        return read_digits(data)
    if data.kind in FOLDERS:
        return _open_folder(data, scratch, progress, seed, head)
    if data.kind == "keras":
        source = read_keras_dataset(data)
    elif data.kind == "npz":
        source = read_npz(local_path(data.path or ""), scratch, data, head)
    elif data.kind == "tfrecord":
        source = read_tfrecords(_fetched_records(data, progress), data, scratch, progress, head)
        source = replace(source, description=data.path or "")
    elif data.kind == "huggingface":
        source = read_huggingface(_fetched_folder(data, progress), data, scratch, progress, head)
        source = replace(source, description=data.path or f"{data.name} at {data.revision}")
    elif data.kind == "table":
        source = read_table(local_path(data.path or ""), data, progress, head)
    else:
        if data.fingerprint is None:
            progress.warn(
                f"data.name={data.name}: the data is prepared again in every run, since nothing "
                "says whether it changed. Set data.fingerprint to a text that changes with it."
            )
        source = read_python(data, scratch, progress, head)
    if isinstance(source, ArraySource):
        for name, part in source.parts.items():
            seen = part if head is None else first_samples(part, head)
            check_finite(name, seen, source.sample if source.origins else None)
    return source


def _fetched_records(data: DataSettings, progress: Progress) -> str:
    """Return the folder or pattern of TFRecords on this machine; fetch remote ones first."""
    location = data.path or ""
    folder, pattern = split_pattern(location)
    if not is_remote_folder(folder):
        return location
    if not pattern and is_record_file(location):
        return str(local_path(location))
    fetched = fetch_folder(
        folder,
        lambda name: is_record_file(name, pattern),
        told=lambda done, total: progress.update("fetching records", done, total),
    )
    return str(fetched / pattern)


def _fetched_folder(data: DataSettings, progress: Progress) -> Path | None:
    """Return the folder of a saved data set on this machine; fetch or unpack it first."""
    if data.path is None or not is_remote_folder(data.path):
        return None if data.path is None else Path(data.path).expanduser()
    return fetch_folder(
        data.path,
        lambda name: Path(name).suffix in (".arrow", ".json"),
        told=lambda done, total: progress.update("fetching records", done, total),
    )


def _open_folder(
    data: DataSettings, scratch: Path, progress: Progress, seed: int, head: int | None
) -> Source:
    """Read a folder of images; fetch or unpack it first if necessary."""

    def read(folder: Path, settings: DataSettings) -> FileSource:
        if data.kind == "masks":
            return read_masks(folder, settings, progress, scratch, head)
        if data.kind == "coco":
            return read_coco(folder, settings, progress, head)
        return read_folder(folder, settings, progress, seed=seed, head=head)

    location = data.path or ""
    if not is_remote_folder(location):
        return read(Path(location).expanduser(), data)
    wanted = SUFFIXES | {".json"} if data.kind == "coco" else SUFFIXES
    found = fetch_folder(
        location if "://" in location else str(Path(location).expanduser()),
        lambda name: Path(name).suffix.lower() in wanted or Path(name).name == CLASS_NAMES,
        told=lambda done, total: progress.update("fetching images", done, total),
    )
    return replace(read(found, data.model_copy(update={"storage": "shards"})), location=location)


def _write(
    source: Source,
    out: Path,
    data: DataSettings,
    settings: TaskSettings,
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    task = choose_task(source, data, settings)
    info = replace(task.data, fingerprint=source.fingerprint())
    strata, shape = check_targets(task, source)
    classes = info.classes if strata else ()
    # Without classes all samples form one stratum.
    labels = strata or {part: np.zeros(len(y), np.int64) for part, y in source.targets.items()}
    dealt = deal(labels, data, seed=seed, classes=classes)
    counts = {split: len(samples.indices) for split, samples in dealt.items()}
    weights = training_weights(source, dealt["train"])
    preprocessing = make_preprocessing(source, data, dealt["train"])
    dataset = Dataset(out)
    if weights is not None:
        np.save(dataset.weights_file("train"), weights)
    digests = {}
    for split, samples in dealt.items():
        digests[split] = source.write(dataset, split, samples, progress)
        convert = partial(task.check_targets, where=f"{split} targets")
        write_targets(dataset, split, source.targets[samples.part], samples.indices, convert)
    # Equal bytes of the inputs: the same sample, possibly under another name.
    trained = set(digests["train"])
    duplicates = sum(
        digest in trained for split in digests if split != "train" for digest in digests[split]
    )
    if duplicates:
        progress.warn(
            f"{duplicates} samples of the calibration, validation and test parts also occur, byte "
            "for byte, in the training part: the source holds them more than once, which inflates "
            "the measured quality."
        )
    replace(info, splits=counts, duplicates=duplicates, target_shape=shape).save(out)
    if counts["calibration"] < data.calibration_samples:
        progress.warn(
            f"the calibration part has {counts['calibration']} samples instead of "
            f"{data.calibration_samples}: the data set is small, and at most a quarter of the "
            "samples outside of the test part is used for calibration."
        )
    dataset.write_preprocessing(preprocessing)
    return {
        **{f"{split}_samples": float(count) for split, count in counts.items()},
        "classes": float(len(info.classes)),
        "broken_images": float(source.broken),
        "duplicates": float(duplicates),
    }


def _class_names(task: Task, source: Source) -> tuple[str, ...]:
    try:
        return task.class_names(source.targets, source.classes)
    except DataError as error:
        found = _SAMPLE.search(str(error))
        if found is None or not isinstance(source, ArraySource) or source.origins is None:
            raise
        name = source.sample("train", int(found[1]))
        raise DataError(str(error).replace(found[0], f"for {name}")) from error


def choose_task(
    source: Source, data: DataSettings, settings: TaskSettings, *, is_whole: bool = True
) -> Task:
    """Return the task of a source, attached to a description of it without splits.

    Args:
        source: the data.
        data: its settings.
        settings: settings of the task.
        is_whole: whether the source has all targets. The first ones may lack some of the named
            classes.

    Raises:
        DataError: no task fits the targets, or they do not fit the classes.
        ConfigError: the task cannot be used.
    """
    name = settings.name or derive_task(source.targets["train"])
    task = make_task(name, settings.options)
    task.data = DatasetInfo(
        kind=data.kind,
        classes=_class_names(task, source) if is_whole else tuple(source.classes),
        inputs=dict(source.inputs),
        splits={},
        fingerprint="",
        source=source.description,
        root=source.root,
        task=name,
        task_options=dict(settings.options),
        task_code=user_code_digest(name),
        target_shape=source.targets["train"].shape[1:],
    )
    return task


def check_targets(task: Task, source: Source) -> tuple[dict[str, Indices] | None, tuple[int, ...]]:
    """Check all targets.

    Returns:
        Class index of each sample by part, None for targets other than classes; and the shape of
        one sample's target.

    Raises:
        DataError: the targets of a sample do not fit the task.
    """
    strata: dict[str, Indices] = {}
    shape: tuple[int, ...] | None = None
    for part, targets in source.targets.items():
        if not len(targets):
            raise DataError(f"{part} targets: expected at least one sample, received none")
        labels = []
        for start, chunk in chunks(targets):
            try:
                checked = task.check_targets(chunk, f"{part} targets")
            except DataError:
                _name_sample(task, source, part, start, len(chunk))
                raise
            if shape is not None and checked.shape[1:] != shape:
                raise DataError(
                    f"{part} targets: expected {shape} per sample as in the train part, received "
                    f"{checked.shape[1:]}"
                )
            shape = checked.shape[1:]
            if checked.ndim == 1 and checked.dtype.kind in "iu":
                labels.append(checked)
        if labels:
            strata[part] = np.concatenate(labels).astype(np.int64)
    is_classes = len(strata) == len(source.targets) and bool(task.data.classes)
    return (strata if is_classes else None), shape or ()


def training_weights(source: Source, train: Samples) -> Array | None:
    """Return the weights of the samples of the training part, float32; None for no weights.

    Raises:
        DataError: all are 0.
    """
    if source.weights is None:
        return None
    found = source.weights[train.indices]
    if not found.any():
        raise DataError(
            f"train weights: expected a weight above 0, received 0 for all {len(found)} samples of "
            f"{source.description}"
        )
    return found


def _name_sample(task: Task, source: Source, part: str, start: int, count: int) -> None:
    """Raise the error of the first wrong sample of a chunk, with its name.

    Arrays of one chunk are left to the error of the whole: it contains the index.
    """
    if isinstance(source, ArraySource) and source.origins is None and start == 0:
        return
    targets = source.targets[part]
    for index in range(start, start + count):
        task.check_targets(targets[index : index + 1], source.sample(part, index))


def make_preprocessing(source: Source, data: DataSettings, train: Samples) -> AnyPreprocessing:
    """Return the conversion of raw inputs to those of the model.

    Args:
        source: the source.
        data: scale, mean and std.
        train: samples for statistics.

    Raises:
        DataError: the settings do not fit the inputs.
    """
    settings = data.preprocessing
    if unknown := sorted(set(settings.inputs) - set(source.inputs)):
        raise DataError(
            f"data.preprocessing.inputs: the data has the inputs {', '.join(source.inputs)}, "
            f"received {unknown[0]}"
        )
    forms = {
        name: _form(source, name, each, settings.inputs.get(name, settings), train)
        for name, each in source.inputs.items()
    }
    return forms.popitem()[1] if len(forms) == 1 else PreprocessingByInput(inputs=forms)


def _form(
    source: Source, name: str, info: InputInfo, values: ValueSettings, train: Samples
) -> Preprocessing:
    color = _COLORS.get(info.shape[-1], "channels") if len(info.shape) == 3 else "channels"
    scale = values.scale or source.scale(name)
    mean, std = tuple(values.mean), tuple(values.std)
    if values.standardize:
        if not isinstance(source, ArraySource):
            raise DataError(
                "data.preprocessing.standardize: expected arrays or a table of features, received "
                "image files. Set mean and std instead."
            )
        means, stds = source.statistics(name, train)
        mean = tuple((means * scale).tolist())
        # A constant channel has no range to scale.
        std = tuple(np.where(stds > 0, stds * scale, 1.0).tolist())
    return Preprocessing(
        image_shape=info.shape,
        dtype=info.dtype,
        scale=scale,
        mean=mean,
        std=std,
        color=color,
        resize=source.resize(name),
    )
