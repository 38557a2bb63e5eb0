"""Links, pipes and devices in an image folder.

Each image counts once, in one class, or is refused.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qat_lib.errors import DataError
from qatline.components.data.folder_listing import MAX_DEPTH, list_images
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import create_run

Make = Callable[..., Path]


def test_list_images_follows_nested_folders_and_links(image_folder: Make) -> None:
    root = image_folder(count=3)
    elsewhere = root.parent / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    Image.new("RGB", (8, 6)).save(elsewhere / "far.png")
    (root / "cat" / "more").symlink_to(elsewhere.parent)
    (root / "dog" / "near.png").symlink_to(root.parent / "elsewhere" / "deep" / "other.png")
    listing = list_images(root, None)
    assert ("cat/more/deep/far.png", 0) in listing.images
    assert len(listing.images) == 8
    assert listing.repeated == 0


def test_folders_of_runs_and_modules_are_no_classes(image_folder: Make) -> None:
    root = image_folder(count=3)
    expected = list_images(root, None)
    config = load_config(overrides=[f"output={root / 'runs'}"])
    run = create_run(config, pipeline="", cache=False, version="")
    Image.new("RGB", (8, 6)).save(run.path / "report.png")
    (root / "__pycache__").mkdir()
    assert list_images(root, None) == expected


@pytest.mark.parametrize("target", ["..", ".", "../..", "/"])
def test_list_images_refuses_link_to_ancestor(image_folder: Make, target: str) -> None:
    root = image_folder(count=3)
    (root / "cat" / "loop").symlink_to(target)
    with pytest.raises(
        DataError, match=r"cat/loop is a link to /.*which it lies in.*Remove the link"
    ):
        list_images(root, None)


def test_list_images_refuses_links_to_the_root(image_folder: Make) -> None:
    root = image_folder(count=3)
    (root / "all").symlink_to(root)
    with pytest.raises(DataError, match="all is a link to"):
        list_images(root, None)


@pytest.mark.parametrize("name", ["folder", "file", "hard"])
def test_list_images_refuses_one_file_in_two_classes(image_folder: Make, name: str) -> None:
    root = image_folder(count=3)
    if name == "folder":
        (root / "cat" / "more").symlink_to(root / "dog")
    elif name == "file":
        (root / "cat" / "x.png").symlink_to(root / "dog" / "000.png")
    else:
        os.link(root / "dog" / "000.png", root / "cat" / "x.png")
    with pytest.raises(
        DataError, match=r"dog/000\.png and .*cat/.*\.png are one file, in two classes"
    ):
        list_images(root, None)


def test_prepare_data_counts_linked_file_once(image_folder: Make, progress: Any) -> None:
    root = image_folder()
    (root / "cat" / "again.png").symlink_to("000.png")
    out = root.parent / "out"
    out.mkdir()
    settings = DataSettings(kind="folder", path=str(root))
    metrics = prepare_data_step(out, data=settings, seed=0, progress=progress)
    splits = ("train", "calibration", "validation", "test")
    assert sum(metrics[f"{split}_samples"] for split in splits) == 24
    assert any("1 names below" in message for message in progress.warnings)


def test_list_images_bounds_the_depth(image_folder: Make) -> None:
    root = image_folder(count=3)
    deep = root / "cat" / "/".join(["d"] * MAX_DEPTH)
    deep.mkdir(parents=True)
    with pytest.raises(DataError, match="at most 32 levels"):
        list_images(root, None)


def test_list_images_reports_non_utf8_name(image_folder: Make) -> None:
    root = image_folder(count=3)
    (root / "cat" / os.fsdecode(b"\xff.png")).write_bytes(b"")
    with pytest.raises(DataError, match=r"names in UTF-8, received b'\\xff\.png'"):
        list_images(root, None)
