"""Compile the pipeline to the IR that a Kubeflow cluster runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml

from pipelines.config import RunConfig
from pipelines.run_folder import write_text
from qat_lib.errors import ConfigError


def compile_pipeline(config: RunConfig, output: Path) -> None:
    """Write ``output``: the main pipeline, with ``config`` as the defaults of its parameters.

    The file is checked against the schemas of the IR and of its executors, which kfp's own compiler does not do.

    Raises:
        ConfigError: The file can't be written.
    """
    text = pipeline_ir(config)
    try:
        write_text(output, text)
    except OSError as error:
        raise ConfigError(f"Could not write {output}: {error}") from error


def pipeline_ir(config: RunConfig) -> str:
    """Return the compiled main pipeline as YAML text."""
    from kfp import compiler

    from pipelines.ir_check import check_ir
    from pipelines.qat_pipeline import qat_pipeline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(
            qat_pipeline,
            str(path),
            pipeline_parameters=config.pipeline_parameters(),
        )
        text = path.read_text(encoding="utf-8")
    check_ir(list(yaml.safe_load_all(text)))
    return text
