"""``qatline cluster``: runs and schedules through the command line."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from fake_kfp_server import FakeKfpServer
from typer.testing import CliRunner

from qatline.components.support.images import ENGINE_IMAGE, IMAGE
from qatline.components.tracking.pipeline_run import find_or_create_parent
from qatline.components.tracking.store import ensure_store, open_client
from qatline.pipelines.cli.main import app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeKfpServer]:
    fake = FakeKfpServer()
    yield fake
    fake.close()


def run(server: FakeKfpServer, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["cluster", *arguments, "--host", server.url])
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "http" not in line)
    return done.exit_code, done.output


def test_submit_names_the_run_and_waits(server: FakeKfpServer) -> None:
    server.new_runs = {"state": "SUCCEEDED"}
    code, output = run(server, "submit", "--wait", "--timeout", "1m")
    (name,) = [found["display_name"] for found in server.runs.values()]
    assert name.startswith("resnet_digits on digits, 20")
    assert code == 0
    assert output.splitlines()[1:] == ["run  succeeded"]
    address = output.splitlines()[0]
    assert run(server, "wait", address) == (0, "run  succeeded\n")


@pytest.mark.parametrize(("state", "code"), [("FAILED", 1), ("CANCELED", 1), ("RUNNING", 124)])
def test_wait_ends_with_the_runs_code(server: FakeKfpServer, state: str, code: int) -> None:
    server.runs["r"] = {"run_id": "r", "display_name": "r", "state": state}
    ended, output = run(server, "wait", "r", "--timeout", "1s")
    assert ended == code
    assert f"run  {state.lower()}" in output


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")
def test_wait_ends_with_the_verdict(
    server: FakeKfpServer, tmp_path: Path, new_store: Callable[[Path], str]
) -> None:
    uri = new_store(tmp_path)
    experiment = ensure_store(uri, "nights", (tmp_path / "artifacts").as_uri())
    client = open_client(uri)
    for name, verdict in (("good", "promote"), ("bad", "reject")):
        server.runs[name] = {"run_id": name, "display_name": name, "state": "SUCCEEDED"}
        parent = find_or_create_parent(client, experiment, name)
        client.set_tag(parent, "qatline.verdict", verdict)
    server.runs["other"] = {"run_id": "other", "display_name": "o", "state": "SUCCEEDED"}
    codes = {}
    for name in ("good", "bad", "other"):
        code, output = run(server, "wait", name, "--tracking-uri", uri)
        codes[output.splitlines()[-1]] = code
    assert codes == {"verdict  promote": 0, "verdict  reject": 3, "verdict  unknown": 0}
    accepted = ("wait", "bad", "--tracking-uri", uri, "--accept-rejected")
    assert run(server, *accepted)[0] == 0


def test_wait_refuses_a_wrong_timeout(server: FakeKfpServer) -> None:
    code, output = run(server, "wait", "r", "--timeout", "soon")
    assert code == 2
    assert "--timeout: expected a duration such as 90s" in output


def test_schedule_is_shown_paused_and_resumed(server: FakeKfpServer) -> None:
    assert run(server, "schedule", "often", "--every", "6h") == (0, "Schedule often: created\n")
    assert run(server, "pause", "often") == (0, "Schedule often: paused\n")
    assert "often\tevery 6h\tmax 1\tpaused" in run(server, "schedules")[1]
    code, text = run(server, "show", "often")
    assert code == 0
    assert text.splitlines()[:4] == [
        "Schedule    often",
        "Status      paused",
        "When        every 6h",
        "At once     1",
    ]
    assert text.splitlines()[-1] == "Runs        none yet"
    assert run(server, "resume", "often") == (0, "Schedule often: resumed\n")
    assert "often\tevery 6h\tmax 1\n" in run(server, "schedules")[1]
    assert run(server, "unschedule", "often") == (0, "Schedule often: removed\n")
    assert run(server, "show", "often")[0] == 2


def test_schedule_takes_one_trigger(server: FakeKfpServer) -> None:
    for arguments in ([], ["--every", "1h", "--cron", "0 0 2 * * *"], ["--every", "later"]):
        code, output = run(server, "schedule", "x", *arguments)
        assert code == 2
        assert "Error: " in output


def test_image_says_how_to_build_and_what_to_configure(tmp_path: Path) -> None:
    (tmp_path / "my_nets.py").write_text("def build(): ...\n")
    config = tmp_path / "config.yaml"
    config.write_text("model: { name: 'my_nets:build' }\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "path", list(sys.path))
        done = CliRunner().invoke(app, ["cluster", "image", "--config", str(config)])
    assert done.stdout.splitlines() == [
        "Wrote cluster-image/Dockerfile",
        "# In a checkout of qatline, whose images are not published:",
        f"docker build --target training -t {IMAGE} .",
        "# Here:",
        "docker build --target training -t registry.example/qatline-python-train:mine cluster-image",
        "docker push registry.example/qatline-python-train:mine",
        "Then add to the config:",
        "cluster:",
        "  images:",
        "    train: registry.example/qatline-python-train:mine",
        "    modules: [my_nets]",
    ]


def test_image_says_that_nothing_is_needed(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["cluster", "image", "-o", str(tmp_path / "image")])
    assert done.exit_code == 0
    assert "its own images suffice. Build and push them:" in done.stdout
    assert f"docker build --target engine -t {ENGINE_IMAGE} ." in done.stdout


def test_runtime_prints_manifests_or_writes_them(tmp_path: Path) -> None:
    def runtime(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["cluster", "runtime", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    printed = runtime("--namespace", "team", "--service-account", "runner")
    kinds = [each["kind"] for each in yaml.safe_load_all(printed)]
    assert kinds == ["ClusterTrainingRuntime", "Role", "RoleBinding"]
    assert "  namespace: team\n" in printed
    target = tmp_path / "runtime.yaml"
    named = ("--set", "cluster.train_job.runtime=mine")
    assert runtime(*named, "-o", str(target)) == f"Wrote {target}\n"
    assert "  name: mine\n" in target.read_text()


def test_runtime_does_not_write_over_a_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["cluster", "runtime", "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert "which is a folder" in done.output.replace("\n", " ")
