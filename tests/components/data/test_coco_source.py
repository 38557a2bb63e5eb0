"""COCO files: boxes, parts, places of images, and damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from qat_lib.errors import ConfigError, DataError
from qatline.components.artifacts import Dataset
from qatline.components.data.coco_source import find_annotations
from qatline.components.data.reader import load_split
from qatline.components.settings import DataSettings, TaskSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

SPLITS = ("train", "calibration", "validation", "test")
CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]


def content(first: int, count: int) -> dict[str, Any]:
    """Return images with as many boxes as their number modulo 3; the first box is known from it."""
    images, boxes = [], []
    for number in range(first, first + count):
        images.append({"id": number, "file_name": f"{number:03d}.png", "width": 8, "height": 6})
        for box in range(number % 3):
            annotation = {
                "id": 100 * number + box,
                "image_id": number,
                "category_id": (3, 7)[box],
                "bbox": [number % 5, 1, 2.5, 3],
                "iscrowd": box,
            }
            boxes.append(annotation)
    return {"images": images, "annotations": boxes, "categories": CATEGORIES}


def coco(folder: Path, files: dict[str, int], images: str = "images") -> Path:
    """Write images of 6x8 pixels and the JSON files with so many of them each."""
    root, first = folder / "scenes", 0
    for name, count in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content(first, count)))
        place = root / images.format(path.stem.removeprefix("instances_"))
        place.mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            pixels = np.full((6, 8, 3), number, np.uint8)
            Image.fromarray(pixels).save(place / f"{number:03d}.png")
        first += count
    return root


def prepare(root: Path, *, progress: Any = None, **data: Any) -> Path:
    out = root.parent / "out"
    out.mkdir()
    prepare_data_step(
        out,
        data=DataSettings(**{"kind": "coco", "path": str(root), **data}),
        task=TaskSettings(),
        seed=0,
        progress=progress or NullProgress(),
    )
    return out


def expected(number: int, scale: float = 1.0) -> list[list[float]]:
    """Return the two boxes of an image; missing ones are zeros of class -1."""
    x = number % 5
    box = [value * scale for value in (x, 1, x + 2.5, 4)]
    rows = [[*box, 0, 0], [*box, 1, 1]][: number % 3]
    return rows + [[0, 0, 0, 0, -1, 0]] * (2 - len(rows))


def check_boxes(out: Path, count: int, scale: float = 1.0) -> None:
    """Check that each image has its boxes."""
    seen = set()
    for split in SPLITS:
        x, y = load_split(out, split, raw=True)
        for image, boxes in zip(x, y, strict=True):
            number = int(image.flat[0])
            seen.add(number)
            np.testing.assert_allclose(boxes, expected(number, scale))
    assert seen == set(range(count))


@pytest.mark.parametrize("storage", ["files", "shards"])
def test_boxes_stay_with_their_images(tmp_path: Path, storage: str) -> None:
    out = prepare(coco(tmp_path, {"boxes.json": 30}), storage=storage)
    info = Dataset(out).info()
    # Classes are sorted by the ids of the categories.
    assert (info.task, info.classes, info.target_shape) == ("detection", ("cat", "dog"), (2, 6))
    check_boxes(out, 30)


@pytest.mark.parametrize("archive", [False, True])
def test_boxes_are_fetched_from_s3(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    names = {f"annotations/instances_{part}2017.json": 20 for part in ("train", "val")}
    root = coco(tmp_path, names, "{}")
    if archive:
        s3.upload_file(shutil.make_archive(str(root), "tar", root), "data", "scenes.tar")
    else:
        for path in filter(Path.is_file, root.rglob("*")):
            s3.upload_file(str(path), "data", f"scenes/{path.relative_to(root)}")
    shutil.rmtree(root)
    location = "s3://data/scenes.tar" if archive else "s3://data/scenes"
    out = prepare(tmp_path / "scenes", path=location)
    shutil.rmtree(tmp_path / "cache")
    info = Dataset(out).info()
    assert (info.source, info.root, info.splits["validation"]) == (location, None, 20)
    check_boxes(out, 40)


def test_boxes_are_scaled_with_their_images(tmp_path: Path) -> None:
    out = prepare(coco(tmp_path, {"boxes.json": 30}), image_size=(12, 16))
    assert Dataset(out).info().image_shape == (12, 16, 3)
    check_boxes(out, 30, scale=2.0)


@pytest.mark.parametrize(
    ("files", "images", "annotations"),
    [
        ({"train.json": 20, "val.json": 5, "test.json": 6}, "images", None),
        (
            {f"annotations/instances_{name}2017.json": n for name, n in
             (("train", 20), ("val", 5), ("test", 6))},
            "{}", None,
        ),
        (
            {f"{name}/_annotations.coco.json": n for name, n in
             (("train", 20), ("valid", 5), ("test", 6))},
            "{}", None,
        ),
        ({"a.json": 20, "b.json": 5, "c.json": 6}, ".",
         {"train": "a.json", "val": "b.json", "test": "c.json"}),
    ],
)  # fmt: skip
def test_parts_and_images_are_found(
    tmp_path: Path, files: dict[str, int], images: str, annotations: Any
) -> None:
    out = prepare(coco(tmp_path, files, images), annotations=annotations)
    splits = Dataset(out).info().splits
    assert splits == {"train": 15, "calibration": 5, "validation": 5, "test": 6}
    check_boxes(out, 31)


def test_boxes_are_read_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    root = coco(tmp_path, {"boxes.json": 30})
    archive = shutil.make_archive(str(tmp_path / "packed"), "tar", root)
    out = prepare(Path(archive))
    assert Dataset(out).info().root is None
    check_boxes(out, 30)


def test_data_classes_leave_out_other_categories(tmp_path: Path) -> None:
    root = coco(tmp_path, {"boxes.json": 30})
    changed = json.loads((root / "boxes.json").read_text())
    changed["categories"].append({"id": 9, "name": "bird"})
    (root / "boxes.json").write_text(json.dumps(changed))
    out = prepare(root, classes=["dog", "bird"])
    assert Dataset(out).info().classes == ("dog", "bird")
    targets = np.concatenate([load_split(out, split)[1] for split in SPLITS])
    assert targets.shape == (30, 1, 6)
    assert set(targets[..., 4].ravel()) == {-1, 0}


class Warnings(NullProgress):
    """Progress that keeps the warnings of what is left out or clipped."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, message: str) -> None:
        if message.startswith(("left out", "clipped")):
            self.texts.append(message)


