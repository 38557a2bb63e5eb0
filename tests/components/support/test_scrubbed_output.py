from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from qatline.components.support.credentials import mask_values
from qatline.components.support.scrubbed_output import ScrubbedStream, scrub_output


def test_scrubbed_stream_masks_writes_and_delegates() -> None:
    inner = io.StringIO()
    stream = ScrubbedStream(inner)
    assert stream.write("http://me:planted@host\n") == len("http://me:planted@host\n")
    stream.writelines(["a?token=planted\n", "b\n"])
    stream.flush()
    assert inner.getvalue() == "http://***@host\na?token=***\nb\n"
    assert not stream.isatty()


def test_scrub_output_is_put_in_front_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    scrub_output()
    scrub_output()
    assert sys.stderr is None
    assert sys.stdout._stream is out  # type: ignore[attr-defined]


def test_scrub_output_leaves_structured_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("DB_PASS", "planted-1")
    scrub_output(stdout=mask_values)
    for stream in (sys.stdout, sys.stderr):
        stream.write("MLFLOW_TRACKING_PASSWORD: mlflow/password planted-1")
    assert out.getvalue() == "MLFLOW_TRACKING_PASSWORD: mlflow/password ***"
    # References to Kubernetes secrets stay in prose, too.
    assert err.getvalue() == out.getvalue()


ROOT = Path(__file__).parents[3]

CODE = """
import logging
from qatline.components.support.scrubbed_output import log_to_pod
log_to_pod()
logging.getLogger("qatline.components.x").info("ours, of %s", "https://me:secret1234@host/")
logging.getLogger("boto").info("theirs")
logging.getLogger("boto").warning("their warning")
"""


def test_pod_log_has_our_lines_and_their_warnings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines() == ["ours, of https://***@host/", "their warning"]
