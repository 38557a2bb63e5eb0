"""``qatline doctor``: installed and missing parts, and the commands that install them."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qat_lib.engines.backend import get_backend
from qat_lib.engines.environment import cpu_device
from qat_lib.engines.spec import BACKENDS
from qat_lib.errors import QatlineError
from qat_lib.support.extras import EXTRAS, missing_packages
from qatline.pipelines.cli.options import print_json

Status = Literal["works", "missing", "broken"]

_STYLES = {"works": "green", "missing": "yellow", "broken": "bold red"}
# Effect of each kind of CPU on INT8.
_INT8 = {
    "vnni": "VNNI or AMX; INT8 products are added in 32 bits, the fast kernels",
    "avx2": "neither VNNI nor AMX; INT8 gains less; weights leave room for sums of 16 bits",
    "arm": "64-bit ARM; INT8 products are added in 32 bits",
}


@dataclass(frozen=True, kw_only=True)
class PartState:
    """State of one part of the installation.

    Attributes:
        name: name of the part.
        status: ``works``, ``missing`` (optional and not installed) or ``broken``.
        detail: version, effect or reason.
        remedy: command or advice; empty if it works.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def examine() -> list[PartState]:
    """Return the findings on Python, CPU, extras and engine backends."""
    device = cpu_device()
    fast = [flag for flag in device["flags"] if "vnni" in flag or flag.startswith("amx")]
    wide = [flag for flag in device["flags"] if flag in ("avx2", "avx512f")]
    shown = ", ".join([*wide, *fast]) or device["architecture"]
    return [
        PartState(name="python", status="works", detail=platform.python_version()),
        PartState(
            name="cpu",
            status="works",
            detail=f"{device['name']} ({shown}): {_INT8[device['cpu']]}",
        ),
        *map(_extra, EXTRAS),
        *map(_backend, BACKENDS),
    ]


def report_installation(*, as_json: bool) -> None:
    """Print the findings; exit with 1 if an installed part does not work."""
    findings = examine()
    broken = any(finding.status == "broken" for finding in findings)
    if as_json:
        print_json({"works": not broken, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings)
    if broken:
        raise typer.Exit(1)


def _extra(name: str) -> PartState:
    packages = EXTRAS[name]
    title = f"extra {name}"
    if missing := missing_packages(packages):
        detail = f"not installed: {', '.join(missing)}"
        return PartState(
            name=title, status="missing", detail=detail, remedy=f"pip install 'qatline[{name}]'"
        )
    # Without an import: TensorFlow alone takes seconds.
    return PartState(name=title, status="works", detail=", ".join(map(_with_version, packages)))


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # its distribution has another name
        return package


def _backend(name: str) -> PartState:
    """Build a tiny engine and run it."""
    title = f"backend {name}"
    packages = get_backend(name).packages
    remedy = f"pip install {packages}"
    if missing_packages([name, "onnx"]):
        return PartState(name=title, status="missing", detail="not installed", remedy=remedy)
    try:
        detail = _run_tiny_engine(name)
    except (QatlineError, ImportError, OSError, RuntimeError) as error:
        return PartState(
            name=title,
            status="broken",
            detail=str(error).splitlines()[0],
            remedy=f"pip install --force-reinstall {packages}",
        )
    return PartState(name=title, status="works", detail=detail)


def _run_tiny_engine(name: str) -> str:
    import numpy as np
    from onnx import TensorProto, helper, save

    from qat_lib.engines import BuildSpec, build_engine, load_engine

    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, 4]) for each in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    with tempfile.TemporaryDirectory(prefix="qatline-doctor-") as folder:
        path = Path(folder) / "tiny.onnx"
        save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
        spec: Any = BuildSpec(backend=name)  # type: ignore[arg-type]
        built = build_engine(path, spec, output=Path(folder) / "tiny.engine")
        with load_engine(built.path) as engine:
            engine.infer({"x": np.ones((1, 4), np.float32)})
        return f"{built.manifest.backend_version}, built and ran an engine"


def _show(findings: list[PartState]) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("part", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("")
    for each in findings:
        table.add_row(each.name, Text(each.status, _STYLES[each.status]), Text(each.detail))
    console.print(table)
    for each in findings:
        if each.remedy:
            console.print(Text(f"{each.name}: {each.remedy}"), soft_wrap=True)
