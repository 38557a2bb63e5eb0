import json
from pathlib import Path

from qatline.components.settings import DataSettings
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.config.schema import config_schema, schema_text

ROOT = Path(__file__).parents[3]


def test_schema_knows_every_key_and_the_profiles() -> None:
    schema = config_schema()
    assert set(schema["properties"]) == {*RunConfig.model_fields, "profiles"}
    assert set(schema["$defs"]["DataSettings"]["properties"]) == set(DataSettings.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Profile"]["additionalProperties"] is False
    assert "required" not in schema


def test_committed_schema_is_current() -> None:
    committed = ROOT / "docs" / "schema" / "run-config.schema.json"
    assert committed.read_text() == schema_text(), (
        "run: qatline config schema -o docs/schema/run-config.schema.json"
    )
    assert json.loads(committed.read_text())["title"] == "qatline run config"
