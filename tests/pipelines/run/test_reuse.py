"""Steps with results in the store start no processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from qatline.components.runtime import step as step_module
from qatline.components.runtime.step import run_component
from qatline.components.runtime.steps import define_step
from qatline.components.settings import GateSettings, QATSettings
from qatline.components.step_table import Step
from qatline.components.store.manifest import MANIFEST_NAME
from qatline.components.support.events import Progress
from qatline.pipelines.run import reuse
from qatline.pipelines.run.reuse import find_stored, take_stored

SECTIONS = {"qat": QATSettings(epochs=2), "gate": GateSettings()}
CALLS: list[str] = []


def prepare(out: Path, *, seed: int, progress: Progress) -> dict[str, float]:
    CALLS.append("prepare_data")
    (out / "data").write_text(str(seed))
    return {"samples": 1.0}


def finetune(dataset: Path, out: Path, *, qat: QATSettings, progress: Progress) -> dict[str, float]:
    CALLS.append("finetune_qat")
    (out / "model").write_text((dataset / "data").read_text() + str(qat.epochs))
    return {}


STEPS = (
    Step(name="prepare_data", artifact="dataset"),
    Step(name="finetune_qat", artifact="qat"),
)


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions: dict[str, Any] = {"prepare_data": prepare, "finetune_qat": finetune}

    def load(name: str) -> Any:
        return define_step(name, functions[name])

    monkeypatch.setattr(step_module, "load_step", load)
    monkeypatch.setattr(reuse, "load_step", load)
    monkeypatch.setattr(step_module, "code_digest", lambda settings: "fixed")
    monkeypatch.setenv("QATLINE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QATLINE_EVENTS", str(tmp_path / "events"))
    CALLS.clear()


def run_all(folder: Path, **qat: Any) -> None:
    """Execute the steps as a pipeline does."""
    common: dict[str, Any] = {"seed": 3}
    dataset, model = str(folder / "dataset"), str(folder / "qat")
    run_component("prepare_data", settings={}, inputs={}, output=dataset, **common)
    settings = {"qat": {"epochs": 2, **qat}}
    run_component(
        "finetune_qat", settings=settings, inputs={"dataset": dataset}, output=model, **common
    )


def test_stored_run_is_taken_without_its_functions(tmp_path: Path) -> None:
    run_all(tmp_path / "first")
    assert CALLS == ["prepare_data", "finetune_qat"]
    found = find_stored(STEPS, SECTIONS, seed=3)
    assert [each.step for each in found] == list(STEPS)
    (tmp_path / "events").unlink()
    take_stored(found, tmp_path / "outputs", seed=3)
    assert CALLS == ["prepare_data", "finetune_qat"]
    taken = {path.parent.parent.name for path in (tmp_path / "outputs").glob("*/*/*/manifest.json")}
    assert taken == {"prepare-data-component", "finetune-qat-component"}
    (model,) = (tmp_path / "outputs").glob("*/*/qat/model")
    assert model.read_text() == "32"
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    finished = [event for event in events if event["event"] == "step_finished"]
    assert [(event["step"], event["status"]) for event in finished] == [
        ("prepare_data", "reused"),
        ("finetune_qat", "reused"),
    ]


@pytest.mark.parametrize(("seed", "epochs", "count"), [(4, 2, 0), (3, 5, 1)])
def test_steps_before_a_new_one_are_taken(
    tmp_path: Path, seed: int, epochs: int, count: int
) -> None:
    run_all(tmp_path / "first")
    found = find_stored(STEPS, {"qat": QATSettings(epochs=epochs)}, seed=seed)
    assert [each.step for each in found] == list(STEPS[:count])
    copies = take_stored(found, tmp_path / "outputs", seed=seed)
    assert list(copies) == ["dataset"][:count]
    assert all((path / "data").read_text() == "3" for path in copies.values())
    assert CALLS == ["prepare_data", "finetune_qat"]


def test_run_without_a_store_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(tmp_path / "first")
    monkeypatch.delenv("QATLINE_STORE")
    assert find_stored(STEPS, SECTIONS, seed=3) == []


def test_wrong_settings_are_left_to_the_step(tmp_path: Path) -> None:
    run_all(tmp_path / "first")
    assert find_stored(STEPS, {"qat": {"epochs": -1}}, seed=3) == []


def test_result_that_was_damaged_is_computed_again(tmp_path: Path) -> None:
    run_all(tmp_path / "first")
    found = find_stored(STEPS, SECTIONS, seed=3)
    assert [each.step for each in found] == list(STEPS)
    (model,) = (tmp_path / "store" / "finetune_qat").glob("*/model")
    model.unlink()
    model.write_text("xx")
    assert find_stored(STEPS, SECTIONS, seed=3) == found  # files are not looked at here
    take_stored(found, tmp_path / "outputs", seed=3)
    assert CALLS[2:] == ["finetune_qat"]
    (again,) = (tmp_path / "outputs").glob("*/*/qat/model")
    assert again.read_text() == "32"


def test_unfinished_entry_of_the_store_is_no_result(tmp_path: Path) -> None:
    run_all(tmp_path / "first")
    (manifest,) = (tmp_path / "store" / "finetune_qat").glob(f"*/{MANIFEST_NAME}")
    manifest.unlink()
    assert [each.step for each in find_stored(STEPS, SECTIONS, seed=3)] == [STEPS[0]]
