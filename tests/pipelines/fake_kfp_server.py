"""A fake of the Kubeflow Pipelines API server, over real HTTP.

It routes by the paths of the *installed* generated client, checks every request body against its
models (an unknown field is an error, as on the server), and adds the server's own rules for
schedules. It proves that requests are well formed for that API version, not that a cluster accepts
them.
"""

import inspect
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kfp_server_api

_APIS = ("ExperimentServiceApi", "PipelineServiceApi", "PipelineUploadServiceApi", "RecurringRunServiceApi",
         "RunServiceApi", "HealthzServiceApi")  # fmt: skip


def generated_routes() -> list[tuple[str, "re.Pattern[str]", str]]:
    """(method, path pattern, operation) of the installed client's calls."""
    routes = []
    for api in _APIS:
        source = inspect.getsource(getattr(kfp_server_api, api))
        found = re.findall(
            r"def (\w+)_with_http_info.*?call_api\(\s*'([^']+)', '(\w+)'", source, re.S
        )
        for operation, path, method in found:
            pattern = re.sub(r"\\{[\w.]+\\}", "([^/:]+)", re.escape(path))
            routes.append((method, re.compile(pattern + "$"), operation))
    return routes


def check_body(value: Any, model: str, place: str = "") -> None:
    """Raise ValueError for an unknown field at any depth."""
    if model.startswith("list["):
        for item in value:
            check_body(item, model[5:-1], place)
        return
    known = getattr(kfp_server_api, model, None)
    if known is None or not isinstance(value, dict):
        return
    types = {
        json_name: known.openapi_types[name] for name, json_name in known.attribute_map.items()
    }
    for key, item in value.items():
        if key not in types:
            raise ValueError(f"unknown field {place}.{key} of {model}")
        check_body(item, types[key], f"{place}.{key}")


