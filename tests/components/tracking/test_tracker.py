"""Tracking seen by the step, without MLflow: modes, failures, records."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from recording_tracker import RecordingTracker

from qat_lib.errors import ConfigError, DataError, StepError, TrackingError
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.settings import DataSettings, QATSettings
from qatline.components.store.directories import describe
from qatline.components.tracking import mlflow_tracker, tracked
from qatline.components.tracking import store as tracking_store
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.tracked import flatten, log_outputs, log_settings
from qatline.components.tracking.tracker import NullTracker, OptionalTracker, probe, tracking_mode

INFO = DatasetInfo(
    kind="npz",
    classes=("a", "b"),
    image_shape=(8, 8, 1),
    dtype="float32",
    splits={"test": 2},
    fingerprint="f" * 64,
    source="http://u:p@host/d.npz",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RecordingTracker:
    tracker = RecordingTracker()
    monkeypatch.setattr(mlflow_tracker, "open_run", lambda step, times: tracker)
    return tracker


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "off"),
        ({"MLFLOW_TRACKING_URI": "http://x"}, "required"),
        ({"MLFLOW_TRACKING_URI": "http://x", "QATLINE_TRACKING": "off"}, "off"),
        ({"QATLINE_TRACKING": "optional"}, "optional"),
    ],
)
def test_the_environment_decides(environment: dict[str, str], mode: str) -> None:
    assert tracking_mode(environment) == mode


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="QATLINE_TRACKING: expected one of off, optional, required; received 'on'",
    ):
        tracking_mode({"QATLINE_TRACKING": "on"})


def test_off_tracks_nothing(progress: Any) -> None:
    with step_run("evaluate", warn=progress.warn) as tracker:
        assert isinstance(tracker, NullTracker)
        log_settings(tracker, {"qat": QATSettings()}, seed=0, key="k")
        tracker.log_onnx(Path("x"), "x")
        tracker.log_history([])
        tracker.log_dataset(INFO)


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_the_run_ends_as_the_step_ends(
    run: RecordingTracker, monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    with step_run("evaluate", warn=progress.warn):
        pass
    assert run.closed == "FINISHED"
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("x")
    assert run.closed == "FAILED"
    with pytest.raises(KeyboardInterrupt), step_run("evaluate", warn=progress.warn):
        raise KeyboardInterrupt
    assert run.closed == "FAILED"


def test_required_tracking_that_fails_fails_the_step(
    run: RecordingTracker, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    run.fail = True
    with (
        pytest.raises(TrackingError, match="went away"),
        step_run("evaluate", warn=progress.warn) as tracker,
    ):
        tracker.log_metrics({"a": 1.0})
    with (
        pytest.raises(TrackingError, match="can't be closed"),
        step_run("evaluate", warn=progress.warn),
    ):
        pass


def test_optional_tracking_that_fails_is_one_warning(
    run: RecordingTracker, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "optional")
    run.fail = True
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.log_metrics({"a": 1.0})
        tracker.log_metrics({"a": 1.0})
    assert len(run.calls) == 1
    assert progress.warnings == [
        "tracking stops for this step: the server went away",
        "the run can't be closed",
    ]


def test_optional_tracking_hands_everything_on() -> None:
    inner, warnings = RecordingTracker(), list[str]()
    tracker = OptionalTracker(inner, warnings.append)
    tracker.log_params({"p": 1})
    tracker.log_metrics({"m": 1.0})
    tracker.log_history([{"loss": 1.0}])
    tracker.log_artifact(Path("a"), "b")
    tracker.log_onnx(Path("c"), "d")
    tracker.log_dataset(INFO)
    tracker.set_tags({"f": "g"})
    names = ["params", "metrics", "history", "artifact", "onnx", "dataset", "tags"]
    assert [name for name, _ in inner.calls] == names


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str, closed_port: int
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port}")
    if mode == "required":
        with pytest.raises(
            TrackingError, match=r"127.0.0.1:\d+ can't be reached.*tracking\.required=false"
        ):
            step_run("evaluate", warn=progress.warn).__enter__()
        return
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.log_metrics({"a": 1.0})
    assert len(progress.warnings) == 1


def test_close_does_not_hide_body_errors(
    run: RecordingTracker, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    run.fail = True
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("the better message")
    assert progress.warnings == ["the run can't be closed"]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def answering() -> Iterator[Any]:
    """Start HTTP servers that answer with a given status."""
    servers = []

    def start(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [200, 401, 403, 404, 500])
def test_any_answer_of_a_server_will_do(answering: Any, status: int) -> None:
    probe(answering(status))


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_without_a_server_does_not(answering: Any, status: int) -> None:
    with pytest.raises(TrackingError, match=f"can't be reached: it answers {status}"):
        probe(answering(status))


def test_silence_is_noticed_soon() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        started = time.monotonic()
        with pytest.raises(TrackingError, match="can't be reached"):
            probe(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.2)
        assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "uri", ["http://[broken", "http://no-such-host.invalid", "http://127.0.0.1:99999"]
)
def test_what_is_no_address_is_told(uri: str) -> None:
    with pytest.raises(TrackingError, match="can't be reached"):
        probe(uri, seconds=5)


@pytest.mark.parametrize("uri", ["sqlite:////tmp/x.db", "", "databricks"])
def test_other_stores_are_not_probed(uri: str) -> None:
    probe(uri)


@pytest.mark.parametrize(
    "variable", ["MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "MLFLOW_S3_ENDPOINT_URL"]
)
@pytest.mark.parametrize("mode", ["optional", "required"])
def test_step_run_refuses_credentials_in_an_address(
    monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str, variable: str
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    monkeypatch.setenv(variable, "http://me:planted@127.0.0.1:1")
    with pytest.raises(ConfigError, match="expected an address without credentials") as caught:
        step_run("evaluate", warn=progress.warn).__enter__()
    assert "planted" not in str(caught.value)


def test_settings_are_flat_params_with_their_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked, "environment_tags", lambda: {"version.numpy": "2"})
    tracker = RecordingTracker()
    sections = {"qat": QATSettings(epochs=3), "data": DataSettings(classes=["a", "b"])}
    log_settings(tracker, sections, seed=4, key="abc")
    (params,) = tracker.of("params")
    assert params["run.seed"] == 4
    assert params["qat.epochs"] == 3
    assert params["data.classes"] == '["a","b"]'
    assert params["data.preprocessing.mean"] == "[0.0]"
    assert tracker.of("tags") == [{"qatline.key": "abc", "version.numpy": "2"}]


def test_long_values_are_cut_and_marked() -> None:
    (value,) = flatten("x" * 9000, "spec").values()
    assert (len(value), value[-4:]) == (tracked.MAX_PARAM, "x...")


def test_what_is_recorded_is_declared(tmp_path: Path) -> None:
    (tmp_path / "qat.onnx").write_bytes(b"o")
    (tmp_path / "fp32.onnx").write_bytes(b"o")
    for name in ("plan.json", "export.json", "other.json"):
        (tmp_path / name).write_text("{}")
    tracker = RecordingTracker()
    manifest = describe(tmp_path, metrics={"bytes": 3.0})
    log_outputs(tracker, "export_onnx", tmp_path, manifest)
    assert tracker.of("metrics") == [{"bytes": 3.0}]
    assert tracker.of("artifact") == [("plan.json", ""), ("export.json", "")]
    assert tracker.of("onnx") == [("qat.onnx", "qat")]
    assert tracker.of("tags") == [{"qatline.output_digest": manifest.digest}]


def test_engines_carry_their_target_as_tags(tmp_path: Path) -> None:
    (tmp_path / "qat.engine").write_bytes(b"e")
    target = {
        "backend": "openvino",
        "device": {"name": "cpu", "flags": ["avx2"], "compute": None},
        "quantized": True,
        "nodes": {f"n{index}": "x" for index in range(500)},
    }
    (tmp_path / "qat.engine.json").write_text(json.dumps(target))
    tracker = RecordingTracker()
    log_outputs(tracker, "build_engine", tmp_path, describe(tmp_path))
    assert tracker.of("tags")[1] == {
        "qat.engine.backend": "openvino",
        "qat.engine.device.name": "cpu",
        "qat.engine.device.flags": '["avx2"]',
        "qat.engine.quantized": "True",
    }
    assert tracker.of("artifact") == [("qat.engine", ""), ("qat.engine.json", "")]


def test_history_and_data_set_are_recorded_as_such(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text('[{"epoch": 1, "loss": 0.5}]')
    INFO.save(tmp_path)
    tracker = RecordingTracker()
    log_outputs(tracker, "finetune_qat", tmp_path, describe(tmp_path))
    log_outputs(tracker, "prepare_data", tmp_path, describe(tmp_path))
    assert tracker.of("history") == [([{"epoch": 1, "loss": 0.5}], "epoch")]
    assert tracker.of("dataset") == [INFO]


def test_log_outputs_leaves_the_registry_to_the_promotion(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"model": "resnet", "verdict": "promote"}')
    (tmp_path / "champion.onnx").write_bytes(b"o")
    tracker = RecordingTracker()
    log_outputs(tracker, "promote", tmp_path, describe(tmp_path))
    assert {name for name, _ in tracker.calls} <= {"metrics", "tags", "artifact"}
    assert tracker.of("artifact") == [("verdict.json", "")]


def test_pictures_keep_their_folder(tmp_path: Path) -> None:
    (tmp_path / "worst_samples").mkdir()
    (tmp_path / "worst_samples" / "1.png").write_bytes(b"p")
    tracker = RecordingTracker()
    log_outputs(tracker, "evaluate", tmp_path, describe(tmp_path))
    assert tracker.of("artifact") == [("1.png", "worst_samples")]


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("[")
    with pytest.raises(StepError, match=r"history\.json is no JSON"):
        log_outputs(RecordingTracker(), "finetune_qat", tmp_path, describe(tmp_path))


def test_git_state_is_told_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    tags = tracked.environment_tags()
    assert "git.commit" not in tags
    assert tags["version.numpy"]
    monkeypatch.setenv("PATH", "")
    assert "git.commit" not in tracked.environment_tags()


def test_flatten_cuts_texts_beyond_500_characters() -> None:
    assert flatten("x" * 500, "spec") == {"spec": "x" * 500}
    assert flatten("x" * 501, "spec") == {"spec": "x" * 497 + "..."}
    assert flatten({"a": {"b": [1, {"c": None}]}, "d": 5}, "s") == {
        "s.a.b": '[1,{"c":null}]',
        "s.d": 5,
    }


@pytest.mark.parametrize(("status", "dirty"), [("", "false"), (" M file", "true")])
def test_environment_tags_tell_commit_and_changes(
    monkeypatch: pytest.MonkeyPatch, status: str, dirty: str
) -> None:
    monkeypatch.setattr(
        tracked, "_git", lambda *arguments: "abc" if arguments[0] == "rev-parse" else status
    )
    tags = tracked.environment_tags()
    assert (tags["git.commit"], tags["git.dirty"]) == ("abc", dirty)
    assert tags["host.system"]


def test_git_is_asked_for_five_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [0, 1, -9, OSError(), subprocess.TimeoutExpired("git", 5)]
    asked = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append((command, options))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, answer, stdout=" abc\n")

    monkeypatch.setattr(tracked.subprocess, "run", run)
    assert [tracked._git("status") for _ in range(5)] == ["abc", "", "", "", ""]
    options = {"capture_output": True, "text": True, "timeout": 5, "check": False}
    assert asked == [(["git", "status"], options)] * 5


def test_log_outputs_takes_tags_of_objects_only(tmp_path: Path) -> None:
    (tmp_path / "qat.engine.json").write_text('["backend"]')
    tracker = RecordingTracker()
    log_outputs(tracker, "build_engine", tmp_path, describe(tmp_path))
    assert tracker.of("tags")[1:] == [{}]


@pytest.mark.parametrize("status", [501, 505])
def test_probe_takes_errors_of_the_server_itself(answering: Any, status: int) -> None:
    probe(answering(status))


def test_probe_waits_three_seconds_in_daemon_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[Any] = []

    class Silent:
        def __init__(self, **options: Any) -> None:
            threads.append(options["daemon"])

        def start(self) -> None:
            pass

        def join(self, seconds: float) -> None:
            threads.append(seconds)

    monkeypatch.setattr(tracking_store.threading, "Thread", Silent)
    with pytest.raises(TrackingError, match="can't be reached: no answer within 3 s"):
        probe("https://host")
    assert threads == [True, 3.0]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("went wrong\n[SQL: SELECT 1]"), "^it: went wrong$"),
        (RuntimeError("went wrong\n(Background on this error at: x)"), "^it: went wrong$"),
        (RuntimeError("http://me:planted@host"), r"^it: http://\*\*\*@host$"),
        (KeyError(), "^it: KeyError$"),
        (RuntimeError("No space left on device"), "^it: the disk is full"),
        (ImportError("no such name"), "^it: no such name$"),
        (ModuleNotFoundError("No module named 'mlflow'", name="mlflow"), "^it: .*pip install"),
    ],
)
def test_translated_tells_what_libraries_raise(error: Exception, message: str) -> None:
    with pytest.raises(TrackingError, match=message), tracking_store.translated("it"):
        raise error


def test_translated_hands_our_own_errors_on() -> None:
    with pytest.raises(DataError, match="own"), tracking_store.translated("it"):
        raise DataError("own")


class Client:
    """MLflow's client, of one experiment."""

    stage: str | None = "active"
    made: ClassVar[list[Any]] = []

    def __init__(self, *, tracking_uri: str) -> None:
        assert tracking_uri == "databricks"

    def get_experiment_by_name(self, name: str) -> Any:
        return self.stage and SimpleNamespace(lifecycle_stage=self.stage, experiment_id=7)

    def create_experiment(
        self, name: str, *, artifact_location: str | None, tags: dict[str, str]
    ) -> int:
        assert tags == {"mlflow.experimentKind": "custom_model_development"}
        self.made.append((name, artifact_location))
        return 8


def test_ensure_store_takes_makes_or_refuses_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    assert tracking_store.ensure_store("databricks", "e") == "7"
    assert Client.made == []
    monkeypatch.setattr(Client, "stage", None)
    assert tracking_store.ensure_store("databricks", "e", "s3://x") == "8"
    assert Client.made == [("e", "s3://x")]
    monkeypatch.setattr(Client, "stage", "deleted")
    with pytest.raises(
        TrackingError, match=r"'e' was deleted: restore it with `mlflow experiments restore -x 7`"
    ):
        tracking_store.ensure_store("databricks", "e")
