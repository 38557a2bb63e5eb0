"""Public names of qat_lib: documented, typed, visible to type checkers."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qat_lib

SUBPACKAGES = (
    *("analysis", "calibration", "custom_qdq_cases", "engines", "errors", "export", "plan"),
    *("preprocessing", "quantize", "quantize_wrappers", "quantizers", "spec", "training", "utils"),
)


def public_objects(name: str) -> Iterator[tuple[str, Any]]:
    """Yield a module's exported classes and functions.

    These are its ``__all__``, or what it defines.
    """
    module = importlib.import_module(f"qat_lib.{name}")
    exported = getattr(module, "__all__", None)
    for key in exported or vars(module):
        value = getattr(module, key)
        defined = exported or getattr(value, "__module__", "") == module.__name__
        if defined and not key.startswith("_") and (inspect.isclass(value) or callable(value)):
            yield key, value


def public_functions(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a function, or a class's own public methods and properties."""
    if inspect.isfunction(value):
        yield value.__name__, value
    for key, member in vars(value).items() if inspect.isclass(value) else ():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        written = inspect.isfunction(function) and function.__code__.co_filename != "<string>"
        if written and (key == "__init__" or not key.startswith("_")):
            yield f"{value.__name__}.{key}", function


def untyped(function: Any) -> list[str]:
    """Return unannotated parameters, and ``return`` for an unannotated result."""
    signature = inspect.signature(function)
    names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    return names + ["return"] * (signature.return_annotation is signature.empty)


def typed_imports() -> dict[str, str]:
    """Return the names of the TYPE_CHECKING block with their modules."""
    tree = ast.parse(Path(qat_lib.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING:")]
    assert isinstance(block, ast.If)
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_all_has_what_type_checkers_see() -> None:
    assert sorted(typed_imports()) == sorted(qat_lib.__all__)


@pytest.mark.parametrize("name", qat_lib.__all__)
def test_names_match_their_type_checking_imports(name: str) -> None:
    home = typed_imports()[name]
    value = getattr(qat_lib, name)
    if inspect.ismodule(value):
        assert value.__name__ == f"{home}.{name}"
    else:
        assert value is getattr(sys.modules[home], name)


@pytest.mark.parametrize("name", qat_lib.__all__)
def test_a_name_has_a_docstring(name: str) -> None:
    assert (inspect.getdoc(getattr(qat_lib, name)) or "").strip()


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_subpackage_exports_documented_names(name: str) -> None:
    found = dict(public_objects(name))
    assert found
    assert [key for key, value in found.items() if not (value.__doc__ or "").strip()] == []
    functions = [pair for value in found.values() for pair in public_functions(value)]
    missing = {key for key, function in functions if not (function.__doc__ or "").strip()}
    assert {key for key in missing if not key.endswith(".__init__")} == set()


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_subpackage_exports_typed_names(name: str) -> None:
    functions = [pair for _, value in public_objects(name) for pair in public_functions(value)]
    assert {key: gaps for key, function in functions if (gaps := untyped(function))} == {}


def test_untyped_finds_gaps() -> None:
    def partly(a: int, b, *, c: int = 0):
        return a + b + c

    assert untyped(partly) == ["b", "return"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'qat_lib' has no attribute 'quantise_model'"):
        _ = qat_lib.quantise_model  # type: ignore[attr-defined]


def test_importing_qat_lib_imports_no_heavy_library() -> None:
    code = "import sys, qat_lib; print([m for m in ('tensorflow', 'keras', 'onnx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
