"""Throughput of the prepared form, against pipelines written by hand and other formats.

    nice .venv/bin/python benchmarks/data_throughput.py [--json benchmarks/results/data_throughput.json]

A shuffled epoch of images and labels as float32 batches. Each form has the same images:

- arrays (uint8): the prepared form, read by Keras and by PyTorch; a ``tf.data`` pipeline written by
  hand on the same file; ArrayRecord with Grain, and Arrow with ``datasets``.
- image files (JPEG): the prepared form as a list of files and as tar shards; a ``tf.data`` pipeline
  written by hand on the same files; and WebDataset on the same tar files.
- photographs (JPEG, 480x640), reduced to the same size: likewise, without WebDataset.

Rounds of all readers alternate. The clock is moved by other work on the machine; CPU seconds of the
process, with all its threads, are moved less. Readers whose package is missing are skipped;
``--packages`` adds a folder of packages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import record
import tensorflow as tf
from PIL import Image

from qatline.components.data.reader import tf_dataset
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

SIZE = 96
PHOTO = (480, 640)
BATCH = 32
_BUFFER = 1024

Reader = Callable[[int], Iterable[Any]]
"""Returns the batches ``(x, y)`` of a shuffled epoch for a seed."""


def main() -> None:
    """Measure all readers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--packages", type=Path, help="folder of further packages")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.packages:
        sys.path.append(str(given.packages))
    with tempfile.TemporaryDirectory() as scratch:
        readers = {
            **_arrays(Path(scratch), given.samples),
            **_files(Path(scratch) / "files", given.samples, (SIZE, SIZE), "files"),
            **_files(Path(scratch) / "photos", given.samples // 10, PHOTO, "photographs"),
        }
        timings: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
        counts = {}
        for seed in range(given.rounds + 1):
            for name, reader in readers.items():
                wall, cpu, counts[name] = _epoch(reader, seed)
                if seed:  # the first round warms up
                    timings[name].append((counts[name] / wall, cpu / counts[name] * 1e6))
    rows = []
    for name, measured in timings.items():
        speed, cost = (statistics.median(values) for values in zip(*measured, strict=True))
        rows.append(
            {
                "reader": name,
                "samples": counts[name],
                "samples_per_second": round(speed),
                "cpu_us_per_sample": round(cost, 1),
            }
        )
        print(rows[-1], flush=True)
    of = {row["reader"]: row for row in rows}
    ratios = {}
    for ours in timings:
        kind, reader = ours.split(", ") if ", " in ours else ("", "")
        if reader in ("", "by hand"):
            continue
        theirs = f"{kind}, by hand"
        pairs = zip(timings[ours], timings[theirs], strict=True)
        ratios[f"{ours} / {theirs}"] = {
            "speed": round(statistics.median(a[0] / b[0] for a, b in pairs), 2),
            "cpu": round(of[ours]["cpu_us_per_sample"] / of[theirs]["cpu_us_per_sample"], 2),
        }
    print(ratios)
    if given.json:
        record.write(given.json, {"rows": rows, "ratios": ratios})


def _epoch(reader: Reader, seed: int) -> tuple[float, float, int]:
    """Return the seconds, CPU seconds and samples of an epoch."""
    wall, cpu, samples = time.monotonic(), time.process_time(), 0
    for x, y in reader(seed):
        assert x.dtype == np.float32
        assert x.shape[1:] == (SIZE, SIZE, 3)
        samples += len(y)
    return time.monotonic() - wall, time.process_time() - cpu, samples


def _prepared(folder: Path, **data: Any) -> Path:
    folder.mkdir()
    settings = DataSettings.model_validate({**data, "calibration_samples": 16})
    prepare_data_step(folder, data=settings, seed=0, progress=NullProgress())
    return folder


def _keras(dataset: Path) -> Reader:
    return lambda seed: tf_dataset(dataset, "train", BATCH, shuffle_seed=seed)


def _torch(dataset: Path) -> Reader:
    return lambda seed: _keras(dataset)(seed).as_numpy_iterator()


# ------------------------------------------------------------------ arrays
def _arrays(scratch: Path, samples: int) -> dict[str, Reader]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (samples, SIZE, SIZE, 3), np.uint8)
    labels = np.arange(samples) % 10
    np.savez(scratch / "data.npz", x=images, y=labels)
    dataset = _prepared(scratch / "arrays", kind="npz", path=str(scratch / "data.npz"))
    images = np.load(dataset / "train_x.npy")
    labels = np.load(dataset / "train_y.npy")
    readers = {
        "arrays, Keras": _keras(dataset),
        "arrays, PyTorch": _torch(dataset),
        "arrays, by hand": _array_by_hand(dataset / "train_x.npy", labels),
    }
    for name, make in (
        ("ArrayRecord and Grain", _grain),
        ("Arrow and datasets", _arrow),
    ):
        try:
            readers[name] = make(scratch, images, labels)
        except ImportError as error:
            print(f"skipped: {name}: {error}")
    return readers


