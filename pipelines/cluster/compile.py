"""Compilation of the pipeline to the IR of Kubeflow."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import write_text
from qatline.pipelines.cluster.run_identity import check_task_maker, exit_task_maker, identify_run
from qatline.pipelines.cluster.tasks import for_pods, launched_steps, request
from qatline.pipelines.cluster.train_jobs import check_workers, set_launcher
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.steps import IMAGE_OF, step_of_task


def compile_pipeline(config: RunConfig, output: Path) -> None:
    """Write the main pipeline to ``output`` with ``config`` as parameter defaults.

    The file is validated against the schemas of the IR and of its executors, unlike in kfp's
    compiler.

    Raises:
        ConfigError: the file cannot be written, or the cluster section does not fit the engine's
            backend.
    """
    check_output(output)
    text = pipeline_ir(config)
    try:
        write_text(output, text)
    except OSError as error:
        raise ConfigError(f"Could not write {output}: {error}") from error


def pipeline_ir(config: RunConfig, *, caching: bool = True) -> str:
    """Return the compiled main pipeline as YAML text; equal configs give equal texts.

    Args:
        config: defaults of the parameters. The steps receive its tracking server as environment
            variables and its cluster section as pod settings.
        caching: whether the cluster may reuse steps with the same arguments. It detects neither new
            data at the same path nor new code behind the same image tag.

    Raises:
        ConfigError: the cluster section does not fit the engine's backend or several workers.
    """
    from kfp import compiler

    from qatline.pipelines.cluster.ir_check import check_ir
    from qatline.pipelines.qat_pipeline import build_pipeline

    config = for_pods(config)
    check_workers(config)
    prepare = partial(_prepare, config=config, caching=caching)
    pipeline = build_pipeline(
        prepare,
        timeout=config.cluster.run_timeout,
        at_exit=exit_task_maker(config),
        check=check_task_maker(config),
        launched=launched_steps(config),
        root=config.cluster.pipeline_root,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(
            pipeline, str(path), pipeline_parameters=config.pipeline_parameters()
        )
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    check_ir(documents)
    # Serialize again: kfp's header lists the defaults in an order that differs between processes,
    # and versions on a server are identified by the hash of the text.
    return yaml.safe_dump_all(documents, sort_keys=False)


def _prepare(task: Any, *, config: RunConfig, caching: bool) -> None:
    """Configure the pod of a step."""
    if not caching:
        task.set_caching_options(False)
    identify_run(task, config)
    step = step_of_task(task.name)
    if step in launched_steps(config):
        set_launcher(task, config, step)
        return
    request(task, config.cluster.of(step), getattr(config.cluster.images, IMAGE_OF[step]))
