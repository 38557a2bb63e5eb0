"""The bills of materials: valid CycloneDX, complete for wheel and images."""

from __future__ import annotations

import copy
import functools
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from dockerfile import read_stages
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "sbom.py"
NAMES = ("wheel", "training", "engine")


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sbom")
    subprocess.run(
        [sys.executable, str(SCRIPT), "-o", str(folder)], check=True, capture_output=True
    )
    return {
        path.name.removesuffix(".cdx.json"): json.loads(path.read_text())
        for path in folder.iterdir()
    }


def extras_of(name: str) -> set[str]:
    """Return a bill's subject as in the Dockerfile's final install line."""
    if name == "wheel":
        return set(
            tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        )
    (line,) = (
        each.text
        for each in read_stages(ROOT / "Dockerfile")[f"{name}-build"].instructions
        if each.name == "RUN"
    )
    words = line.split()
    return {words[index + 1] for index, word in enumerate(words) if word == "--extra"}


def locked_for(extras: set[str]) -> set[tuple[str, str]]:
    """Return the packages the lock file installs on Linux.

    They are found by a walk of its own, as name and version.
    """
    packages: dict[str, dict[str, Any]] = {}
    for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        packages.setdefault(each["name"], {})[each["version"]] = each
    open_ends = [("qatline", *packages["qatline"], frozenset(extras))]
    seen = set(open_ends)
    while open_ends:
        name, version, wanted = open_ends.pop()
        package = packages[name][version]
        optional = package.get("optional-dependencies", {})
        needed = [
            *package.get("dependencies", []),
            *(each for extra in wanted for each in optional.get(extra, [])),
        ]
        for each in needed:
            if "marker" in each and not holds_somewhere(each["marker"]):
                continue
            # An edge names the version where the lock file has several, for different Pythons.
            chosen = each.get("version") or next(iter(packages[each["name"]]))
            end = (each["name"], chosen, frozenset(each.get("extra", [])))
            if end not in seen:
                seen.add(end)
                open_ends.append(end)
    return {(name, version) for name, version, _ in seen if name != "qatline"}


@functools.cache
def holds_somewhere(marker: str) -> bool:
    """Return whether a marker holds on a supported Python and machine."""
    parsed = Marker(marker)
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    versions = [
        {"python_version": f"3.{v}", "python_full_version": f"3.{v}.5"} for v in (11, 12, 13)
    ]
    machines = [{"platform_machine": machine} for machine in ("x86_64", "aarch64")]
    return any(
        parsed.evaluate(linux | version | machine) for version in versions for machine in machines
    )


def test_sbom_is_written_for_wheel_and_images(bills: dict[str, Any]) -> None:
    targets = {
        name.removesuffix("-build")
        for name in read_stages(ROOT / "Dockerfile")
        if name.endswith("-build")
    }
    assert set(bills) == {"wheel", *targets} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_sbom_is_valid_cyclonedx(bills: dict[str, Any], name: str) -> None:
    bill = copy.deepcopy(bills[name])
    # The validator takes 0.1 s for an address, and a bill has thousands, all of one form.
    for index, each in enumerate(bill["components"]):
        del each["externalReferences"][2 if index == 0 else 0 :]
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)) is None
    assert bills[name]["metadata"]["component"]["name"] == "qatline"


@pytest.mark.parametrize("name", NAMES)
def test_sbom_lists_each_locked_package_of_its_extras(bills: dict[str, Any], name: str) -> None:
    listed = {(each["name"], each["version"]) for each in bills[name]["components"]}
    assert listed == locked_for(extras_of(name))
    hashed = [
        any("hashes" in r for r in each["externalReferences"]) for each in bills[name]["components"]
    ]
    assert all(hashed)


def test_sbom_of_the_engine_image_holds_no_tensorflow(bills: dict[str, Any]) -> None:
    found = {name: {each["name"] for each in bills[name]["components"]} for name in NAMES}
    assert "tensorflow" in found["training"]
    assert "tensorflow" not in found["engine"]
    assert found["engine"] < found["wheel"]


def test_sbom_lists_what_the_project_asks_for(bills: dict[str, Any]) -> None:
    """An independent end of the chain: the requirements of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(each for group in project["optional-dependencies"].values() for each in group),
    ]
    names = {canonicalize_name(Requirement(each).name) for each in asked} - {"qatline"}
    assert names <= {each["name"] for each in bills["wheel"]["components"]}


def test_image_extras_reads_project_install_line() -> None:
    image_extras = runpy.run_path(str(SCRIPT))["image_extras"]
    dependencies = "FROM base AS engine-dependencies\nRUN uv sync --extra no\n"
    build = "FROM x AS engine-build\nCOPY a b\nRUN uv sync --extra a --extra b\n"
    assert image_extras(f"{dependencies}\n{build}") == {"engine": ["a", "b"]}
