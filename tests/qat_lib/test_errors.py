"""The exception tree in ``qat_lib.errors``'s docstring equals the classes."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import qat_lib
import qatline.components as components
import qatline.pipelines as pipelines
from qat_lib import errors
from qat_lib.errors import QatlineError

LINE = re.compile(
    r"^    (?P<branch>[│├└─ ]*)(?P<name>\w+Error)\s+.*?(?:\((?P<module>[\w.]+\.\w+)\))?$",
    re.MULTILINE,
)


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield each exception's base, name and module from the tree."""
    path: list[str] = []
    for match in LINE.finditer(errors.__doc__ or ""):
        depth = len(match["branch"]) // 4
        path = [*path[:depth], match["name"]]
        if depth:
            yield path[depth - 1], match["name"], match["module"] or "errors"


def raised(base: type[QatlineError]) -> Iterator[tuple[str, str, str]]:
    """Yield the same of each subclass."""
    for child in base.__subclasses__():
        if child.__module__.startswith(("qat_lib.", "qatline.")):
            yield base.__name__, child.__name__, child.__module__.removeprefix("qat_lib.")
            yield from raised(child)


def test_errors_tree_is_complete() -> None:
    for package in (qat_lib, components, pipelines):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    assert sorted(documented()) == sorted(set(raised(QatlineError)))


def test_errors_have_nonzero_exit_codes() -> None:
    codes = {
        getattr(errors, name).exit_code for _, name, module in documented() if module == "errors"
    }
    assert codes == {1, 2}
