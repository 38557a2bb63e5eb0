"""A run to report on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_run import write_sample_run

from qatline.components.report import ReportFolders


@pytest.fixture
def folders(tmp_path: Path) -> ReportFolders:
    return write_sample_run(tmp_path)
