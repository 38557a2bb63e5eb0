"""What agreement with Keras means for files in FP32 and in FP16."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qat_lib.errors import VerificationError
from qatline.components.export.parity import compare_with_model
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.training.framework import Framework


class Parity(SimpleNamespace):
    """A parity report, returned for every requested file."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "largest_difference": self.largest_difference,
            "layers": ["many"],
        }

    def __str__(self) -> str:
        return "differs"


class Scripted(SimpleNamespace):
    """A framework that returns parity reports and records requested files."""

    traits = FRAMEWORKS["keras"]
    layer_check = "a command"

    def __init__(self, *found: Parity) -> None:
        self.script, self.asked = iter(found), list[Path]()

    def check_parity(self, model: Any, path: Path, images: Any) -> Parity:
        self.asked.append(path)
        return next(self.script)


def scripted(*found: Parity) -> Framework:
    framework: Any = Scripted(*found)
    return framework


def parity(passed: bool, difference: float = 0.0) -> Parity:
    return Parity(passed=passed, mismatches=3, largest_difference=difference, magnitude=2.0)


def test_a_file_in_fp32_agrees_label_by_label(tmp_path: Path) -> None:
    framework = scripted(parity(True), parity(False))
    path = tmp_path / "m.onnx"
    agreed = compare_with_model(framework, None, path, None)
    assert agreed.to_dict() == {"passed": True, "largest_difference": 0.0}
    with pytest.raises(
        VerificationError, match=r"m\.onnx differs: 3 labels .* a tie\. .* with: a command"
    ):
        compare_with_model(framework, None, path, None)


@pytest.mark.parametrize("passes", [True, False])
def test_fp16_file_is_compared_with_its_twin(tmp_path: Path, passes: bool) -> None:
    framework: Any = scripted(parity(passes, 0.1), parity(True))
    made: list[Path] = []
    path = tmp_path / "m.onnx"
    if passes:
        found = compare_with_model(framework, None, path, None, export_in_fp32=made.append)
        exact = {"passed": True, "largest_difference": 0.0}
        assert found.to_dict() == {"passed": True, "largest_difference": 0.1, "fp32": exact}
    else:
        with pytest.raises(
            VerificationError, match=r"m\.onnx differs\. It is in FP16\. In FP32 it"
        ):
            compare_with_model(framework, None, path, None, export_in_fp32=made.append)
    assert framework.asked == [path, *made]
    assert made[0].name == "m.onnx"
    assert made[0].parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_fp16_file_fails_with_its_twin(tmp_path: Path) -> None:
    framework = scripted(parity(True), parity(False))
    with pytest.raises(VerificationError, match="3 labels differ beyond a tie"):
        compare_with_model(
            framework, None, tmp_path / "m.onnx", None, export_in_fp32=lambda path: None
        )
