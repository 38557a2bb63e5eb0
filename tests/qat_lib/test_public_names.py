"""The names at the top of qat_lib: documented, typed, and found where type checkers look for them."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import qat_lib


def typed_imports() -> dict[str, str]:
    """Return each name of the TYPE_CHECKING block with the module that it is imported from."""
    tree = ast.parse(Path(qat_lib.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING:")]
    assert isinstance(block, ast.If)
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_all_has_what_type_checkers_see() -> None:
    assert sorted(typed_imports()) == sorted(qat_lib.__all__)


@pytest.mark.parametrize("name", qat_lib.__all__)
def test_a_name_comes_from_where_type_checkers_see_it(name: str) -> None:
    home = typed_imports()[name]
    value = getattr(qat_lib, name)
    if inspect.ismodule(value):
        assert value.__name__ == f"{home}.{name}"
    else:
        assert value is getattr(sys.modules[home], name)


@pytest.mark.parametrize("name", qat_lib.__all__)
def test_a_name_has_a_docstring(name: str) -> None:
    assert (inspect.getdoc(getattr(qat_lib, name)) or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'qat_lib' has no attribute 'quantise_model'"):
        _ = qat_lib.quantise_model  # type: ignore[attr-defined]


def test_importing_qat_lib_imports_no_heavy_library() -> None:
    code = "import sys, qat_lib; print([m for m in ('tensorflow', 'keras', 'onnx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
