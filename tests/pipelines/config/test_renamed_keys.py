"""Deprecated config keys work, warn, and can't contradict new ones."""

from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.config.renamed_keys import RENAMED, with_new_keys
from qatline.pipelines.config.run_config import build_config, load_config


def test_with_new_keys_renames_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    values = {"seed": 1, "export": {"remainder": "fp16", "opset": 19}}
    renamed = with_new_keys(values, source="run.yaml")
    assert renamed == {"seed": 1, "export": {"float_precision": "fp16", "opset": 19}}
    assert values["export"] == {"remainder": "fp16", "opset": 19}
    assert [record.getMessage() for record in caplog.records] == [
        "run.yaml: export.remainder is now export.float_precision; "
        "the old name goes with the next release."
    ]


@pytest.mark.parametrize("values", [{}, {"export": None}, {"export": 3}, {"export": {"opset": 19}}])
def test_with_new_keys_leaves_other_values_alone(
    values: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert with_new_keys(values, source="run.yaml") == values
    assert not caplog.records


def test_with_new_keys_refuses_both_names() -> None:
    both = {"export": {"remainder": "fp16", "float_precision": "fp32"}}
    with pytest.raises(ConfigError, match=r"run\.yaml: expected export\.float_precision alone"):
        with_new_keys(both, source="run.yaml")


def test_every_renamed_key_is_one_of_the_config() -> None:
    for (section, old), new in RENAMED.items():
        fields = type(getattr(load_config(), section)).model_fields
        assert new in fields
        assert old not in fields


def test_load_config_takes_old_keys_from_every_source(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("export: {remainder: fp16}\nprofiles: {full: {export: {remainder: fp32}}}\n")
    assert load_config(path).export.float_precision == "fp16"
    assert load_config(path, profiles=["full"]).export.float_precision == "fp32"
    overridden = load_config(path, profiles=["full"], overrides=["export.remainder=fp16"])
    assert overridden.export.float_precision == "fp16"
    assert build_config({"export": {"remainder": "fp16"}}).export.float_precision == "fp16"


@pytest.mark.parametrize("retrain", [None, {"start": "champion"}])
def test_qat_auto_is_short_for_the_key_of_retraining(retrain: dict[str, str] | None) -> None:
    values = {"qat": "auto"} | ({} if retrain is None else {"retrain": retrain})
    assert with_new_keys(values, source="c") == {"retrain": {**(retrain or {}), "qat": "auto"}}
