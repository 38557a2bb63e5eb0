"""Names of runs."""

from datetime import datetime

import pytest

from qatline.pipelines.cluster.names import run_name
from qatline.pipelines.config.run_config import load_config


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "resnet_digits on digits"),
        (["model.name=keras.applications:MobileNetV2"], "MobileNetV2 on digits"),
        (["model.name=nets:build", "data={kind: keras, name: mnist}"], "nets.build on mnist"),
        (["model.name=/a/net.keras", "data={kind: npz, path: 's3://b/c.npz'}"], "net on c"),
    ],
)
def test_run_name_says_model_data_and_time(overrides: list[str], name: str) -> None:
    found = run_name(load_config(overrides=overrides), datetime(2026, 1, 2, 3, 4, 5))
    assert found == f"{name}, 2026-01-02 03:04"
