"""The PyTorch front end: public names, and errors without PyTorch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "qat_lib" / "torch" / "__init__.py"


def run_python(code: str, *, blocked: tuple[str, ...]) -> str:
    """Return what ``code`` prints without the packages ``blocked``.

    The process can't import them.
    """
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}\n{code}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def typed_imports() -> dict[str, str]:
    """Return the names of the TYPE_CHECKING block with their modules."""
    found = {}
    for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body:
        if ast.unparse(node).startswith("if TYPE_CHECKING:") and isinstance(node, ast.If):
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                found.update({alias.name: statement.module or "" for alias in statement.names})
    return found


def test_qat_lib_needs_no_torch() -> None:
    assert run_python("import qat_lib; print('torch' in dir(qat_lib))", blocked=("torch",)) != ""


def test_torch_says_how_to_install_pytorch() -> None:
    code = """
try:
    import qat_lib.torch
except ImportError as error:
    print(error)
"""
    message = run_python(code, blocked=("torch",))
    assert message.endswith("Install it with: pip install 'qatline[torch]'")


def test_torch_names_match_type_checking_imports() -> None:
    package = pytest.importorskip("qat_lib.torch", reason="needs the extra qatline[torch]")
    typed = typed_imports()
    assert sorted(typed) == sorted(package.__all__) == sorted(package._HOMES)
    for name, home in typed.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)


@pytest.mark.matrix
def test_torch_names_need_no_tensorflow() -> None:
    pytest.importorskip("torch", reason="needs the extra qatline[torch]")
    code = """
import qat_lib.torch
for name in qat_lib.torch.__all__:
    getattr(qat_lib.torch, name)
print("ready")
"""
    assert run_python(code, blocked=("tensorflow", "keras", "tf2onnx")) == "ready"


def test_unknown_torch_name_is_attribute_error() -> None:
    package = pytest.importorskip("qat_lib.torch", reason="needs the extra qatline[torch]")
    with pytest.raises(AttributeError, match="has no attribute 'quantise_model'"):
        _ = package.quantise_model


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("pass", "True"),  # Triton is imported before a later import of TensorFlow
        ("sys.modules['tensorflow'] = None", "False"),
        ("import triton; sys.modules['tensorflow'] = None", "True"),
    ],
)
def test_triton_is_never_imported_after_tensorflow(
    tmp_path: Path, first: str, expected: str
) -> None:
    (tmp_path / "triton.py").touch()
    code = f"sys.path.insert(0, {str(tmp_path)!r}); {first}; import qat_lib.torch; "
    found = run_python(f"{code}print(sys.modules.get('triton') is not None)", blocked=())
    assert found == expected
