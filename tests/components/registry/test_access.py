"""Whether a run has a registry."""

from __future__ import annotations

import pytest

from qat_lib.errors import TrackingError
from qatline.components.registry.access import champion_digest, run_registry
from qatline.components.settings import GateSettings, RegistrySettings

NAMED = RegistrySettings(name="line-3")


def test_unnamed_registry_is_none() -> None:
    assert run_registry(RegistrySettings()) is None
    assert champion_digest(RegistrySettings()) == {}
    assert champion_digest(GateSettings()) == {}


def test_named_registry_without_tracking_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "off")
    told = list[str]()
    assert run_registry(NAMED, told.append) is None
    assert "tracking is off" in told[0]


def test_store_that_is_away_is_an_error_where_tracking_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    with pytest.raises(TrackingError, match="can't be reached"):
        run_registry(NAMED)
    monkeypatch.setenv("QATLINE_TRACKING", "optional")
    told = list[str]()
    assert run_registry(NAMED, told.append) is None
    assert "nothing is registered" in told[0]
