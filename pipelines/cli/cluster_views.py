"""What ``qatline cluster`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qatline.components.support.images import ENGINE_IMAGE, IMAGE

if TYPE_CHECKING:
    from qatline.pipelines.cluster.image import ImageContext
    from qatline.pipelines.cluster.schedule import ScheduleDetails
    from qatline.pipelines.config.cluster_settings import ImageSettings

_KEYS = {"training": "train", "engine": "engine"}


def schedule_lines(details: ScheduleDetails) -> list[str]:
    """Return a schedule and its latest runs as text."""
    plan = details.schedule
    lines = [
        f"Schedule    {plan.name}",
        f"Status      {'paused' if plan.paused else 'on'}",
        f"When        {plan.when}",
        f"At once     {plan.max_concurrency}",
        f"Experiment  {details.experiment}",
        f"Version     {details.version}",
    ]
    if details.service_account:
        lines.append(f"Account     {details.service_account}")
    lines.append("Runs        " + ("" if details.runs else "none yet"))
    for run in details.runs:
        lines.append(f"  {run.started[:16]}  {run.state:<10} {run.run_id}")
    return lines


def _base_lines(targets: Iterable[str]) -> list[str]:
    """Return the commands that build qatline's own images in a checkout."""
    bases = {"training": IMAGE, "engine": ENGINE_IMAGE}
    return [f"docker build --target {target} -t {bases[target]} ." for target in targets]


def image_lines(images: ImageSettings, context: ImageContext) -> list[str]:
    """Return how to build the images, and what the config must say of them."""
    lines = [f"Wrote {context.folder / 'Dockerfile'}"]
    if not context.targets:
        return [
            *lines,
            "The config needs only qatline, so its own images suffice. Build and push them:",
            *_base_lines(_KEYS),
        ]
    lines += ["# In a checkout of qatline, whose images are not published:"]
    lines += _base_lines(context.targets)
    lines += ["# Here:"]
    section: list[str] = []
    for target in context.targets:
        given = getattr(images, _KEYS[target])
        name = given or f"registry.example/qatline-python-{_KEYS[target]}:mine"
        lines += [
            f"docker build --target {target} -t {name} {context.folder}",
            f"docker push {name}",
        ]
        if given is None:
            section.append(f"    {_KEYS[target]}: {name}")
    if set(context.modules) - set(images.modules):
        section.append(f"    modules: [{', '.join(context.modules)}]")
    if set(context.files) - set(images.files):
        section.append("    files:")
        for path in context.files:
            section.append(f"      - {path}")
    if section:
        lines += ["Then add to the config:", "cluster:", "  images:", *section]
    return lines
