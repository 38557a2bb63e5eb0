"""Imports go down: each room imports rooms of lower floors only, and no module imports itself.

Imports inside functions and under ``TYPE_CHECKING`` count too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FLOORS = {
    "qat_lib": (
        "errors options support graph pages",
        "files calibrators keras.structure",
        "keras.cloning lockstep models onnx_view preprocessing",
        "engines",
        "core",
        "analysis custom_qdq_cases keras.quantizers",
        "export planner keras.folding keras.training keras.wrappers",
        "ptq torch keras.graph",
        "optimization keras.apply keras.calibration",
        "keras.correction keras.export keras.loading keras.quantize",
        "keras.diagnosis utils",
        "keras.search",
        "keras.front_end",
        # Public paths of modules of the floors below.
        "calibration diagnosis placement plan quantize quantizers quantize_wrappers spec training",
        "__init__",
    ),
    "qatline.components": (
        "__init__ client support",
        "storage",
        "store",
        "artifacts",
        "step_table tasks",
        "settings",
        "data tracking workers",
        "registry trainjob",
        "evaluation runtime testing",
        "report",
        "training",
        "export",
        "serving",
        "steps",
    ),
    "qatline.pipelines": (
        "__init__ steps",
        "config kfp_components",
        "qat_pipeline",
        "run",
        "cluster comparison",
        "sweep",
        "cli",
    ),
}
"""Rooms of each package by floor, from the bottom. A room is a module or a folder; the folder
``qat_lib/keras`` has several."""

SIDES = ("qat_lib.keras.", "qat_lib.torch.")
"""Front ends, which must not import each other."""


def modules_of(root: Path) -> dict[str, Path]:
    """Return the file of each module."""
    paths = {}
    for package in FLOORS:
        folder = root / package.rpartition(".")[2]
        for path in folder.rglob("*.py"):
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            paths[name.removesuffix(".__init__")] = path
    return paths


def imports_of(source: str, modules: set[str]) -> set[str]:
    """Return the modules that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {""}


MODULES = frozenset(
    name.removeprefix("qatline.") for name in modules_of(ROOT) if name.count(".") > 1
)
"""Names that modules of ``qatline`` have without it."""


def room_of(module: str) -> str:
    """Return the package and the room of a module."""
    package = next(name for name in FLOORS if f"{module}.".startswith(f"{name}."))
    parts = module.removeprefix(package).removeprefix(".").split(".")
    parts = parts if parts[0] else ["__init__"]
    return f"{package}.{'.'.join(parts[: 2 if parts[0] == 'keras' else 1])}"


def heights() -> dict[str, int]:
    """Return the floor of each room, counted from the bottom of the house."""
    floors = [(package, rooms) for package, floor in FLOORS.items() for rooms in floor]
    return {
        f"{package}.{room}": height
        for height, (package, rooms) in enumerate(floors)
        for room in rooms.split()
    }


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a cycle, if any."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    paths = modules_of(ROOT)
    return {name: imports_of(path.read_text(), set(paths)) for name, path in paths.items()}


def test_modules_import_in_no_cycle(graph: dict[str, set[str]]) -> None:
    # A package is imported before its modules, so that it may import them.
    inner = {
        name: {target for target in targets if not name.startswith(f"{target}.")} - {name}
        for name, targets in graph.items()
    }
    assert find_circle(inner) == []


def test_rooms_import_lower_floors_only(graph: dict[str, set[str]]) -> None:
    height = heights()
    upward = [
        f"{name} -> {target}"
        for name, targets in sorted(graph.items())
        for target in sorted(targets)
        if room_of(name) != room_of(target)
        # The package qat_lib.keras is a docstring.
        and target != "qat_lib.keras"
        and height[room_of(target)] >= height[room_of(name)]
    ]
    assert upward == []


def test_front_ends_import_no_other(graph: dict[str, set[str]]) -> None:
    for name, targets in graph.items():
        sides = {side for side in SIDES for x in (name, *targets) if x.startswith(side)}
        assert len(sides) < 2 or not name.startswith(SIDES), name


def test_each_room_is_listed_once(graph: dict[str, set[str]]) -> None:
    listed = [f"{p}.{r}" for p, floors in FLOORS.items() for rooms in floors for r in rooms.split()]
    found = {room_of(name) for name in graph} - {"qat_lib.keras"}
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize("folder", ["qat_lib", "components", "pipelines", "tests", "benchmarks"])
def test_components_and_pipelines_have_one_import_name(folder: str) -> None:
    # In a checkout both names work, and give two copies of a module.
    wrong = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(node, "module", None) or ""]
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value] if node.value in MODULES else []
            elif not isinstance(node, ast.ImportFrom):
                continue
            tops = {name.partition(".")[0] for name in names}
            if tops & {"components", "pipelines"}:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []


def test_find_circle_names_the_modules() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_imports_of_counts_functions_and_types() -> None:
    modules = {"qat_lib", "qat_lib.a", "qat_lib.b", "qat_lib.c", "qat_lib.d"}
    source = """
from qat_lib.a import x
from qat_lib import b
if TYPE_CHECKING:
    import qat_lib.c
def f():
    import qat_lib.d
"""
    assert imports_of(source, modules) == modules - {"qat_lib"}