def _array_by_hand(file: Path, labels: Any) -> Reader:
    size = SIZE * SIZE * 3
    header = file.stat().st_size - size * len(labels)

    def decode(content: Any, label: Any) -> tuple[Any, Any]:
        pixels = tf.reshape(tf.io.decode_raw(content, tf.uint8), (-1, SIZE, SIZE, 3))
        return tf.cast(pixels, tf.float32) / 255.0, label

    def read(seed: int) -> Any:
        records = tf.data.FixedLengthRecordDataset(str(file), size, header_bytes=header)
        pairs = tf.data.Dataset.zip(records, tf.data.Dataset.from_tensor_slices(labels))
        batches = pairs.shuffle(_BUFFER, seed=seed).batch(BATCH)
        return batches.map(decode, num_parallel_calls=2).prefetch(2)

    return read


def _grain(scratch: Path, images: Any, labels: Any) -> Reader:
    import grain.python as grain
    from array_record.python.array_record_module import ArrayRecordWriter

    file = str(scratch / "data.arrayrecord")
    writer = ArrayRecordWriter(file, "group_size:1")
    for image, label in zip(images, labels, strict=True):
        writer.write(int(label).to_bytes(8, "little") + image.tobytes())
    writer.close()

    class Decode(grain.MapTransform):
        def map(self, element: bytes) -> tuple[Any, Any]:
            pixels = np.frombuffer(element, np.uint8, offset=8).reshape(SIZE, SIZE, 3)
            return pixels, int.from_bytes(element[:8], "little")

    class Scale(grain.MapTransform):
        def map(self, element: Any) -> tuple[Any, Any]:
            return element[0].astype(np.float32) / np.float32(255), element[1]

    def read(seed: int) -> Any:
        source = grain.ArrayRecordDataSource([file])
        sampler = grain.IndexSampler(
            len(source), shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=seed
        )
        steps = [Decode(), grain.Batch(BATCH), Scale()]
        return grain.DataLoader(data_source=source, sampler=sampler, operations=steps)

    return read


def _arrow(scratch: Path, images: Any, labels: Any) -> Reader:
    import datasets

    def rows() -> Any:
        for image, label in zip(images, labels, strict=True):
            yield {"x": image.tobytes(), "y": int(label)}

    kinds = datasets.Features({"x": datasets.Value("binary"), "y": datasets.Value("int64")})
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_generator(rows, features=kinds, cache_dir=str(scratch / "arrow"))

    def read(seed: int) -> Any:
        for batch in made.shuffle(seed=seed, keep_in_memory=True).iter(batch_size=BATCH):
            pixels = np.frombuffer(b"".join(batch["x"]), np.uint8).reshape(-1, SIZE, SIZE, 3)
            yield pixels.astype(np.float32) / np.float32(255), np.asarray(batch["y"])

    return read


# ------------------------------------------------------------------ image files
def _files(scratch: Path, samples: int, size: tuple[int, int], kind: str) -> dict[str, Reader]:
    generator = np.random.default_rng(1)
    root = scratch / "images"
    for index in range(samples):
        folder = root / str(index % 10)
        folder.mkdir(parents=True, exist_ok=True)
        coarse = generator.integers(0, 256, (size[0] // 8, size[1] // 8, 3), np.uint8)
        image = Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC)
        image.save(folder / f"{index:06d}.jpg", quality=90)
    source = {"kind": "folder", "path": str(root), "image_size": [SIZE, SIZE]}
    dataset = _prepared(scratch / "listed", **source, storage="files")
    shards = _prepared(scratch / "shards", **source, storage="shards")
    paths = [str(path) for path in sorted(root.rglob("*.jpg"))]
    labels = [int(Path(path).parent.name) for path in paths]
    count = len(np.load(dataset / "train_y.npy"))
    readers = {
        f"{kind}, Keras": _keras(dataset),
        f"{kind}, Keras from tar": _keras(shards),
        f"{kind}, by hand": _files_by_hand(paths[:count], labels[:count], size != (SIZE, SIZE)),
    }
    if size == (SIZE, SIZE):
        try:
            readers["WebDataset"] = _webdataset(shards)
        except ImportError as error:
            print(f"skipped: WebDataset: {error}")
    return readers


def _files_by_hand(paths: list[str], labels: list[int], is_resized: bool) -> Reader:
    def decode(path: Any, label: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        if is_resized:  # antialiased like the prepared form's
            image = tf.image.resize(image, (SIZE, SIZE), antialias=True)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, (SIZE, SIZE, 3)), label

    def read(seed: int) -> Any:
        pairs = tf.data.Dataset.from_tensor_slices((paths, labels))
        decoded = pairs.shuffle(len(paths), seed=seed).map(
            decode, num_parallel_calls=tf.data.AUTOTUNE
        )
        return decoded.batch(BATCH).prefetch(2)

    return read


def _webdataset(shards: Path) -> Reader:
    import webdataset

    urls = [str(path) for path in sorted(shards.glob("train-*.tar"))]

    def read(seed: int) -> Any:
        samples = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
        images, labels = [], []
        for sample in samples.shuffle(_BUFFER, seed=seed).decode("rgb"):
            images.append(sample["jpg"])
            labels.append(int(sample["__key__"].partition("/")[0]))
            if len(images) == BATCH:
                yield np.stack(images), np.asarray(labels)
                images, labels = [], []
        if images:
            yield np.stack(images), np.asarray(labels)

    return read


if __name__ == "__main__":
    main()
