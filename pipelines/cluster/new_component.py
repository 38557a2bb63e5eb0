"""The Kubeflow component that looks for anything new; kfp takes its source from this file."""

# No "from __future__ import annotations" here: KFP reads the annotations as objects.

from typing import Any

from kfp import dsl

from qatline.components.support.images import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def check_new_component(
    seed: int,
    data: dict[str, Any],
    model: dict[str, Any],
    training: dict[str, Any],
    quantization: dict[str, Any],
    qat: dict[str, Any],
    export: dict[str, Any],
    engine: dict[str, Any],
    gate: dict[str, Any],
    registry: dict[str, Any],
    retrain: dict[str, Any],
) -> bool:
    from qatline.pipelines.cluster.check_new import check_new

    sections = {
        "seed": seed,
        "data": data,
        "model": model,
        "training": training,
        "quantization": quantization,
        "qat": qat,
        "export": export,
        "engine": engine,
        "gate": gate,
        "registry": registry,
        "retrain": retrain,
    }
    return check_new(sections)
