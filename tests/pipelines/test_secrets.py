"""Planted secrets are refused or never written.

They are planted wherever one can enter; nothing that a run writes, prints, compiles or records
holds them.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.main import app
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import create_run

# MLflow's own use of SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)
runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})

ADDRESSES = [
    "http://me:planted@host",
    "http://me:plan@planted@host",
    "http://me:pl/planted@host",
    "https://host/?token=planted",
    "https://host/?a=1&password=planted",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=planted&X-Amz-Signature=planted",
    "s3://key:planted@bucket/x",
]
LEAK = (
    "403 for url: https://b.s3.amazonaws.com/k?X-Amz-Signature=planted1&X-Amz-Security-Token=planted2 "
    "http://me:planted3@proxy:3128 http://me:pl/planted4@host {'password': 'planted5'} token=planted6 "
    "Authorization: Bearer planted7planted sent planted-in-the-environment "
    "login failed with pl4nt, tried also planted-in-a-url aws_secret_access_key = planted8 "
    "X-API-Key: planted9 sent p%40-planted%2Fpass of p@-planted/pass to https://hooks.example/planted0 "
    "by AKIAPLANTEDPLANTED00 with sk-planted-0123456789abcdef"
)


@pytest.mark.parametrize("uri", ADDRESSES)
@pytest.mark.parametrize(
    "key",
    [
        "tracking.uri",
        "data.path",
        "model.weights",
        "model.name",
        "quantization.spec",
        "model.options.x",
        "output",
    ],
)
def test_load_config_refuses_a_secret_in_an_address(key: str, uri: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    section, _, name = key.partition(".")
    path.write_text(
        f"{section}: {{{name}: '{uri}'}}\n"
        if name and "options" not in key
        else f"{section}: '{uri}'\n"
    )
    for arguments in ({"overrides": [f"{key}='{uri}'"]}, {"path": path}):
        with pytest.raises(ConfigError) as caught:
            load_config(**arguments)  # type: ignore[arg-type]
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize("command", ["run", "compile"])
@pytest.mark.parametrize(
    "variable", ["MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "--set", "--host"]
)
def test_command_refuses_secret_before_writing(
    command: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [command, "--set", f"tracking.uri={ADDRESSES[1]}", "--debug"]
    if variable == "--host":
        arguments = ["cluster", "schedules", "--host", ADDRESSES[0], "--debug"]
    elif variable != "--set":
        if command == "compile":  # which reads no address from the environment
            return
        monkeypatch.setenv(variable, ADDRESSES[0])
        arguments = [command, "--json", "--debug"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "expected an address without credentials" in done.stderr
    assert "planted" not in done.output
    assert list(tmp_path.iterdir()) == []


ENVIRONMENT = {
    "QATLINE_TRACKING": "",
    "LEAK": LEAK,
    "SOME_API_KEY": "planted-in-the-environment",
    "MLFLOW_TRACKING_PASSWORD": "planted-password",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-key",
    "AWS_SESSION_TOKEN": "planted-session",
    "HTTPS_PROXY": "http://me:planted-proxy@localhost:1",
    "PGPASSWORD": "pl4nt",
    "DB_PASS": "p@-planted/pass",
    "QATLINE_WEBHOOK": "https://hooks.example/planted0",
    "DATABASE_URL": "postgresql://me:planted-in-a-url@localhost:1/runs",
}
PLANTED = re.compile("planted|pl4nt", re.IGNORECASE)


@pytest.mark.matrix
def test_a_failing_tracked_run_keeps_no_secret(fake_cli: Any) -> None:
    failed = fail(fake_cli, "prepare_data")
    assert not PLANTED.search(failed.stdout + failed.stderr)
    check_files(fake_cli, {"mlflow.db", "pipeline.log", "config.yaml", "events.jsonl", "run.json"})
    log = (fake_cli.only_run() / "logs" / "pipeline.log").read_text()
    # The warning, the print, the log record, both tracebacks.
    assert log.count("X-Amz-Signature=***") >= 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASS", "planted"),
        ("WIDTH", "AKIAPLANTEDPLANTED00"),
        ("WIDTH", "in-planted-variable"),
        ("ALERT_WEBHOOK_URL", "https://hooks.example/planted"),
    ],
)
def test_compile_refuses_a_secret_in_cluster_env(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_TOKEN", "planted-variable")
    (tmp_path / "run.yaml").write_text(f"cluster: {{env: {{{name}: '{value}'}}}}\n")
    done = runner.invoke(app, ["compile", "--config", "run.yaml"])
    assert done.exit_code == 2, done.output
    assert f"cluster.env.{name}: expected no secret" in done.stderr
    assert f"cluster.secret_env={{{name}: secret-name/key}}" in done.stderr
    assert not PLANTED.search(done.output)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.matrix
def test_printed_objects_hold_no_secret_value(fake_cli: Any) -> None:
    failed = fake_cli("run", "--set", "model.options={prepare_data: {sleep: 0}}", "--json")
    assert failed.returncode == 0
    events = fake_cli.only_run() / "events.jsonl"
    # Of an earlier release, or of a machine where the variable was not set.
    with events.open("a") as stream:
        stream.write(
            '{"event": "error", "step": "evaluate", "message": "denied: p@-planted/pass"}\n'
        )
    for arguments in (["runs", "show"], ["runs", "show", "--json"]):
        shown = fake_cli(*arguments, **ENVIRONMENT)
        assert "denied: ***" in shown.stdout
        assert not PLANTED.search(shown.stdout + shown.stderr)


@pytest.mark.parametrize("uri", ADDRESSES)
def test_sync_refuses_a_secret_in_an_address(uri: str, tmp_path: Path) -> None:
    config = load_config(overrides=[f"output={tmp_path}"])
    folder = create_run(config, pipeline="a:b", cache=True, version="1")
    arguments = ["sync", str(folder.path), "--tracking-uri", uri, "--debug"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "planted" not in done.output
    assert not folder.tracking_file.exists()


@pytest.mark.slow
def test_a_resumed_tracked_run_keeps_no_secret(fake_cli: Any) -> None:
    fail(fake_cli, "train_baseline")
    shown = [
        fake_cli("resume", "--json", **ENVIRONMENT),
        fake_cli("config", "show", **ENVIRONMENT),
        fake_cli("sync", fake_cli.only_run().name, "--json", **ENVIRONMENT),
        fake_cli("compare", "--html", "compare.html", **ENVIRONMENT),
        fake_cli("compile", "--set", "tracking.uri=https://mlflow.example", **ENVIRONMENT),
    ]
    assert [done.returncode for done in shown] == [0] * 5
    assert not PLANTED.search("".join(done.stdout + done.stderr for done in shown))
    check_files(fake_cli, {"result.json", "pipeline.yaml", "tracking.json", "compare.html"})


def fail(fake_cli: Any, step: str) -> subprocess.CompletedProcess[str]:
    options = ["--set", f"model.options={{{step}: {{leak: LEAK}}}}", "--json"]
    failed: subprocess.CompletedProcess[str] = fake_cli("run", "--debug", *options, **ENVIRONMENT)
    assert failed.returncode == 1
    assert "ValueError: 403 for url" in failed.stderr
    return failed


def check_files(fake_cli: Any, expected: set[str]) -> None:
    written = [path for path in fake_cli.folder.rglob("*") if path.is_file()]
    assert expected <= {path.name for path in written}
    assert [path for path in written if PLANTED.search(path.read_text(errors="replace"))] == []
