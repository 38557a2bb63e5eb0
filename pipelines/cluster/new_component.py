"""Kubeflow component that checks for new inputs."""

from __future__ import annotations

from typing import Any

from qatline.components.support.images import IMAGE
from qatline.pipelines.config.run_config import SECTIONS
from qatline.pipelines.kfp_components import component_from


def check_new_component() -> Any:
    """Return the component; its parameters are the seed and the sections of the config."""
    # Generated source: kfp derives the parameters from a function's signature, and a list of the
    # sections would have to be repeated here.
    lines = [
        "def check_new_component(",
        "    seed: int,",
        *map("    {}: dict[str, Any],".format, SECTIONS),
        ") -> bool:",
        "    from qatline.pipelines.cluster.check_new import check_new",
        "",
        "    sections = {",
        *(f'        "{name}": {name},' for name in ("seed", *SECTIONS)),
        "    }",
        "    return check_new(sections)",
    ]
    source = "\n".join(lines) + "\n"
    return component_from(source, "check_new_component", file="<check for new>", image=IMAGE)
