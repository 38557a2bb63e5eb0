"""Pictures of runs: dots by cost, lines by epoch."""

import pytest
from compared_runs import make_run, three_runs

from qatline.components.artifacts import ResultRow
from qatline.components.artifacts.metric import Metric
from qatline.pipelines.comparison.charts import (
    color_of,
    cost_pictures,
    curve_pictures,
    curve_title,
    pareto_front,
)
from qatline.pipelines.comparison.tracked_runs import TrackedRun


def test_cost_pictures_have_a_dot_for_each_engine() -> None:
    latency, size = cost_pictures(three_runs())
    assert (latency.title, size.title) == ("Accuracy against latency", "Accuracy against size")
    for picture in (latency, size):
        assert picture.drawing.count('class="dot c0"') == 2
        assert picture.drawing.count('class="dot c2"') == 2
    assert "low, QAT INT8 engine: 80.00%, 1.00</title>" in latency.drawing


def test_cost_pictures_put_faster_to_the_left() -> None:
    drawing = str(cost_pictures([make_run("a", 0.5, 2.0), make_run("b", 0.5, 3.0)])[0].drawing)
    first, second = (part.split('cx="')[1].split('"')[0] for part in _circles(drawing))
    assert float(first) < float(second)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(1.0, 0.5)], [0]),
        ([(1.0, 0.8), (2.0, 0.9), (3.0, 0.85)], [0, 1]),
        ([(1.0, 0.8), (1.0, 0.8), (1.0, 0.7), (2.0, 0.8)], [0, 1]),
        ([(2.0, 0.9), (1.0, 0.95)], [1]),
    ],
)
def test_pareto_front_leaves_out_dominated_points(
    points: list[tuple[float, float]], front: list[int]
) -> None:
    assert pareto_front(points) == front


def test_cost_pictures_mark_the_pareto_front() -> None:
    runs = [make_run("a", 0.8, 1.0), make_run("b", 0.9, 2.0), make_run("c", 0.85, 3.0)]
    drawing = str(cost_pictures(runs)[0].drawing)
    assert drawing.count('class="best"') == 2
    (line,) = drawing.split("<polyline")[1:]
    assert line.split('points="')[1].split('"')[0].count(",") == 2
    numbers = [part.split(">")[1].split("<")[0] for part in drawing.split('class="number"')[1:]]
    assert sorted(numbers) == ["1", "2", "3"]


def test_pareto_front_of_errors_is_at_the_bottom() -> None:
    error = Metric(name="mae", higher_is_better=False)
    runs = []
    for name, value, latency in (("a", 2.0, 1.0), ("b", 1.0, 2.0), ("c", 3.0, 3.0)):
        row = ResultRow(quality={"mae": value}, metric=error, latency_ms_p50=latency)
        runs.append(TrackedRun(name=name, mlflow_id=name, rows={"qat_engine": row}))
    (picture,) = cost_pictures(runs)
    best = str(picture.drawing).split('class="best"')
    assert len(best) == 3
    assert "c, QAT" not in best[1] + best[2].split("</g>")[0]


def test_single_run_has_no_front_line() -> None:
    assert "<polyline" not in str(cost_pictures([make_run("a", 0.5, 2.0)])[0].drawing)


def test_numbers_without_room_are_left_out() -> None:
    twins = [make_run(str(name), 0.5, 2.0) for name in range(9)]
    assert 1 <= str(cost_pictures(twins)[0].drawing).count('class="number"') <= 4


def test_runs_without_engines_have_no_cost_picture() -> None:
    runs = [run for run in three_runs() if run.name == "none"]
    assert cost_pictures(runs) == []
    assert curve_pictures(runs) == []


def test_curve_pictures_lay_runs_over_each_other() -> None:
    (picture,) = curve_pictures(three_runs())
    assert picture.title == "QAT: validation loss"
    for index in range(3):
        assert picture.drawing.count(f'class="run {color_of(index)}"') == 1
    assert "&lt;high&gt;, epoch 3" in picture.drawing
    assert "<high>" not in picture.drawing


def test_equal_runs_are_seen_behind_each_other() -> None:
    twins = [make_run(name, 0.5, 2.0, curves={"a/loss": [(1, 0.5), (2, 0.25)]}) for name in "xy"]
    (lines,) = curve_pictures(twins)
    widths = [part.split('"')[0] for part in str(lines.drawing).split('stroke-width="')[1:]]
    assert widths == ["4.5", "2"]
    radii = [part.split('"')[0] for part in str(cost_pictures(twins)[0].drawing).split(' r="')[1:]]
    assert radii == ["8.8", "5.5"]


def test_curve_title_names_stage_and_figure() -> None:
    assert curve_title("train_baseline/loss") == "FP32 baseline: loss"
    assert curve_title("other/val_x") == "other: validation x"


def _circles(drawing: str) -> list[str]:
    return [part for part in drawing.split("<circle")[1:] if "dot" in part.split("</circle>")[0]]
