"""Pictures of runs: dots by cost, lines by epoch."""

from compared_runs import make_run, three_runs

from qatline.pipelines.comparison.charts import color_of, cost_pictures, curve_pictures, curve_title


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
