"""Everything that is found before the first step of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qatline.components.runtime.step import run_component
from qatline.components.store.step_store import STORE_VARIABLE
from qatline.pipelines.config.run_config import read_config
from qatline.pipelines.run.check import check_run
from qatline.pipelines.run.findings import Findings
from tests.pipelines.run.planted import MISTAKES, write_planted


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the planted configs, and no credentials."""
    write_planted(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in os.environ if name.startswith(("AWS_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("QATLINE_TRACKING", raising=False)
    return tmp_path


def check(name: str | None = None, *overrides: str) -> Findings:
    return check_run(read_config(Path(name) if name else None, overrides=overrides))


def test_one_check_reports_24_mistakes(here: Path) -> None:
    findings = check("run.yaml")
    found = [(mistake.key, mistake.text) for mistake in findings.mistakes]
    for key, words in MISTAKES:
        assert any(key == other and words in text for other, text in found), (key, words, found)
    assert len(found) == len(MISTAKES) == 24
    assert findings.unchecked == {
        "forward pass": "model.name",
        "export": "export.target",
        "registry": "registry.name",
        "step store": "registry.name",
    }


def test_what_hides_other_mistakes_is_named(here: Path) -> None:
    findings = check("hiding.yaml")
    keys = [mistake.key for mistake in findings.mistakes]
    wanted = ["task", "data.path", "model.name", "model.weights", "quantization.spec"]
    assert sorted(keys) == sorted(wanted)
    assert findings.unchecked["data"] == "data.path"
    assert findings.unchecked["model"] == "model.name"
    assert findings.unchecked["plan"] == "quantization.spec"


def test_a_right_config_is_summed_up(here: Path) -> None:
    findings = check()
    assert (findings.mistakes, findings.unchecked, findings.notes) == ([], {}, [])
    assert findings.facts["samples"] == "train 1,064, calibration 256, validation 118, test 359"
    assert findings.facts["task"] == "classification, 10 classes, by accuracy"
    assert findings.facts["store"] == "reuses nothing"
    assert "layers quantized" in findings.facts["plan"]
    assert not (here / "runs").exists()


def test_reused_steps_are_predicted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "off")
    with monkeypatch.context() as context:
        context.setenv(STORE_VARIABLE, str(here / "runs" / "store"))
        config = read_config().config
        settings = {name: config.sections()[name] for name in ("data", "task")}
        run_component(
            "prepare_data", settings=settings, seed=0, inputs={}, output=str(here / "dataset")
        )
    assert check().facts["store"] == (
        "reuses prepare_data; runs train_baseline; others depend on its result"
    )
    assert check(None, "seed=1").facts["store"] == "reuses nothing"


def test_targets_of_the_model_and_the_task_are_tried(here: Path) -> None:
    (here / "planted_task.py").write_text(
        "from qatline.components.tasks import Task\n"
        "class Broken(Task):\n"
        "    def decode(self, outputs): return outputs\n"
        "    def score(self, predictions, targets): return predictions.missing\n"
    )
    np.savez(here / "fine.npz", x=np.zeros((60, 5), np.float32), y=np.ones((60, 7), np.float32))
    (here / "planted_dense.py").write_text(
        "def build(input_shape, output_shape):\n"
        "    import keras\n"
        "    x = keras.Input(input_shape)\n"
        "    return keras.Model(x, keras.layers.Dense(*output_shape)(x))\n"
    )
    findings = check(
        None,
        "data={kind: npz, path: fine.npz}",
        "task.name=planted_task:Broken",
        "model.name=planted_dense:build",
        "training.augment=none",
    )
    keys = [(mistake.key, mistake.text.partition(":")[0]) for mistake in findings.mistakes]
    assert keys == [("task.name", "AttributeError"), ("task.name", "NotImplementedError")]


def test_column_of_weights_is_looked_for(here: Path) -> None:
    lines = [f"{index},{index % 3},0" for index in range(60)]
    (here / "data.csv").write_text("\n".join(["a,y,w", *lines]))
    given = "data={kind: table, path: data.csv, target_columns: [y], weight_column: %s}"
    for column, words in (("weight", "names 'weight'"), ("w", "expected a weight above 0")):
        mistakes = check(None, given % column, "training.augment=none").mistakes
        assert any(words in each.text for each in mistakes if each.key.startswith("data")), column


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "training.callbacks=[{name: EarlyStopping, options: {patiense: 3}}]",
            "training.callbacks: 'keras.callbacks:EarlyStopping' has no option 'patiense'. Did you "
            "mean 'patience'?",
        ),
        ("training.callbacks=[{name: ReduceLROnPlateau, options: {patiense: 3}}]", "'patience'?"),
        (
            "training.callbacks=[LearningRateScheduler]",
            "needs the option 'schedule', received none",
        ),
        (
            "training.optimizer={name: 'keras.optimizers:Lion', options: {beta_3: 1}}",
            "Did you mean 'beta_2'?",
        ),
        (
            "qat.schedule={name: 'planted_options:warmup', options: {fist: 3}}",
            "qat.schedule: 'planted_options:warmup' has no option 'fist'. Did you mean 'first'?",
        ),
        ("training.schedule=planted_options:warmup", "needs the option 'first'"),
        (
            "training.augment={name: 'planted_options:noise', options: {inputs: 1}}",
            "has no option 'inputs'. It has: seed, scale.",
        ),
    ],
)
def test_options_of_user_code_are_compared(here: Path, override: str, words: str) -> None:
    (here / "planted_options.py").write_text(
        "def warmup(learning_rate, first): ...\n"
        "def noise(inputs, targets, seed, scale=0.1): ...\n"
        "def anything(learning_rate, **options): ...\n"
    )
    (mistake,) = check(None, override).mistakes
    assert words in mistake.text
    right = (
        "training.callbacks=[TerminateOnNaN, {name: EarlyStopping, options: {patience: 3}}]",
        "training.schedule={name: 'planted_options:warmup', options: {first: 3}}",
        "training.augment={name: 'planted_options:noise', options: {scale: 1}}",
        "training.optimizer={name: 'planted_options:anything', options: {beta: 1}}",
    )
    if override.startswith("qat"):
        assert check(None, *right).mistakes == []


