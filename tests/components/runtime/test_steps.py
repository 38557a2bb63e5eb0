import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, StepError
from qatline.components.runtime.steps import define_step, load_step
from qatline.components.settings import DataSettings, QATSettings, TaskSettings
from qatline.components.step_table import STEP_BY_NAME
from qatline.components.support.events import Progress


def fit(
    dataset: Path,
    ptq: Path,
    extra: Path | None = None,
    *,
    out: Path,
    data: DataSettings,
    qat: QATSettings,
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    return {}


def test_the_signature_is_the_declaration() -> None:
    step = define_step("fit", fit)
    assert step.inputs == ("dataset", "ptq", "extra")
    assert step.optional_inputs == {"extra"}
    assert dict(step.sections) == {"data": DataSettings, "qat": QATSettings}
    assert step.takes_seed


def test_the_signature_may_be_quoted() -> None:
    """As it is where a module postpones its annotations."""

    def postponed(dataset: Any, *, out: Any, qat: Any, progress: Any) -> dict[str, float]:
        return {}

    postponed.__annotations__ |= {
        "dataset": "Path",
        "out": "Path",
        "qat": "QATSettings",
        "progress": "Progress",
    }
    step = define_step("postponed", postponed)
    assert (step.inputs, dict(step.sections), step.takes_seed) == (
        ("dataset",),
        {"qat": QATSettings},
        False,
    )


def test_settings_survive_kfp_round_trip() -> None:
    step = define_step("fit", fit)
    parsed = step.parse(
        {"qat": {"epochs": 3.0, "learning_rate": 1.0}, "data": {"image_size": [32.0, 32.0]}}
    )
    assert parsed["qat"] == QATSettings(epochs=3, learning_rate=1.0)
    assert parsed["data"] == DataSettings(image_size=(32, 32))
    assert step.parse({})["qat"] == QATSettings()


def test_valid_section_is_not_validated_again() -> None:
    wrong = QATSettings.model_construct(epochs=-1)
    assert define_step("fit", fit).parse({"qat": wrong})["qat"] is wrong


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate": {}}, r"reads the sections \['data', 'qat'\]; received also \['gate'\]"),
        ({"qat": {"epochs": -1}}, "section qat of step fit"),
        ({"qat": {"epoch": 1}}, "epoch"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        define_step("fit", fit).parse(settings)


def test_inputs_must_be_the_declared_ones() -> None:
    step = define_step("fit", fit)
    assert step.check_inputs({"dataset": "/d", "ptq": "/p", "extra": ""}) == {
        "dataset": Path("/d"),
        "ptq": Path("/p"),
    }
    for inputs in ({"dataset": "/d"}, {"dataset": "/d", "ptq": "/p", "more": "/m"}):
        with pytest.raises(StepError, match="expects the inputs"):
            step.check_inputs(inputs)


def test_a_function_that_breaks_the_conventions_is_refused() -> None:
    def strange(out: Path, *, count: int, progress: Progress) -> dict[str, float]:
        return {}

    def mute(out: Path, *, data: DataSettings) -> dict[str, float]:
        return {}

    with pytest.raises(StepError, match="parameter count"):
        define_step("strange", strange)
    with pytest.raises(StepError, match="must take out and progress"):
        define_step("mute", mute)


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(StepError, match="received 'train'"):
        load_step("train")


def test_load_step_reads_the_first_step() -> None:
    step = load_step("prepare_data")
    assert step.inputs == ()
    assert dict(step.sections) == {"data": DataSettings, "task": TaskSettings}


def test_check_inputs_takes_the_optional_one() -> None:
    step = define_step("fit", fit)
    given = {"dataset": "/d", "ptq": "/p", "extra": "/e"}
    assert step.check_inputs(given) == {name: Path(path) for name, path in given.items()}


def test_load_step_takes_the_function_that_reduces_settings() -> None:
    step = load_step("export_onnx")
    parsed = step.parse({"engine": {"backend": "openvino", "threads": 3, "fp16": "never"}})
    assert (parsed["engine"].backend, parsed["engine"].fp16) == ("openvino", "never")
    assert parsed["engine"].threads == 0
    assert load_step("evaluate").parse({"engine": {"threads": 3}})["engine"].threads == 3


def test_quantize_model_depends_on_the_target_alone() -> None:
    settings = {"engine": {"backend": "openvino", "threads": 3}, "export": {"opset": 18}}
    parsed = load_step("quantize_model").parse({**settings, "quantization": {"percentile": 99}})
    assert (parsed["engine"].threads, parsed["export"].opset) == (0, 17)
    assert parsed["quantization"].percentile == 99


def test_steps_import_without_kfp() -> None:
    names = ", ".join(f"qatline.components.steps.{name}" for name in STEP_BY_NAME)
    code = f"import sys, {names}; sys.exit('kfp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
