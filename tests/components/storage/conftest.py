"""A cache of its own for what is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
