"""The Kubeflow component that ends a pipeline run; kfp takes its source from this file."""

# No "from __future__ import annotations" here: KFP reads the annotations as objects.

from kfp import dsl

from qatline.components.support.images import ENGINE_IMAGE


@dsl.component(base_image=ENGINE_IMAGE, install_kfp_package=False)
def close_run_component(status: dsl.PipelineTaskFinalStatus):  # type: ignore[no-untyped-def]
    from qatline.components.runtime.exit_handler import close_run

    close_run(
        state=status.state,
        run=status.pipeline_job_resource_name,
        reason=status.error_message or "",
    )
