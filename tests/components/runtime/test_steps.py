from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.runtime import steps
from components.runtime.events import Progress
from components.runtime.steps import define_step, load_step, restore_integers
from components.settings import DataSettings, QATSettings
from qat_lib.errors import ConfigError, StepError


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


def test_settings_that_went_through_kfp_are_what_they_were() -> None:
    step = define_step("fit", fit)
    parsed = step.parse(
        {"qat": {"epochs": 3.0, "learning_rate": 1.0}, "data": {"image_size": [32.0, 32.0]}}
    )
    assert parsed["qat"] == QATSettings(epochs=3, learning_rate=1.0)
    assert parsed["data"] == DataSettings(image_size=(32, 32))
    assert step.parse({})["qat"] == QATSettings()


def test_integers_are_restored_at_any_depth() -> None:
    restored = restore_integers(
        {"a": [1.0, {"b": 2.0}], "c": 0.5, "d": True, "e": "3.0", "f": None}
    )
    assert restored == {"a": [1, {"b": 2}], "c": 0.5, "d": True, "e": "3.0", "f": None}
    assert isinstance(restored["a"][0], int)


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
    assert dict(step.sections) == {"data": DataSettings}


def test_check_inputs_takes_the_optional_one() -> None:
    step = define_step("fit", fit)
    given = {"dataset": "/d", "ptq": "/p", "extra": "/e"}
    assert step.check_inputs(given) == {name: Path(path) for name, path in given.items()}


@pytest.mark.parametrize("own", [False, True])
def test_load_step_lends_kfp_its_decorator_inside_of_an_executor(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """``kfp.dsl`` has ``component`` when a pipeline is compiled, and not where a component runs."""
    seen: list[Any] = []
    dsl = SimpleNamespace(component="own") if own else SimpleNamespace()

    def import_module(name: str) -> Any:
        if name == "kfp.dsl":
            return dsl
        seen.append(dsl.component if own else dsl.component(base_image="x")(fit))
        return SimpleNamespace(evaluate_step=fit)

    monkeypatch.setenv("_KFP_RUNTIME", "true")
    monkeypatch.setattr(steps.importlib, "import_module", import_module)
    assert load_step("evaluate").function is fit
    assert seen == ["own" if own else fit]
    assert hasattr(dsl, "component") is own


def test_load_step_leaves_kfp_alone_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def import_module(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(evaluate_step=fit)

    monkeypatch.delenv("_KFP_RUNTIME", raising=False)
    monkeypatch.setattr(steps.importlib, "import_module", import_module)
    load_step("evaluate")
    assert asked == ["components.evaluate"]
