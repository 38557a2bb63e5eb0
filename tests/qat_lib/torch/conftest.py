"""These tests need the extra qatline[torch]; without it they are not collected."""

from __future__ import annotations

from qat_lib.extras import missing_packages

collect_ignore_glob = ["test_*.py"] if missing_packages(["torch", "onnxscript"]) else []
