"""A strict fake of a Kubernetes API server with Kubeflow Trainer, over HTTP on loopback.

It takes what the role of ``qatline cluster runtime`` allows and nothing else, refuses objects that
break the schemas of ``crds.yaml``, and answers with the codes and Status objects of a real server.
"""

import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import yaml

HERE = Path(__file__).parent
MANIFESTS = HERE.parents[2] / "pipelines" / "cluster" / "manifests" / "runtime.yaml"
SCHEMAS = yaml.safe_load((HERE / "crds.yaml").read_text())
FORMS = ("podSpecOverrides", "podTemplateOverrides", "runtimePatches")
CONTAINER = {"name": "node", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
_TRAINJOBS = re.compile(
    r"/apis/trainer\.kubeflow\.org/v1alpha1/namespaces/([^/]+)/trainjobs(?:/([^/]+))?"
)
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/(log))?")


def manifests() -> dict[str, dict[str, Any]]:
    """The objects of the runtime's file, by kind."""
    text = Template(MANIFESTS.read_text()).substitute(
        kind="ClusterTrainingRuntime",
        runtime="qatline-tensorflow",
        place="",
        image="image:1",
        namespace="team",
        account="runner",
    )
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def check_schema(value: Mapping[str, Any], kind: str, without: tuple[str, ...] = ()) -> None:
    """Raise ValueError in the words of the server for what the kind's schema refuses."""
    for form in without:
        if form in value.get("spec", {}):
            raise ValueError(f'strict decoding error: unknown field "spec.{form}"')
    schema = {**SCHEMAS[kind], "definitions": SCHEMAS["definitions"]}
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError as error:
        raise ValueError(f"{'.'.join(map(str, error.absolute_path))}: {error.message}") from error


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str, **details: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


