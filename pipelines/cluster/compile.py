"""Compile the pipeline to the IR that a Kubeflow cluster runs."""

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
from qatline.pipelines.cluster.tasks import for_pods, request
from qatline.pipelines.cluster.train_jobs import check_workers, set_launcher
from qatline.pipelines.cluster.worker_counts import launched_steps
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.steps import IMAGE_OF, step_of_task


def compile_pipeline(config: RunConfig, output: Path) -> None:
    """Write the main pipeline to ``output`` with ``config`` as parameter defaults.

    The file is checked against the schemas of the IR and of its executors, which kfp's own compiler
    does not do.

    Raises:
        ConfigError: The file can't be written, or the cluster section does not fit the engine's
            backend.
    """
    check_output(output)
    text = pipeline_ir(config)
    try:
        write_text(output, text)
    except OSError as error:
        raise ConfigError(f"Could not write {output}: {error}") from error


def pipeline_ir(config: RunConfig, *, caching: bool = True) -> str:
    """Return the compiled main pipeline as YAML text.

    The same config gives the same text.

    Args:
        config: The defaults of the parameters. Its tracking server reaches the steps as environment
            variables, its cluster section as what their pods ask for.
        caching: Whether the cluster may reuse a step that ran with the same arguments. It sees
            neither new data behind an unchanged path nor new code behind an unchanged image tag.

    Raises:
        ConfigError: The cluster section does not fit the engine's backend or several workers.
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
    # Written anew: kfp heads the file with the defaults in an order that changes from process to
    # process, and a server's versions are known by what their text is.
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
