from typing import Any

import pytest

from qatline.components.settings import ModelSettings
from qatline.components.settings.config_values import (
    LARGEST_INTEGER,
    SECRET_REFERENCES,
    restore_integers,
    value_problem,
)
from qatline.pipelines.config.cluster_settings import ClusterSettings


@pytest.mark.parametrize(
    ("options", "path", "problem"),
    [
        ({"a": {"b": [{"api_key": "x"}]}}, "options.a.b.api_key", "expected no secret"),
        ({"a": ["http://u:p@h"]}, "options.a", "expected an address without credentials"),
        ({"a": float("inf")}, "options.a", "expected a finite number, received inf"),
        ({"a": LARGEST_INTEGER + 1}, "options.a", "expected a whole number up to 2\\*\\*53"),
        ({"a": "x\0"}, "options.a", "null characters"),
        ({"a": "\udcff"}, "options.a", "UTF-8"),
        ({"a": b"x"}, "options.a", "received bytes"),
    ],
)
def test_value_problem_names_the_path(options: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"{path}: .*{problem}"):
        ModelSettings.model_validate({"options": options})


def test_value_problem_is_none_for_plain_values() -> None:
    options = {"a": [1, -LARGEST_INTEGER, 0.5, True, "text ü", {"b": "s3://bucket/x"}]}
    assert value_problem(ModelSettings(options=options)) is None


def test_references_to_secrets_are_no_secrets() -> None:
    settings = ClusterSettings.model_validate(
        {"secret_env": {"MLFLOW_TRACKING_PASSWORD": "mlflow/password"}}
    )
    assert value_problem(settings) is None
    assert ClusterSettings.model_fields["secret_env"].json_schema_extra == SECRET_REFERENCES


def test_integers_are_restored_at_any_depth() -> None:
    restored = restore_integers(
        {"a": [1.0, {"b": 2.0}], "c": 0.5, "d": True, "e": "3.0", "f": None}
    )
    assert restored == {"a": [1, {"b": 2}], "c": 0.5, "d": True, "e": "3.0", "f": None}
    assert isinstance(restored["a"][0], int)
    assert isinstance(restore_integers(1e20), float)
