"""Docker build context for the images of a config: modules, files and TensorRT."""

from __future__ import annotations

import importlib.machinery
import shutil
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from qat_lib.engines import get_backend
from qat_lib.errors import ConfigError, StorageError
from qatline.components.store.fingerprints import user_modules
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.support.images import ENGINE_IMAGE, IMAGE
from qatline.pipelines.cluster.portable import (
    IMAGE_FILES,
    IMAGE_MODULES,
    image_places,
    local_files,
    named_modules,
)
from qatline.pipelines.config.run_config import RunConfig

TENSORRT = "10.16.1.11"
"""Default TensorRT version of an image without ``cluster.images.tensorrt``."""

_PIP = "pip --python /opt/venv/bin/python install --no-cache-dir"
_GPU_TENSORFLOW = (
    "\"tensorflow[and-cuda]==$(/opt/venv/bin/python -c 'import importlib.metadata as m; "
    'print(m.version("tensorflow"))\')"'
)
_USER = "10001:10001"


@dataclass(frozen=True, kw_only=True)
class ImageContext:
    """Docker build context of the images.

    Args:
        folder: path of the context.
        modules: user modules in the context.
        files: user files and folders in the context, as named in the config.
        installed: additional requirements of the training image.
        targets: images that differ from qatline's: ``training``, ``engine``.
    """

    folder: Path
    modules: tuple[str, ...]
    files: tuple[str, ...]
    installed: tuple[str, ...]
    targets: tuple[str, ...]


def write_image_context(config: RunConfig, folder: Path) -> ImageContext:
    """Write a Dockerfile and copies of the config's modules and files.

    The context contains the modules named in the config with their imports, the files of
    ``cluster.images.files``, the model and its weights. Data is copied only if it is listed.

    Args:
        config: config of the runs in these images.
        folder: a missing or empty folder.

    Raises:
        ConfigError: the folder is not empty, or a module or file cannot be found.
        StorageError: the folder is not writable.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"Expected a new or empty folder for the images, received {folder}.")
    names, installed = _needed_modules(config)
    files = _needed_files(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _copy_modules(names, folder / "modules")
        _copy_files(files, folder / "files")
        text, targets = _dockerfile(config, bool(names), bool(files), installed)
        (folder / "Dockerfile").write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Could not write {folder}: {error}") from error
    return ImageContext(
        folder=folder,
        modules=tuple(names),
        files=tuple(files),
        installed=tuple(installed),
        targets=tuple(targets),
    )


def _needed_modules(config: RunConfig) -> tuple[list[str], list[str]]:
    """Return modules to copy, and requirements for those from installed packages."""
    wanted = {*config.cluster.images.modules, *named_modules(config)}
    names: list[str] = []
    requirements: list[str] = []
    installed = Path(sysconfig.get_path("purelib"))
    distributions = metadata.packages_distributions()
    for name, sources in sorted(user_modules(sorted(wanted)).items()):
        if not sources[0].is_relative_to(installed):
            names.append(name)
        elif name in distributions:
            distribution = distributions[name][0]
            requirements.append(f"{distribution}=={metadata.version(distribution)}")
    return names, requirements


def _needed_files(config: RunConfig) -> list[str]:
    places = image_places(config.cluster)
    files = list(places)
    for file in local_files(config):
        covered = any(Path(file.path).is_relative_to(listed) for listed in places)
        if file.section == "model" and not covered and Path(file.path).exists():
            files.append(file.path)
    for path in files:
        if not Path(path).exists():
            raise ConfigError(f"cluster.images.files: expected a file at {path}; there is none.")
    return files


def _copy_modules(names: Iterable[str], target: Path) -> None:
    for name in names:
        target.mkdir(exist_ok=True)
        spec = importlib.machinery.PathFinder.find_spec(name)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        if folders:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folders[0], target / name, ignore=ignored)
        elif spec is not None and spec.origin:
            shutil.copyfile(spec.origin, target / f"{name}.py")


def _copy_files(files: Iterable[str], target: Path) -> None:
    for path in map(Path, files):
        target.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


def _dockerfile(
    config: RunConfig, has_modules: bool, has_files: bool, installed: list[str]
) -> tuple[str, list[str]]:
    """Return the Dockerfile and the targets that differ from qatline's images."""
    training = _training_lines(config, has_modules, has_files, installed)
    engine = _engine_lines(config)
    lines = [
        "# syntax=docker/dockerfile:1",
        f"ARG TRAIN_IMAGE={IMAGE}",
        f"ARG ENGINE_IMAGE={ENGINE_IMAGE}",
    ]
    for target, base, added in (
        ("training", "TRAIN_IMAGE", training),
        ("engine", "ENGINE_IMAGE", engine),
    ):
        lines += ["", f"FROM ${{{base}}} AS {target}"]
        if added:
            lines += ["USER root", *added, f"USER {_USER}"]
    targets = {"training": training, "engine": engine}
    return "\n".join(lines) + "\n", [name for name, added in targets.items() if added]


def _training_lines(
    config: RunConfig, has_modules: bool, has_files: bool, installed: list[str]
) -> list[str]:
    cluster, lines = config.cluster, []
    requirements = [f'"{requirement}"' for requirement in installed]
    packages = FRAMEWORKS[config.model.framework].packages
    requirements += [f'"{name}{versions}"' for name, versions in packages.items()]
    if any(cluster.of(step).accelerator for step in ("train_baseline", "finetune_qat")):
        requirements.append(_GPU_TENSORFLOW)
    if requirements:
        lines.append(f"RUN {_PIP} {' '.join(requirements)}")
    if has_modules:
        lines += [f"COPY modules {IMAGE_MODULES}", f"ENV PYTHONPATH={IMAGE_MODULES}"]
    if has_files:
        lines.append(f"COPY files {IMAGE_FILES}")
    return lines


def _engine_lines(config: RunConfig) -> list[str]:
    version, backend = config.cluster.images.tensorrt, config.engine.backend
    accelerated = backend == "auto" and config.cluster.of("build_engine").accelerator
    if accelerated or (backend != "auto" and not get_backend(backend).supports("cpu")):
        version = version or TENSORRT
    if version is None:
        return []
    return [f'RUN {_PIP} tensorrt-cu12=={version} "cuda-python>=12.8,<13"']