def test_broken_boxes_are_skipped_with_a_warning(tmp_path: Path) -> None:
    root, progress = coco(tmp_path, {"boxes.json": 30}), Warnings()
    changed = json.loads((root / "boxes.json").read_text())
    changed["annotations"][4]["bbox"][2] = 0
    changed["annotations"][5]["bbox"] = [-1, 1, 1, 3]
    (root / "boxes.json").write_text(json.dumps(changed))
    prepare(root, skip_broken=True, progress=progress)
    first, second = progress.texts
    assert "annotation 500: expected a bbox with width" in first
    assert "the bbox [-1, 1, 1, 3] is empty within the image" in second


def test_boxes_beyond_their_image_are_clipped_with_a_warning(tmp_path: Path) -> None:
    root, progress = coco(tmp_path, {"boxes.json": 30}), Warnings()
    changed = json.loads((root / "boxes.json").read_text())
    for box in changed["annotations"]:
        box["bbox"] = [-2, 1, 30, 3]
    (root / "boxes.json").write_text(json.dumps(changed))
    out = prepare(root, skip_broken=True, progress=progress)
    targets = np.concatenate([load_split(out, split)[1] for split in SPLITS]).reshape(-1, 6)
    boxes = targets[targets[:, 4] >= 0][:, :4]
    assert len(boxes) == len(changed["annotations"])
    np.testing.assert_array_equal(boxes, np.tile([0, 1, 8, 4], (len(boxes), 1)))
    assert "extends 20 pixels beyond the image" in progress.texts[0]
    assert progress.texts[5] == f"clipped: {len(boxes) - 5} more like these"


