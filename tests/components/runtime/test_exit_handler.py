"""The end of a run on a cluster: its MLflow run closed, the webhook told."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.runtime.exit_handler import WEBHOOK_VARIABLE, close_run, tell_webhook
from qatline.components.tracking.pipeline_run import find_or_create_parent
from qatline.components.tracking.store import ensure_store, open_client

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


class Hook:
    """A web server that keeps what is posted; ``codes`` are its answers, then 200."""

    def __init__(self, *codes: int) -> None:
        self.posted: list[dict[str, Any]] = []
        self.codes = list(codes)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                hook.posted.append(json.loads(raw))
                self.send_response(hook.codes.pop(0) if hook.codes else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/services/T000/hunter2hunter2"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    server = Hook()
    monkeypatch.setenv(WEBHOOK_VARIABLE, server.address)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _no_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "QATLINE_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "kfp-1")


@pytest.fixture
def parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_store: Callable[[Path], str]
) -> tuple[Any, str]:
    """A client of a store, and the open MLflow run of the pipeline run ``kfp-1`` in it."""
    uri = new_store(tmp_path)
    experiment = ensure_store(uri, "pipelines", (tmp_path / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "pipelines")
    client = open_client(uri)
    return client, find_or_create_parent(client, experiment, "kfp-1")


@pytest.mark.parametrize(
    ("state", "status"),
    [("SUCCEEDED", "FINISHED"), ("FAILED", "FAILED"), ("CANCELLED", "KILLED"), ("", "FAILED")],
)
def test_close_run_closes_the_parent_and_tells_it(
    parent: tuple[Any, str], hook: Hook, state: str, status: str
) -> None:
    client, run_id = parent
    close_run(state=state, run="qatline-x", reason="" if status == "FINISHED" else "no nodes")
    assert client.get_run(run_id).info.status == status
    (message,) = hook.posted
    assert (message["run"], message["status"]) == ("kfp-1", status)
    assert message["mlflow_run"] == run_id
    ending = "" if status == "FINISHED" else ": no nodes"
    assert message["text"] == f"qatline run kfp-1: {status.lower()}{ending}"


def test_close_run_works_without_a_tracking_server(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QATLINE_PIPELINE_RUN_ID")
    close_run(state="SUCCEEDED", run="qatline-x")
    assert [(one["run"], one["mlflow_run"]) for one in hook.posted] == [("qatline-x", "")]


def test_the_webhook_is_told_although_the_store_is_away(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(TrackingError, match="can't be reached"):
        close_run(state="FAILED", run="qatline-x")
    assert [message["status"] for message in hook.posted] == ["FAILED"]
    monkeypatch.setenv("QATLINE_TRACKING", "optional")
    close_run(state="FAILED", run="qatline-x")
    assert len(hook.posted) == 2


def test_the_reason_is_masked_and_cut(hook: Hook) -> None:
    close_run(state="FAILED", run="x", reason="password=hunter2hunter2 " + "a" * 9000)
    (message,) = hook.posted
    assert "hunter2" not in message["reason"]
    assert len(message["reason"]) == 2000


def test_a_webhook_that_recovers_is_told(hook: Hook) -> None:
    hook.codes = [503, 500]
    waits: list[float] = []
    assert tell_webhook(hook.address, {"a": 1}, sleep=waits.append)
    assert hook.posted == [{"a": 1}] * 3
    assert waits == [2.0, 4.0]


def test_a_webhook_that_is_away_is_logged_without_its_address(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.codes = [500] * 3
    assert not tell_webhook(hook.address, {}, sleep=lambda seconds: None)
    hook.close()
    assert not tell_webhook(hook.address, {}, sleep=lambda seconds: None)
    assert "failed 3 times: it answers 500" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_address_of_no_web_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="QATLINE_WEBHOOK: expected an address") as caught:
        tell_webhook("file:///etc/hunter2", {})
    assert "hunter2" not in str(caught.value)


def test_train_jobs_are_deleted_where_steps_are_launched(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.trainjob import jobs

    deleted: list[str] = []
    monkeypatch.setattr(jobs, "delete_leftovers", deleted.append)
    close_run(state="CANCELLED", run="qatline-abcde")
    assert deleted == []
    monkeypatch.setenv("QATLINE_TRAIN_JOBS", "delete")
    close_run(state="CANCELLED", run="qatline-abcde")
    assert deleted == ["kfp-1"]
