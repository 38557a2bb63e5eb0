"""``pip install qatline`` without extras: commands work or name their extra."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "fakes" / "every_command.py"
NEEDS = {
    "run": "pipeline,keras,engine,data",
    "compile": "pipeline",
    "components": "pipeline",
    "compare": "pipeline",
    "sync": "pipeline",
    "registry": "pipeline",
    "promote": "pipeline",
    "rollback": "pipeline",
    "ui": "pipeline",
    "sweep": "sweep",
    "optimize": "keras",
    "predict": "keras",
    "quantize": "keras",
    "export": "keras",
    "finetune": "keras",
    "evaluate": "keras",
    "diagnose": "keras",
    "search": "keras",
    "verify": "engine",
    "analyze": "engine",
    "build-engine": "engine",
    "package": "engine",
    "serve": "serve",
    "publish": "pipeline",
    "cluster submit": "pipeline",
    "cluster wait": "pipeline",
    "cluster schedule": "pipeline",
    "cluster unschedule": "pipeline",
    "cluster pause": "pipeline",
    "cluster resume": "pipeline",
    "cluster show": "pipeline",
    "cluster schedules": "pipeline",
}


def check(said: dict[str, Any]) -> None:
    assert said.pop("left out") == []
    for command, (code, message) in said.items():
        assert "bug in qatline" not in message, (command, message)
        if command in NEEDS:
            assert code == 1, (command, message)
            assert f" with: pip install 'qatline[{NEEDS[command]}]'" in message
            assert message.count("\n") == 1
        elif command.startswith(
            (
                *("config", "runs", "report", "init", "doctor"),
                *("cluster image", "cluster runtime", "schedule"),
            )
        ):
            assert (code, message) == (0, ""), command
        elif command == "check":  # its mistakes are its result, on standard output
            assert (code, message) == (2, "")
        elif command == "resume":
            assert (code, "received 'none'" in message) == (2, True)
        else:
            assert command in ("bench-engine", "check-engine")
            assert code == 1
            assert "needs its manifest" in message


def test_every_command_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--block"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))


@pytest.mark.live
@pytest.mark.slow
def test_commands_name_extra_in_bare_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True)
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [python, SCRIPT], cwd=tmp_path / "work", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))
