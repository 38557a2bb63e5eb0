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


def pipeline_ir(config: RunConfig, *, caching: bool = True) -> str:
    """Return the compiled main pipeline as YAML text.

    Args:
        config: The defaults of the parameters; a tracking server of it reaches the steps as environment variables.
        caching: Whether the cluster may reuse a step that ran with the same arguments. It sees neither new data
            behind an unchanged path nor new code behind an unchanged image tag.
    """
    from kfp import compiler

    from pipelines.ir_check import check_ir
    from pipelines.qat_pipeline import qat_pipeline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(qat_pipeline, str(path), pipeline_parameters=config.pipeline_parameters())
        text = path.read_text(encoding="utf-8")
    documents = list(yaml.safe_load_all(text))
    environment = [{"name": name, "value": value} for name, value in _cluster_environment(config).items()]
    if environment or not caching:
        for executor in documents[0]["deploymentSpec"]["executors"].values():
            executor["container"] |= {"env": environment} if environment else {}
        for task in documents[0]["root"]["dag"]["tasks"].values():
            task["cachingOptions"] = {"enableCache": True} if caching else {}
        text = yaml.safe_dump_all(documents, sort_keys=False)
    check_ir(documents)
    return text


def _cluster_environment(config: RunConfig) -> dict[str, str]:
    """Return what tells the steps about the tracking server; a store in a file stays on the machine it is on."""
    uri = config.tracking.uri or ""
    if not uri.startswith(("http://", "https://")):
        return {}
    return {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_EXPERIMENT_NAME": config.tracking.experiment,
        "QATLINE_TRACKING": "required" if config.tracking.required else "optional",
    }
