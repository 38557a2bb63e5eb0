import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import LineView, LiveView, SilentView, make_view

EVENTS: list[dict[str, Any]] = [
    {"event": "pipeline_started", "step": "", "time": 0.0, "steps": ["prepare_data", "train_baseline"]},
    {"event": "step_started", "step": "prepare_data", "time": 1.0},
    {"event": "step_finished", "step": "prepare_data", "time": 2.0, "status": "reused", "seconds": 0.1},
    {"event": "step_started", "step": "train_baseline", "time": 2.0},
    {"event": "progress", "step": "train_baseline", "time": 10.0, "phase": "training", "current": 1, "total": 5,
     "metrics": {"loss": 1.5, "accuracy": 0.5}},
    {"event": "progress", "step": "train_baseline", "time": 16.0, "phase": "training", "current": 3, "total": 5,
     "metrics": {"loss": 0.25, "accuracy": None}},
    {"event": "warning", "step": "train_baseline", "time": 17.0, "message": "one image left out"},
    {"event": "unheard_of", "step": "train_baseline", "time": 17.0},
]  # fmt: skip
END = {
    "event": "step_finished",
    "step": "train_baseline",
    "time": 22.0,
    "status": "executed",
    "seconds": 20.0,
}


def fold(events: list[dict[str, Any]]) -> RunProgress:
    progress = RunProgress.of(["other"])
    for event in events:
        progress.apply(event)
    return progress


def test_progress_knows_place_pace_and_rest() -> None:
    progress = fold(EVENTS)
    assert progress.position("train_baseline") == (2, 2)
    step = progress.running
    assert step is not None
    assert step.name == "train_baseline"
    assert step.fraction == 0.6
    assert step.seconds_left == 6.0  # two epochs took 6 s, two are left
    assert step.metrics["loss"] == 0.25
    assert progress.warnings == ["train_baseline: one image left out"]


def test_no_estimate_before_there_is_a_pace() -> None:
    step = fold(EVENTS[:5]).running
    assert step is not None
    assert step.seconds_left is None


def test_a_new_phase_starts_afresh() -> None:
    event = {
        "event": "progress",
        "step": "train_baseline",
        "time": 20.0,
        "phase": "evaluation",
        "current": 1,
        "total": 2,
    }
    step = fold([*EVENTS, event]).running
    assert step is not None
    assert (step.phase, step.metrics, step.seconds_left) == ("evaluation", {}, None)


def test_run_left_follows_the_pace_of_the_steps() -> None:
    typical = {"prepare_data": 10.0, "train_baseline": 40.0}
    progress = RunProgress.of(list(typical), typical)
    assert progress.seconds_left() == 50
    started = {"event": "step_started", "step": "prepare_data", "time": 100.0}
    progress.apply(started)
    assert progress.seconds_left(104.0) == 46
    # Twice as slow as usual, with 20 s at the usual pace assumed before: 40 s become 40 * 40 / 30.
    progress.apply({**started, "event": "step_finished", "time": 120.0, "seconds": 20.0})
    assert progress.seconds_left() == pytest.approx(40 * 40 / 30)
    training = {"step": "train_baseline", "phase": "training", "total": 5}
    progress.apply({**started, "step": "train_baseline", "time": 120.0})
    for current, at in ((1, 130.0), (2, 136.0)):
        progress.apply({**training, "event": "progress", "current": current, "time": at})
    assert progress.seconds_left() == 18  # three epochs of 6 s


def test_run_left_is_unknown_without_typical_seconds() -> None:
    assert fold(EVENTS).seconds_left() is None
    assert RunProgress.of(["a", "b"], {"a": 1.0}).seconds_left() is None


def test_line_view_shows_what_is_left_in_80_columns() -> None:
    stream = io.StringIO()
    typical = {"prepare_data": 600.0, "train_baseline": 6000.0}
    view, progress = LineView(Console(file=stream, width=80)), RunProgress.of([], typical)
    for event in EVENTS[:2]:
        progress.apply(event)
        view.show(event, progress)
    line = stream.getvalue().rstrip()
    assert line == "step 1/2 prepare_data   ...  about 110:00 left in all"


def test_an_error_ends_its_step() -> None:
    error = {
        "event": "error",
        "step": "train_baseline",
        "time": 18.0,
        "message": "no",
        "exit_code": 1,
    }
    progress = fold([*EVENTS, error])
    assert progress.running is None
    assert progress.steps["train_baseline"].status == "failed"
    assert progress.errors[0]["message"] == "no"


