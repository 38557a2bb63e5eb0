"""Run a compiled pipeline as a cluster does: one container's command after the other, each alone.

A pod is a folder of its own with copies of the artifacts that its task declares; what it declares
as output is copied to the object store, and the folder is removed. So a step that looks at another
step's folder, at the working directory or at the home of whoever started the test finds nothing.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format, struct_pb2

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a task left: the object store's copies and the executor's own output."""

    task: str
    artifacts: Mapping[str, Path]
    output: Mapping[str, Any]
    log: str

    def metadata(self, artifact: str) -> dict[str, Any]:
        """The metadata that the step gave one of its artifacts."""
        (found,) = self.output["artifacts"][artifact]["artifacts"]
        return found.get("metadata") or {}


@dataclass(kw_only=True)
class Pods:
    """Runs the tasks of a pipeline.

    Args:
        spec: the compiled pipeline.
        folder: where pods and the object store are.
        environment: what replaces or is added to the containers' variables.
    """

    spec: Mapping[str, Any]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)

    def dag(self) -> Mapping[str, Any]:
        """The tasks of the steps, within an exit handler or not."""
        group = self.spec["components"].get("comp-exit-handler-1", self.spec["root"])
        tasks: Mapping[str, Any] = group["dag"]["tasks"]
        return tasks

    def order(self) -> Iterator[str]:
        """The steps' tasks, each after those it depends on."""
        tasks, done = self.dag(), set[str]()
        while len(done) < len(tasks):
            for name, task in tasks.items():
                if name not in done and done.issuperset(task.get("dependentTasks", ())):
                    done.add(name)
                    yield name

    def run(self, name: str) -> Finished:
        """Run one step's task in a pod of its own."""
        task = self.dag()[name]
        defaults = self.spec["root"]["inputDefinitions"]["parameters"]
        parameters: dict[str, Any] = {}
        for parameter, source in task["inputs"].get("parameters", {}).items():
            origin = source["componentInputParameter"].removeprefix("pipelinechannel--")
            parameters[parameter] = defaults[origin]["defaultValue"]
        inputs: dict[str, Path] = {}
        for artifact, source in task["inputs"].get("artifacts", {}).items():
            made = source["taskOutputArtifact"]
            inputs[artifact] = self.finished[made["producerTask"]].artifacts[
                made["outputArtifactKey"]
            ]
        self.finished[name] = self.start(name, task["componentRef"]["name"], parameters, inputs)
        return self.finished[name]

    def end(self, state: str, message: str = "") -> Finished:
        """Run the exit handler's task."""
        error = {"error": {"code": 9, "message": message}} if message else {}
        status = {
            "state": state,
            "pipelineJobResourceName": "qatline-abcde",
            "pipelineTaskName": "exit-handler-1",
            **error,
        }
        return self.start("close", "comp-close-run-component", {"status": status}, {})

    def start(
        self, name: str, component: str, parameters: Mapping[str, Any], inputs: Mapping[str, Path]
    ) -> Finished:
        declared = self.spec["components"][component]
        container = self.spec["deploymentSpec"]["executors"][declared["executorLabel"]]["container"]
        pod = self.folder / "pods" / name
        for place in ("work", "home", "tmp", "inputs", "outputs"):
            (pod / place).mkdir(parents=True)
        for artifact, source in inputs.items():
            shutil.copytree(source, pod / "inputs" / artifact)
        outputs = declared.get("outputDefinitions", {}).get("artifacts", {})
        kinds = declared.get("inputDefinitions", {}).get("artifacts", {})
        message = {
            "inputs": {
                "parameterValues": as_struct(parameters),
                "artifacts": {key: one(key, pod / "inputs" / key, kinds[key]) for key in inputs},
            },
            "outputs": {
                "artifacts": {
                    key: one(key, pod / "outputs" / key, outputs[key]) for key in outputs
                },
                "parameters": {
                    key: {"outputFile": str(pod / "outputs" / key)}
                    for key in declared.get("outputDefinitions", {}).get("parameters", {})
                },
                "outputFile": str(pod / "outputs" / "executor_output.json"),
            },
        }
        command = [*container["command"], *container["args"]]
        done = subprocess.run(
            [part.replace("{{$}}", json.dumps(message)) for part in command],
            cwd=pod / "work",
            env=self.variables(container, pod),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}\n{done.stdout}"
        assert not list((pod / "work").iterdir()), f"{name} wrote into its working directory"
        report = pod / "outputs" / "executor_output.json"
        output = json.loads(report.read_text()) if report.exists() else {}
        stored = self.store(name, pod, [key for key in outputs if (pod / "outputs" / key).exists()])
        shutil.rmtree(pod)
        return Finished(task=name, artifacts=stored, output=output, log=done.stdout)

    def variables(self, container: Mapping[str, Any], pod: Path) -> dict[str, str]:
        """Nothing of the test's own environment but where Python is."""
        own = {item["name"]: item["value"] for item in container.get("env", ())}
        return {
            **own,
            **self.environment,
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(pod / "home"),
            "TMPDIR": str(pod / "tmp"),
        }

    def store(self, name: str, pod: Path, keys: list[str]) -> dict[str, Path]:
        """Copy the outputs to the object store."""
        stored: dict[str, Path] = {}
        for key in keys:
            source, target = pod / "outputs" / key, self.folder / "store" / name / key
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
            stored[key] = target
        return stored


def one(name: str, path: Path, declared: Mapping[str, Any]) -> dict[str, Any]:
    """One artifact of the executor's input."""
    kind = declared["artifactType"]
    return {"artifacts": [{"name": name, "type": kind, "uri": str(path), "metadata": {}}]}


def as_struct(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values after their way through protobuf, where every number is a double."""
    struct = struct_pb2.Struct()
    struct.update(dict(values))
    found: dict[str, Any] = json_format.MessageToDict(struct)
    return found
