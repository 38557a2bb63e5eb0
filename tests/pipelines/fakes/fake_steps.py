"""Small step functions behind the real ``run_component``: store, events, tracking and all.

``model.options`` tells them how to behave, by step: ``{"train_baseline": {"sleep": 5, "error":
"DataError", ...}}``. ``calls.log`` beside the step store counts the executions, since a reused step
does not call its function.
"""

import json
import logging
import os
import signal
import time
from pathlib import Path

from qat_lib import errors
from qatline.components.runtime import step as step_module
from qatline.components.runtime.steps import define_step
from qatline.components.settings import EngineSettings, ModelSettings
from qatline.components.support.events import Progress


def prepare_data(
    out: Path, *, model: ModelSettings, seed: int, progress: Progress
) -> dict[str, float]:
    behave("prepare_data", model, progress)
    (out / "data.txt").write_text(f"seed {seed}")
    return {"samples": 10.0}


def train_baseline(
    dataset: Path, out: Path, *, model: ModelSettings, seed: int, progress: Progress
) -> dict[str, float]:
    behave("train_baseline", model, progress)
    for epoch in range(4):
        progress.update("training", epoch + 1, 4, loss=1.0 / (epoch + 1), accuracy=0.9)
    (out / "model.txt").write_text((dataset / "data.txt").read_text() + f" {model.name}")
    return {"accuracy": 0.9}


def evaluate(
    baseline: Path,
    out: Path,
    *,
    model: ModelSettings,
    engine: EngineSettings,
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    behave("evaluate", model, progress)
    if engine.threads == model.options.get("failing_threads"):
        raise errors.DataError("expected another number of threads")
    rows = {"fp32": {"accuracy": 0.9, "bytes": len((baseline / "model.txt").read_text())}}
    if engine.threads:  # more threads: more accurate, slower
        rows["qat_engine"] = {
            "accuracy": 0.85 + engine.threads / 100,
            "latency_ms_p50": 1.0 * engine.threads,
            "bytes": 1000 * engine.threads,
        }
    (out / "evaluation.json").write_text(json.dumps({"results": rows}))
    return {"accuracy": 0.9}


def behave(name: str, model: ModelSettings, progress: Progress) -> None:
    with (Path(os.environ["QATLINE_STORE"]).parent / "calls.log").open("a") as log:
        log.write(f"{name} {os.getpid()}\n")
    wanted = model.options.get(name, {})
    # A step misbehaves once: a second attempt finds the mark.
    mark = Path(os.environ["QATLINE_STORE"]).parent / f"misbehaved-{name}"
    if not wanted or mark.exists():
        return
    mark.write_text(str(os.getpid()))
    if "warn" in wanted:
        progress.warn(wanted["warn"])
    time.sleep(wanted.get("sleep", 0))
    if "leak" in wanted:  # what a library says may hold what no config may
        text = os.environ[wanted["leak"]]
        progress.warn(text)
        print(text)  # noqa: T201
        logging.getLogger("library").warning("%s", text)
        raise ValueError(text) from OSError(text)
    if "error" in wanted:
        raise getattr(errors, wanted["error"])(
            wanted.get("message", "expected this, received that")
        )
    if "bug" in wanted:
        raise ZeroDivisionError(wanted["bug"])
    if wanted.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


def run(
    name: str, seed: int, model: dict, inputs: dict[str, str], output: str, **sections: dict
) -> None:
    functions = {
        "prepare_data": prepare_data,
        "train_baseline": train_baseline,
        "evaluate": evaluate,
    }
    step_module.load_step = lambda step: define_step(step, functions[step])
    # The real digest covers the whole source tree, which someone may be editing while the tests
    # run.
    step_module.code_digest = lambda settings: "fixed"
    step_module.run_component(
        name, settings={"model": model, **sections}, seed=seed, inputs=inputs, output=output
    )