class FakeKubernetes:
    """Holds TrainJobs and pods of the namespace ``team`` in memory.

    Attributes:
        installed: Whether the cluster knows TrainJobs.
        runtimes: Names of its training runtimes.
        unknown: Forms of overrides that its version of Trainer does not know.
        faults: What the next requests get: a code, or None for a connection that breaks.
        rules: What the service account may do.
        lingers: How often a deleted TrainJob is seen before it is gone.
        started: Called with each new TrainJob.
        stopped: Called with the name of each deleted TrainJob.
    """

    def __init__(self) -> None:
        self.installed = True
        self.runtimes = {"qatline-tensorflow"}
        self.unknown: tuple[str, ...] = ()
        self.faults: list[int | None] = []
        self.rules = manifests()["Role"]["rules"]
        self.lingers = 0
        self.token = "service-token"
        self.started: Callable[[dict[str, Any]], None] = lambda _: None
        self.stopped: Callable[[str], None] = lambda _: None
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.calls: list[str] = []
        self._count = 0
        self._lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def serve_tls(self, key: Path, certificate: Path) -> None:
        """Speak HTTPS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    # ------------------------------------------------------------------ what controllers would do
    def end(self, name: str, condition: str, message: str = "") -> None:
        """Give a TrainJob a final condition: Complete or Failed."""
        told = {"type": condition, "status": "True", "reason": f"Jobs{condition}"}
        with self._lock:
            if name in self.jobs:
                status = self.jobs[name].setdefault("status", {})
                status.setdefault("conditions", []).append({**told, "message": message})

    def count(self, name: str, **counts: int) -> None:
        """Set the numbers of a TrainJob's jobs."""
        with self._lock:
            if name in self.jobs:
                self.jobs[name].setdefault("status", {})["jobsStatus"] = [
                    {"name": "node", "active": 0, "ready": 0, "succeeded": 0, "failed": 0,
                     "suspended": 0, **counts}
                ]  # fmt: skip

    def add_pod(self, job: str, index: int, state: Mapping[str, Any], **status: Any) -> str:
        """Add a pod of a TrainJob, or change its state."""
        name = f"{job}-node-0-{index}-x{index}y"
        labels = {
            "jobset.sigs.k8s.io/jobset-name": job,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        with self._lock:
            self.pods[name] = {
                "metadata": {"name": name, "labels": labels},
                "status": {"containerStatuses": [{**CONTAINER, "state": dict(state)}], **status},
            }
        return name

    # ------------------------------------------------------------------------------ the server
    def answer(self, method: str, target: str, token: str, raw: bytes) -> Any:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if token.lower() != f"bearer {self.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        body = json.loads(raw) if raw else {}
        if match := _TRAINJOBS.fullmatch(parts.path):
            if not self.installed:
                raise LookupError
            return self._train_jobs(method, *match.groups(), query, body)
        if match := _PODS.fullmatch(parts.path):
            return self._pods(method, *match.groups(), query)
        raise LookupError

    def _train_jobs(
        self, method: str, namespace: str, name: str | None, query: dict[str, str], body: Any
    ) -> Any:
        verb = {"POST": "create", "GET": "get" if name else "list", "DELETE": "delete"}[method]
        self._allow(verb, "trainer.kubeflow.org", "trainjobs", namespace)
        with self._lock:
            if verb == "list":
                return {"kind": "TrainJobList", "items": self._selected(self.jobs, query)}
            if verb == "create":
                return self._create(body, query)
            if name not in self.jobs:
                raise RefusedError(404, "NotFound", f'trainjobs "{name}" not found', name=str(name))
            job = self.jobs[name]
            if verb == "delete":
                assert query == {"propagationPolicy": "Foreground"}
                job["metadata"].setdefault("deletionTimestamp", "2026-11-22T20:00:00Z")
                self._gone(name)
            elif "deletionTimestamp" in job["metadata"]:
                self._gone(name)
            return job

    def _create(self, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        assert query == {"fieldValidation": "Strict"}
        try:
            check_schema(body, "TrainJob", self.unknown)
        except ValueError as error:
            raise RefusedError(400, "BadRequest", str(error)) from error
        name = body["metadata"]["name"]
        if len(f"{name}-node-0-99-abcde") > 63:
            raise RefusedError(403, "Forbidden", "admission webhook denied the request: pod name")
        if name in self.jobs:
            message = f'trainjobs.trainer.kubeflow.org "{name}" already exists'
            raise RefusedError(409, "AlreadyExists", message)
        runtime = body["spec"]["runtimeRef"]["name"]
        if runtime not in self.runtimes:
            raise RefusedError(
                403,
                "Forbidden",
                'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
                f'spec.runtimeRef: Invalid value: "{runtime}": must be created before the TrainJob',
            )
        self._count += 1
        job = json.loads(json.dumps(body))
        job["metadata"]["uid"] = f"uid-{self._count}"
        self.jobs[name] = job
        self.started(job)
        return job

    def _gone(self, name: str) -> None:
        if self.lingers:
            self.lingers -= 1
            return
        self.stopped(name)
        del self.jobs[name]
        for pod in [each for each in self.pods if each.startswith(f"{name}-node-")]:
            del self.pods[pod]

    def _pods(
        self, method: str, namespace: str, name: str | None, log: str | None, query: dict[str, str]
    ) -> Any:
        assert method == "GET"
        if not log:
            self._allow("list", "", "pods", namespace)
            with self._lock:
                return {"kind": "PodList", "items": self._selected(self.pods, query)}
        self._allow("get", "", "pods/log", namespace)
        assert query["container"] == "node"
        if name not in self.logs:
            raise RefusedError(404, "NotFound", f'pods "{name}" not found')
        return "\n".join(self.logs[name].splitlines()[-int(query["tailLines"]) :])

    def _allow(self, verb: str, group: str, resource: str, namespace: str) -> None:
        self.calls.append(f"{verb} {resource}")
        for rule in self.rules:
            granted = group in rule["apiGroups"] and resource in rule["resources"]
            if granted and verb in rule["verbs"] and namespace == "team":
                return
        raise RefusedError(
            403,
            "Forbidden",
            f'{resource} is forbidden: User "system:serviceaccount:team:runner" cannot {verb} '
            f'resource "{resource}" in API group "{group}" in the namespace "{namespace}"',
        )

    def _selected(
        self, objects: Mapping[str, dict[str, Any]], query: dict[str, str]
    ) -> list[dict[str, Any]]:
        key, _, value = query["labelSelector"].partition("=")
        return [each for each in objects.values() if each["metadata"]["labels"].get(key) == value]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = fake.faults.pop(0) if fake.faults else 0
                if fault is None:
                    self.connection.close()
                    return
                code, content = 200, b""
                try:
                    if fault:
                        raise RefusedError(fault, "InternalError", f"fault {fault}")
                    token = self.headers.get("Authorization") or ""
                    found = fake.answer(self.command, self.path, token, raw)
                    code = 201 if self.command == "POST" else 200
                    text = found if isinstance(found, str) else json.dumps(found)
                    content = text.encode(errors="surrogateescape")
                except RefusedError as refusal:
                    code, content = refusal.code, json.dumps(refusal.status).encode()
                except LookupError:
                    code, content = 404, b"404 page not found\n"
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        return Handler
