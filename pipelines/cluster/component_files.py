"""Export of the steps as Kubeflow components for other pipelines."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import write_text
from qatline.components.step_table import STEPS, Step
from qatline.pipelines.config.cluster_settings import ImageSettings


def write_components(folder: Path, images: ImageSettings) -> list[Path]:
    """Write each step's component as ``<step>.yaml``; return the files.

    Pipelines load them with ``kfp.components.load_component_from_file``. Equal code gives equal
    files.

    Args:
        folder: destination, created if missing; existing files of these names are replaced.
        images: container images; missing ones default to qatline's.

    Raises:
        ConfigError: a file cannot be written.
    """
    written: list[Path] = []
    for step in STEPS:
        path = folder / f"{step.name}.yaml"
        text = component_ir(step, getattr(images, step.image))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_output(path)
            write_text(path, text)
        except OSError as error:
            raise ConfigError(f"Could not write {path}: {error}") from error
        written.append(path)
    return written


def component_ir(step: Step, image: str | None = None) -> str:
    """Return a step's component as YAML text.

    Args:
        step: entry of the step table.
        image: container image. Default: qatline's.
    """
    from kfp import compiler

    from qatline.pipelines.cluster.ir_check import check_ir
    from qatline.pipelines.kfp_components import component_of

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "component.yaml"
        compiler.Compiler().compile(component_of(step), str(path))
        documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    if image is not None:
        for executor in documents[0]["deploymentSpec"]["executors"].values():
            executor["container"]["image"] = image
    check_ir(documents)
    return yaml.safe_dump_all(documents, sort_keys=False)
