"""Conversion of a config for pods: every named resource must exist there.

Pods cannot see paths and modules of this machine. A quantization spec is embedded into the
pipeline, files in the images are mapped to their location, and paths in mounted volumes are kept;
everything else is rejected before submission. Image folders are passed between steps in shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.settings.source_settings import WITH_PATH, reads_images
from qatline.components.support.credentials import scrub
from qatline.components.training.model_source import APPLICATIONS
from qatline.components.training.quantization_choice import read_spec
from qatline.pipelines.config.cluster_settings import ClusterSettings
from qatline.pipelines.config.run_config import RunConfig

IMAGE_MODULES, IMAGE_FILES = "/opt/user/modules", "/opt/user/files"
"""Locations of user modules and files in the images."""

_PROVIDED = frozenset({"keras", "qat_lib", "qatline", "tensorflow", "torch"})
_LOOPBACK = re.compile(r"https?://(localhost|127\.[\d.]+|\[::1\])(?=[:/]|$)")
_VOLUME = "mount a volume that holds it (cluster.volumes) and set its path there"
_IMAGE = "name it in cluster.images.{key} and build an image with it: qatline cluster image"


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file or folder named in a config.

    Args:
        section, key: position of the value in the config.
        step: the step that reads it.
        advice: preferred way to provide it to a pod, listed before volumes and images; empty for
            none.
        also: further way, listed after them.
    """

    section: str
    key: str
    path: str
    step: str
    advice: str = ""
    also: str = ""


def portable(config: RunConfig) -> RunConfig:
    """Return the config with every path as seen by the pods.

    Raises:
        ConfigError: it names files, modules or addresses of this machine; the message lists all.
        SpecError: the file of the quantization spec is wrong.
    """
    places = image_places(config.cluster)
    problems: list[str] = []
    values: dict[str, dict[str, str]] = {}
    for file in local_files(config):
        inside = _place_in_images(file.path, places)
        if inside is not None:
            values.setdefault(file.section, {})[file.key] = inside
        elif not _is_mounted(file, config.cluster):
            problems.append(_file_problem(file))
    problems += [*_module_problems(config), *_address_problems(config)]
    if problems:
        raise ConfigError(
            "Expected files, modules and addresses that the pods have; received some of this "
            "machine alone:\n" + "\n".join(f"  - {problem}" for problem in problems)
        )
    # Later steps run in other pods, which lack the image files.
    if config.data.storage == "auto" and reads_images(config.data):
        values.setdefault("data", {})["storage"] = "shards"
    changed: dict[str, Any] = {}
    for section, update in values.items():
        changed[section] = getattr(config, section).model_copy(update=update)
    # A spec is small and travels within the config, unlike other files.
    if isinstance(config.quantization.spec, str):
        spec = read_spec(config.quantization)
        entries = None if spec is None else spec.to_list()
        changed["quantization"] = config.quantization.model_copy(update={"spec": entries})
    return config.model_copy(update=changed)


def local_files(config: RunConfig) -> Iterator[LocalFile]:
    """Yield the files and folders named in a config, except for the quantization spec."""
    data, model = config.data, config.model
    if data.kind in WITH_PATH and data.path and "://" not in data.path:
        is_file = WITH_PATH[data.kind] == "file"
        # The images of a table lie beside it: the file alone is of no use elsewhere.
        suffix = None if data.image_column else PurePosixPath(data.path).suffix
        yield LocalFile(
            section="data",
            key="path",
            path=data.path,
            step="prepare_data",
            advice=f"upload it and set s3://bucket/key{suffix}" if is_file and suffix else "",
            also="" if is_file else "upload it and set s3://bucket/folder",
        )
    weights = model.weights if model.weights != "imagenet" else None
    is_model = model.name.endswith(".keras")
    for key, path in (("name", model.name if is_model else None), ("weights", weights)):
        if path is not None and not path.startswith("s3://"):
            yield LocalFile(
                section="model",
                key=key,
                path=path,
                step="train_baseline",
                also="upload it and set s3://bucket/key",
            )


def named_modules(config: RunConfig) -> dict[str, str]:
    """Return the user modules named in a config, with the key of the config by module."""
    references = {
        "data.name": [config.data.name or ""],
        "task.name": [config.task.name or ""],
        "model.name": [config.model.name],
        "quantization.cases": config.quantization.cases,
    }
    for section in (config.training, config.qat):
        for key, reference, _ in section.references():
            references.setdefault(f"{section.section}.{key}", []).append(reference)
    found: dict[str, str] = {}
    for key, names in references.items():
        for name in names:
            module, colon, _ = name.partition(":")
            top = module.partition(".")[0]
            # ``s3://`` addresses and ``keras.applications:`` have a colon, too.
            is_module = colon and "://" not in name and not name.startswith(APPLICATIONS)
            if is_module and top not in _PROVIDED:
                found.setdefault(top, key)
    return found


def image_places(cluster: ClusterSettings) -> dict[str, str]:
    """Return the locations of ``cluster.images.files`` in the images.

    Raises:
        ConfigError: two files have the same name.
    """
    places: dict[str, str] = {}
    for path in cluster.images.files:
        place = f"{IMAGE_FILES}/{PurePosixPath(path).name}"
        if place in places.values():
            raise ConfigError(
                "cluster.images.files: expected files of different names, which lie side by side "
                f"in the image; received {PurePosixPath(path).name!r} twice. Rename one."
            )
        places[path] = place
    return places


def _place_in_images(path: str, places: Mapping[str, str]) -> str | None:
    """Return the location of a file in the images, directly or inside a listed folder."""
    for listed, place in places.items():
        if PurePosixPath(path).is_relative_to(listed):
            inside = PurePosixPath(path).relative_to(listed)
            return str(PurePosixPath(place) / inside)
    return path if path.startswith(f"{IMAGE_FILES}/") else None


def _is_mounted(file: LocalFile, cluster: ClusterSettings) -> bool:
    volumes = cluster.of(file.step).volumes or ()
    return any(PurePosixPath(file.path).is_relative_to(volume.path) for volume in volumes)


def _file_problem(file: LocalFile) -> str:
    ways = [file.advice, _VOLUME, _IMAGE.format(key="files"), file.also]
    advice = "; or ".join(filter(None, ways))
    return f"{file.section}.{file.key}: {file.path}: {advice}"


def _module_problems(config: RunConfig) -> Iterator[str]:
    images = config.cluster.images
    own_image = images.train is not None or "QATLINE_IMAGE" in os.environ
    for module, key in named_modules(config).items():
        if module not in images.modules:
            yield f"{key}: the module {module}: {_IMAGE.format(key='modules')}"
    if (images.modules or images.files) and not own_image:
        yield (
            "cluster.images: modules and files need an image of yours that holds them; build it "
            "(qatline cluster image) and set cluster.images.train"
        )


def _address_problems(config: RunConfig) -> Iterator[str]:
    uri = config.tracking.uri
    if uri is not None and not uri.startswith(("http://", "https://")):
        yield (
            f"tracking.uri: {scrub(uri)}: pods write to a tracking server; start one on that store "
            "(mlflow server --backend-store-uri) and set its address, http:// or https://; or "
            "leave tracking.uri out: nothing is recorded then"
        )
    addresses = {"tracking.uri": config.tracking.uri, "cluster.webhook": config.cluster.webhook}
    for key, address in addresses.items():
        if address is not None and _LOOPBACK.match(address):
            yield f"{key}: {address}: in a pod that is the pod itself; set an address of the cluster"