class FakeKfpServer:
    """Holds experiments, pipelines with versions, runs and recurring runs in memory."""

    def __init__(self) -> None:
        self.experiments: dict[str, dict[str, Any]] = {}
        self.pipelines: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.recurring: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.new_runs: dict[str, Any] = {}
        self._routes = generated_routes()
        self._count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ---------------------------------------------------------------- operations, named as in the
    # generated client
    def healthz_service_get_healthz(self, **_: Any) -> dict[str, Any]:
        return {"multi_user": False}

    def experiment_service_create_experiment(
        self, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        check_body(body, "V2beta1Experiment")
        return self._add(self.experiments, "experiment_id", body)

    def experiment_service_list_experiments(
        self, query: dict[str, str], **_: Any
    ) -> dict[str, Any]:
        return {"experiments": _filtered(self.experiments, query)}

    def pipeline_service_list_pipelines(self, query: dict[str, str], **_: Any) -> dict[str, Any]:
        return {"pipelines": _filtered(self.pipelines, query)}

    def pipeline_service_list_pipeline_versions(
        self, ids: list[str], query: dict[str, str], **_: Any
    ) -> dict[str, Any]:
        versions = [
            version for version in self.versions.values() if version["pipeline_id"] == ids[0]
        ]
        return {"pipeline_versions": versions}

    def upload_pipeline(self, query: dict[str, str], **_: Any) -> dict[str, Any]:
        pipeline = self._add(self.pipelines, "pipeline_id", {"display_name": query["name"]})
        self._add_version(pipeline["pipeline_id"], query["name"])
        return pipeline

    def upload_pipeline_version(self, query: dict[str, str], **_: Any) -> dict[str, Any]:
        if query["pipelineid"] not in self.pipelines:
            raise LookupError("no such pipeline")
        return self._add_version(query["pipelineid"], query["name"])

    def run_service_create_run(self, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        check_body(body, "V2beta1Run")
        self._check_version(body)
        return self._add(self.runs, "run_id", {**body, **self.new_runs})

    def run_service_get_run(self, ids: list[str], **_: Any) -> dict[str, Any]:
        if ids[0] not in self.runs:
            raise LookupError(f"Run {ids[0]} not found.")
        return self.runs[ids[0]]

    def run_service_list_runs(self, query: dict[str, str], **_: Any) -> dict[str, Any]:
        runs = [
            run for run in self.runs.values() if run.get("experiment_id") == query["experiment_id"]
        ]
        runs.sort(
            key=lambda run: str(run.get("created_at")), reverse=query["sort_by"].endswith(" desc")
        )
        return _page(runs, "runs", query)

    def experiment_service_get_experiment(self, ids: list[str], **_: Any) -> dict[str, Any]:
        return self.experiments[ids[0]]

    def recurring_run_service_create_recurring_run(
        self, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        check_body(body, "V2beta1RecurringRun")
        self._check_version(body)
        if not 1 <= int(body["max_concurrency"]) <= 10:
            raise ValueError("max_concurrency must be from 1 to 10")
        _check_trigger(body["trigger"])
        status = {"ENABLE": "ENABLED", "DISABLE": "DISABLED"}[body["mode"]]
        stored = {**body, "max_concurrency": str(body["max_concurrency"]), "status": status}
        return self._add(self.recurring, "recurring_run_id", stored)

    def recurring_run_service_list_recurring_runs(
        self, query: dict[str, str], **_: Any
    ) -> dict[str, Any]:
        return _page(list(self.recurring.values()), "recurringRuns", query)

    def recurring_run_service_enable_recurring_run(
        self, ids: list[str], **_: Any
    ) -> dict[str, Any]:
        self.recurring[ids[0]]["status"] = "ENABLED"
        return {}

    def recurring_run_service_disable_recurring_run(
        self, ids: list[str], **_: Any
    ) -> dict[str, Any]:
        self.recurring[ids[0]]["status"] = "DISABLED"
        return {}

    def recurring_run_service_delete_recurring_run(
        self, ids: list[str], **_: Any
    ) -> dict[str, Any]:
        del self.recurring[ids[0]]
        return {}

    # ------------------------------------------------------------------------------------------------------ plumbing
    def _add(
        self, store: dict[str, dict[str, Any]], key: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        self._count += 1
        name = f"{key.removesuffix('_id')}-{self._count}"
        store[name] = {**body, key: name}
        return store[name]

    def _add_version(self, pipeline: str, name: str) -> dict[str, Any]:
        return self._add(
            self.versions, "pipeline_version_id", {"pipeline_id": pipeline, "display_name": name}
        )

    def _check_version(self, body: dict[str, Any]) -> None:
        reference = body["pipeline_version_reference"]
        if (
            self.versions[reference["pipeline_version_id"]]["pipeline_id"]
            != reference["pipeline_id"]
        ):
            raise ValueError("the version is not one of this pipeline")
        if body["experiment_id"] not in self.experiments:
            raise LookupError("no such experiment")

    def _answer(self, method: str, target: str, raw: bytes) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        for wanted, pattern, operation in self._routes:
            match = pattern.match(parts.path)
            function: Callable[..., dict[str, Any]] | None = getattr(self, operation, None)
            if match and wanted == method and function is not None:
                self.calls.append(operation)
                body = json.loads(raw) if raw.startswith(b"{") else {}
                try:
                    return 200, function(ids=list(match.groups()), query=query, body=body)
                except ValueError as error:
                    return 400, {"error": str(error), "message": str(error)}
                except LookupError as error:
                    return 404, {"error": str(error), "message": str(error)}
        return 404, {"error": f"no route for {method} {parts.path}"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, content = fake._answer(self.command, self.path, raw)
                data = json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        return Handler


def _check_trigger(trigger: dict[str, Any]) -> None:
    """The server's rules: one kind of trigger, six fields of cron, an interval of a second."""
    if len(trigger) != 1:
        raise ValueError("expected one trigger")
    if "cron_schedule" in trigger:
        if not re.fullmatch(r"(\S+ ){5}\S+", trigger["cron_schedule"]["cron"]):
            raise ValueError("cron must have six fields")
    elif int(trigger["periodic_schedule"]["interval_second"]) < 1:
        raise ValueError("the interval must be at least one second")


def _page(items: list[dict[str, Any]], key: str, query: dict[str, str]) -> dict[str, Any]:
    """One a page: a client that reads the first page only is found out."""
    start = int(query.get("page_token") or 0)
    more = {"next_page_token": str(start + 1)} if start + 1 < len(items) else {}
    return {key: items[start : start + 1], **more}


def _filtered(store: dict[str, dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    wanted = {
        predicate.get("string_value") or predicate.get("stringValue")
        for predicate in json.loads(query.get("filter") or "{}").get("predicates", ())
        if predicate["key"] in ("name", "display_name")
    }
    return [item for item in store.values() if not wanted or item.get("display_name") in wanted]
