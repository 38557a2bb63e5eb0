"""Values of ``--over``, and their combinations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.config.run_config import ConfigReading, RunConfig, read_config
from qatline.pipelines.run.preflight import check_before_training
from qatline.pipelines.sweep.space import Space, parse_parameter, trial_config


def space(*over: str, overrides: Sequence[str] = ()) -> Space:
    def read(texts: Sequence[str]) -> ConfigReading:
        return read_config(overrides=[*overrides, *texts])

    return Space(parameters=[parse_parameter(text) for text in over], read=read)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("quantization.calibrator=entropy,mse", ["entropy", "mse"]),
        ("qat.learning_rate=1e-5, 2.0e-05", ["1.0e-05", "2.0e-05"]),
        ("quantization.cases=[],[TensorRTQDQCase]", ["[]", "[TensorRTQDQCase]"]),
        ("quantization.spec=null,a b.yaml", ["null", "a b.yaml"]),
    ],
)
def test_parse_parameter_reads_yaml_values(text: str, values: list[str]) -> None:
    parameter = parse_parameter(text)
    assert (list(parameter.values), parameter.is_range) == (values, False)


def test_parse_parameter_reads_ranges() -> None:
    whole, log = parse_parameter("qat.epochs=1..4"), parse_parameter("a.b=1e-5..1e-3:log")
    assert (whole.low, whole.high, whole.whole, whole.log) == (1.0, 4.0, True, False)
    assert (log.low, log.high, log.whole, log.log) == (1e-5, 1e-3, False, True)
    assert (whole.text(3), log.text(2e-5)) == ("3", "2.0e-05")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qat.epochs", "expected KEY=VALUE,VALUE"),
        ("qat.epochs=", "expected KEY=VALUE,VALUE"),
        ("qat..x=1", "expected KEY=VALUE,VALUE"),
        ("qat.epochs=1,1", "expected different values, received 1 twice"),
        ("qat.epochs=4..1", "expected LOW below HIGH"),
        ("qat.learning_rate=0..1:log", "both positive"),
        ("qat.epochs=[1", "--over qat.epochs"),
    ],
)
def test_parse_parameter_rejects_other_texts(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"--over") as raised:
        parse_parameter(text)
    assert message in str(raised.value)


def test_grid_changes_the_last_key_first() -> None:
    grid = space("quantization.calibrator=max,mse", "qat.epochs=1,2").grid()
    assert [tuple(each.values()) for each in grid] == [
        ("max", "1"),
        ("max", "2"),
        ("mse", "1"),
        ("mse", "2"),
    ]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["qat.epochs=1..4"], "--over qat.epochs: a grid needs a list of values"),
        (
            [
                "seed=" + ",".join(map(str, range(40))),
                "qat.epochs=" + ",".join(map(str, range(40))),
            ],
            "at most 1000 combinations, received 1600",
        ),
    ],
)
def test_grid_rejects_ranges_and_large_grids(over: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        space(*over).grid()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["quantization.calibratr=max"], "did you mean 'quantization.calibrator'?"),
        (
            ["quantization.calibrator=max,foo"],
            "--over quantization.calibrator=foo: quantization.calibrator: expected one of",
        ),
        (["qat.epochs=-1..4"], "--over qat.epochs=-1: qat.epochs"),
        (["output=a,b"], "--over output: expected a key of seed, data, task"),
        (["registry.name=a,b"], "--over registry.name: expected a key of"),
        (["seed=1", "seed=2"], "--over seed: expected each key once"),
        (["quantization.spec=none.yaml"], "--over quantization.spec=none.yaml: "),
        (["model.name=no_module:build"], "--over model.name=no_module:build: "),
    ],
)
def test_check_names_the_wrong_option(over: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        space(*over).check(check_before_training)
    assert message in str(raised.value)


def test_check_accepts_valid_values(tmp_path: Path) -> None:
    found = space("quantization.calibrator=max,mse", "qat.epochs=0..3")
    found.check(check_before_training)
    assert found.config({"qat.epochs": "3"}).qat.epochs == 3


def test_config_rejects_contradicting_values() -> None:
    found = space("training.batch_size=4", "training.accumulate_steps=8")
    with pytest.raises(ConfigError, match="accumulate_steps"):
        found.config({"training.batch_size": "4", "training.accumulate_steps": "8"})


def test_trial_config_uses_no_registry() -> None:
    config = RunConfig.model_validate(
        {
            "registry": {"name": "line"},
            "package": {"target": "plain", "publish": "s3://bucket/line"},
            "retrain": {"only_new": True, "qat": "auto"},
        }
    )
    trial = trial_config(config)
    assert (trial.registry.name, trial.retrain.only_new, trial.retrain.qat) == (None, False, "auto")
    assert (trial.package.target, trial.package.publish) == (None, None)
    champion = config.model_copy(
        update={"retrain": config.retrain.model_copy(update={"start": "champion"})}
    )
    with pytest.raises(ConfigError, match="expected scratch for a sweep"):
        trial_config(champion)