def test_large_arrays_are_not_read_as_a_whole(here: Path) -> None:
    x = np.zeros((3000, 64, 64, 1), np.float32)
    x[2000] = np.nan
    np.savez(here / "large.npz", x=x, y=np.arange(3000) % 3)
    findings = check(None, "data={kind: npz, path: large.npz}", "model.name=planted_mine:build")
    assert [mistake.key for mistake in findings.mistakes] == ["model.name"]  # 7 outputs
    assert findings.notes == ["of the data, only the first samples were read (64 of each part)"]
    assert findings.facts["samples"].startswith("train 1,")


def test_batches_sorted_by_class_are_no_mistake(here: Path) -> None:
    (here / "sorted_batches.py").write_text(
        "import numpy as np\n\n"
        "def parts():\n"
        "    batches = ((np.zeros((8, 8, 8, 1), np.float32), np.full(8, n)) for n in range(7))\n"
        "    return {'train': batches, 'classes': list('abcdefg')}\n"
    )
    data = "data={kind: python, name: 'sorted_batches:parts', fingerprint: '1'}"
    findings = check(None, data, "model.name=planted_mine:build")
    assert findings.mistakes == []
    assert findings.facts["task"].startswith("classification, 7 classes")


def test_check_of_a_broken_check_is_a_mistake(here: Path, monkeypatch: Any) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr("qatline.pipelines.run.check.choose_export", fail)
    findings = check()
    assert [mistake.line for mistake in findings.mistakes] == ["export: RuntimeError: odd"]
    assert "plan" in findings.facts