def test_line_view_prints_one_line_an_event() -> None:
    stream = io.StringIO()
    view, progress = LineView(Console(file=stream, width=80)), RunProgress.of([])
    for event in [*EVENTS, END]:
        progress.apply(event)
        view.show(event, progress)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines == [
        "step 1/2 prepare_data   ...",
        "step 1/2 prepare_data   reused (0.1 s)",
        "step 2/2 train_baseline ...",
        "step 2/2 train_baseline training 1/5  loss 1.5000  accuracy 50.00%",
        "step 2/2 train_baseline training 3/5  loss 0.2500  0:06 left",
        "warning: train_baseline: one image left out",
        "step 2/2 train_baseline done in 20.0 s",
    ]


def test_line_view_thins_out_frequent_updates() -> None:
    stream = io.StringIO()
    view, progress = LineView(Console(file=stream, width=80)), RunProgress.of([])
    for tick in range(101):
        event = {
            "event": "progress",
            "step": "a",
            "time": tick * 0.1,
            "phase": "p",
            "current": tick,
            "total": 100,
        }
        progress.apply(event)
        view.show(event, progress)
    lines = [line.split(" p ")[1].split()[0] for line in stream.getvalue().splitlines()]
    assert lines == ["0/100", "50/100", "100/100"]


def test_live_view_shows_bar_metrics_and_rest() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    view, progress = LiveView(console), RunProgress.of([])
    with view:
        for event in EVENTS:
            progress.apply(event)
            view.show(event, progress)
    console.print(view._render())
    text = stream.getvalue()
    assert "step 1/2 prepare_data   reused (0.1 s)" in text
    assert "training" in text
    assert "loss 0.2500" in text
    assert "0:06 left" in text
    assert "━" in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    assert re.search(r"training ━+╸?━* +loss 0.2500 +0:06 left", text)


def test_views_show_for_whom_a_step_waits() -> None:
    waiting = {
        "event": "waiting",
        "step": "train_baseline",
        "time": 3.0,
        "holder": "run 2026-a (process 7 on host)",
    }
    lines, live = io.StringIO(), io.StringIO()
    console = Console(file=live, width=80, force_terminal=True, color_system=None)
    line_view, live_view, progress = (
        LineView(Console(file=lines, width=200)),
        LiveView(console),
        RunProgress.of([]),
    )
    for event in (*EVENTS[:4], waiting):
        progress.apply(event)
        line_view.show(event, progress)
        live_view.show(event, progress)
    console.print(live_view._render())
    text = "waiting for run 2026-a (process 7 on host), which computes the same"
    assert f"step 2/2 train_baseline {text}" in lines.getvalue()
    assert text in live.getvalue()
    over = {**waiting, "holder": ""}
    progress.apply(over)
    line_view.show(over, progress)
    live_view.show(over, progress)
    console.print(live_view._render())
    assert lines.getvalue().count("waiting") == live.getvalue().count("waiting") == 1


def test_live_view_keeps_training_in_one_row() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    view, progress = LiveView(console), RunProgress.of([])
    metrics = {"loss": 12.3456, "accuracy": 1.0}
    event = {
        "event": "progress",
        "step": "a",
        "phase": "training",
        "total": 1020,
        "metrics": metrics,
    }
    for place in (1, 500):
        progress.apply({**event, "time": float(place), "current": place})
        view.show(event, progress)
    console.print(view._render())
    assert re.search(
        r"training ━+╸?━* +loss 12.3456  accuracy 100.00% 8:40 left", stream.getvalue()
    )


def test_view_suits_the_stream() -> None:
    assert isinstance(make_view(io.StringIO()), LineView)
    assert type(make_view(io.StringIO(), quiet=True)) is SilentView


def test_tail_reads_whole_lines_and_skips_broken_ones(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail.from_end(path)
    assert list(tail.read()) == []
    path.write_bytes(b'{"event": "a"}\n{"event":')
    assert list(tail.read()) == [{"event": "a"}]
    with path.open("ab") as stream:
        stream.write(b' "b"}\nbroken\n[1]\n' + json.dumps({"event": "c"}).encode() + b"\n")
    assert list(tail.read()) == [{"event": "b"}, {"event": "c"}]
    assert list(EventTail.from_end(path).read()) == []