def test_images_of_another_size_are_skipped_with_few_warnings(tmp_path: Path) -> None:
    root, progress = coco(tmp_path, {"boxes.json": 30}), Warnings()
    changed = json.loads((root / "boxes.json").read_text())
    for image in changed["images"][:9]:
        image.update(width=6, height=8)
    (root / "boxes.json").write_text(json.dumps(changed))
    out = prepare(root, skip_broken=True, progress=progress)
    assert sum(Dataset(out).info().splits.values()) == 21
    *first, last = progress.texts
    assert len(first) == 5
    assert "000.png is 8x6 if turned as its EXIF tag says, its annotations are for 6x8" in first[0]
    assert last == "left out: 4 more like these"


def annotation(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda boxes: boxes["annotations"][4].update(values)


def image(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda boxes: boxes["images"][5].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (annotation(image_id=99), r"boxes\.json: annotation 500: no image has the id 99"),
        (annotation(category_id=1), r"annotation 500: expected a category_id of 3, 7; received 1"),
        (annotation(bbox=[0, 0, 3, -1]), r"annotation 500: expected a bbox with width and height"),
        (annotation(bbox=[0, float("nan"), 3, 1]), r"annotation 500: .* four finite numbers"),
        (annotation(bbox=[0, 0, 3]), r"annotation 500: .* four finite numbers"),
        (annotation(bbox=[6, 1, 4, 3]), r"annotation 500: .* extends 2 pixels beyond .*005\.png"),
        (annotation(bbox=[-1, 1, 1, 3]), r"annotation 500: the bbox .* is empty within the image"),
        (image(file_name="gone.png"), r"file of image 5 is missing: .*gone\.png"),
        (image(file_name="../../secret.png"), r"image 5 lies outside"),
        (image(id=4), r"expected images with a unique id"),
        (image(width=None), r"expected images with a unique id, file_name, width and height"),
        (image(width=9), r"005\.png is 8x6, its annotations are for 9x6"),
        (lambda boxes: boxes.update(images=[]), r"boxes\.json: expected at least one image, received none"),
        (lambda boxes: boxes.update(annotations=None), r"expected annotations to be a list"),
        (lambda boxes: boxes["categories"].append({"id": 3, "name": "x"}), r"unique integer id"),
        (lambda boxes: boxes["categories"].append({"id": 4, "name": "cat"}), r"different names"),
        (lambda boxes: boxes.update(categories=[]), r"different names, received none"),
    ],
)  # fmt: skip
def test_damage_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    root = coco(tmp_path, {"boxes.json": 30})
    changed = json.loads((root / "boxes.json").read_text())
    change(changed)
    (root / "boxes.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=message):
        prepare(root)


def test_truncated_and_missing_files_are_named(tmp_path: Path) -> None:
    root = coco(tmp_path, {"train.json": 20, "val.json": 5})
    with pytest.raises(DataError, match=r"annotations of COCO at .*gone\.json"):
        prepare(root, annotations="gone.json")
    shutil.rmtree(tmp_path / "out")
    (root / "val.json").write_text((root / "val.json").read_text()[:200])
    with pytest.raises(DataError, match=r"val\.json: received no valid JSON"):
        prepare(root)
    shutil.rmtree(tmp_path / "out")
    (root / "train.json").rename(root / "other.json")
    with pytest.raises(DataError, match=r"expected one JSON file .* received other\.json, val"):
        prepare(root)


def test_parts_have_the_categories_of_the_training_part(tmp_path: Path) -> None:
    root = coco(tmp_path, {"train.json": 20, "test.json": 5})
    changed = json.loads((root / "test.json").read_text())
    changed["categories"].append({"id": 9, "name": "bird"})
    (root / "test.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"test\.json: unknown category 'bird' in the training"):
        prepare(root)


def test_few_of_many_other_files_are_named(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.json").write_text("{}")
    with pytest.raises(DataError, match=r"received 00\.json, .*, 04\.json, \.\.\.\. Set data"):
        find_annotations(tmp_path, None)


def test_annotations_need_a_training_part() -> None:
    with pytest.raises((ValidationError, ConfigError), match="expected a file for train"):
        DataSettings(kind="coco", path="x", annotations={"test": "test.json"})
