"""Commands and what lies where they shall write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reference_networks import ResidualNetwork, write_network
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app


def test_no_command_writes_over_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A FIFO stands for the device: were the check missing, the machine's would be replaced.
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "model.onnx", ResidualNetwork(), "int8")
    os.mkfifo("fifo")
    for command in (
        ["build-engine", "model.onnx", "-o", "fifo"],
        ["build-engine", "model.onnx", "-o", "model.onnx"],
        ["analyze", "model.onnx", "--html", "fifo"],
        ["compile", "-o", "fifo"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, done.output
        assert "Expected" in done.output
    assert Path("fifo").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "model.onnx"]
