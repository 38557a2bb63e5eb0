"""The report's computations: numbers, axes, histograms, layout, graph view."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_run import VERDICT

from qat_lib.pages.numbers import DASH
from qatline.components.artifacts import FineTuned
from qatline.components.artifacts.models import Epoch, QuantizerRange, RangeHistogram
from qatline.components.report import ReportFolders, render_report
from qatline.components.report.curves import kept_epoch, training_charts
from qatline.components.report.errors import class_rows, picture_legend, task_curves
from qatline.components.report.histogram import clipped_share, rebin, weight_picture
from qatline.components.report.plot import log_axis, nice_axis
from qatline.components.report.ranges import range_rows
from qatline.components.report.sources import read_run
from qatline.components.report.speed import speed_table
from qatline.components.settings import GateSettings


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_axis_encloses_its_values(values: list[float]) -> None:
    axis = nice_axis(values, start=300, end=0)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low <= min(values) + slack
    assert axis.high >= max(values) - slack
    assert 2 <= len(axis.ticks) <= 12
    assert (
        len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)
        or axis.high - axis.low < 1e-5
    )
    assert all(-1 <= axis.at(value) <= 301 for value in values)


def test_axis_of_quarters_shows_both_digits() -> None:
    axis = nice_axis([0.1, 0.97], start=0, end=1)
    assert [axis.label(tick) for tick in axis.ticks] == ["0.00", "0.25", "0.50", "0.75", "1.00"]


def test_charts_leave_out_what_is_not_there() -> None:
    assert training_charts([], []) == []
    (only,) = training_charts([Epoch(loss=1.0), Epoch(loss=None), Epoch(loss=0.5)], [])
    assert only.title == "Loss"
    assert only.series[0].points == ((1.0, 1.0), (3.0, 0.5))
    charts = training_charts([Epoch(accuracy=0.5)] * 3, [Epoch(accuracy=0.6)])
    assert charts[0].series[1].points == ((4.0, 0.6),)


HISTOGRAM = RangeHistogram(counts=[70, 20, 10], edges=[0.0, 1.0, 2.0, 4.0])


def test_rebin_keeps_the_mass_below_the_end() -> None:
    assert sum(rebin(HISTOGRAM, 4.0)) == pytest.approx(100)
    assert sum(rebin(HISTOGRAM, 3.0)) == pytest.approx(95)
    assert rebin(HISTOGRAM, 4.0, bins=4) == pytest.approx([70, 20, 5, 5])
    assert sum(rebin(RangeHistogram(counts=[1], edges=[1]), 4.0)) == 0


def test_clipped_share_counts_what_lies_beyond() -> None:
    assert clipped_share(HISTOGRAM, 4.0) == 0
    assert clipped_share(HISTOGRAM, 3.0) == pytest.approx(0.05)
    assert clipped_share(HISTOGRAM, 0.0) == pytest.approx(1.0)
    assert clipped_share(RangeHistogram(counts=[], edges=[]), 1.0) is None
    signed = RangeHistogram(counts=[1, 8, 1], edges=[-2.0, -1.0, 1.0, 2.0])
    assert clipped_share(signed, 1.0) == pytest.approx(0.2)


def test_weight_picture_thins_wide_layers() -> None:
    wide = weight_picture([0.5] * 2048, [0.6] * 2048)
    assert wide.count("<rect") <= 110
    assert "2048 channels" in wide
    assert weight_picture([], []) == ""


def test_the_table_of_ranges_says_which_are_unsigned(folders: ReportFolders) -> None:
    run = read_run(folders)
    ((name, first), *_) = run.qat_ranges.items()
    assert not [row for row in range_rows(run)[0] if "unsigned" in row.tensor]
    unsigned = first.model_copy(update={"unsigned": True})
    rows, _ = range_rows(replace(run, qat_ranges={name: unsigned}))
    assert [row.name for row in rows if row.tensor.endswith(", unsigned")] == [name]


def epochs(*, kept: int | None) -> list[Epoch]:
    return [
        Epoch(epoch=float(index), val_loss=0.1, val_accuracy=0.9, kept=float(index == kept))
        for index in range(3)
    ]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, DASH),
        ({"oscillating": 0.0, "held": 0.0}, "0.00%"),
        ({"oscillating": 0.125, "held": 0.0}, "12.50%"),
        ({"oscillating": 0.125, "held": 0.5}, "12.50%, 50.00% frozen"),
    ],
)
def test_weights_say_how_many_oscillate(
    folders: ReportFolders, shares: dict[str, float], expected: str
) -> None:
    trained = {"kernel_quantizer": QuantizerRange(kind="weight", **shares)}
    _, rows = range_rows(replace(read_run(folders), qat_ranges=trained))
    assert {row.name: row.oscillating for row in rows}["kernel_quantizer"] == expected


def test_the_report_shows_the_test_that_decided() -> None:
    first = Epoch(epoch=0, kept=0)
    better = Epoch(epoch=1, kept=1, gain=0.0123, gain_bound=0.0051)
    assert kept_epoch([first, better]).endswith(
        "In epoch 1 the mean loss fell by 0.0123; noise explains a fall of up to 0.00510 "
        "(one-sided paired test at 5 %)."
    )
    kept = Epoch(epoch=0, kept=1)
    tried = [Epoch(epoch=1, gain=-0.5, gain_bound=0.1), Epoch(epoch=2, gain=-0.25, gain_bound=0.1)]
    assert "In epoch 2 the mean loss rose by 0.250" in kept_epoch([kept, *tried])
    assert kept_epoch([kept]).endswith("is the calibrated one.")


def test_the_report_says_which_epoch_is_kept(folders: ReportFolders) -> None:
    assert kept_epoch(epochs(kept=None)) == kept_epoch([]) == ""
    second = epochs(kept=2)
    assert "has the weights of epoch 2 of the fine-tuning" in kept_epoch(second)
    FineTuned(folders.qat).write_history(second)
    page = render_report(folders, verdict=VERDICT, gate=GateSettings(), seed=0)
    assert kept_epoch(second) in page
    assert "the QAT model is the calibrated one" in kept_epoch(epochs(kept=0))


def test_class_rows_keep_unmeasured_classes(folders: ReportFolders) -> None:
    evaluation = json.loads((folders.evaluation / "evaluation.json").read_text())
    evaluation["groups"][0] |= {"samples": 0, "values": {"fp32": None, "qat_engine": None}}
    evaluation["groups"][5] |= {"samples": 3, "values": {"fp32": 1.0, "qat_engine": 0.0}}
    (folders.evaluation / "evaluation.json").write_text(json.dumps(evaluation))
    run = read_run(folders)
    rows = {row.name: row for row in class_rows(run)}
    assert (rows[run.classes[0]].count, rows[run.classes[0]].after) == ("0", DASH)
    assert next(iter(rows)) == run.classes[5]  # the greatest loss comes first


def curve(*points: tuple[float, float]) -> dict[str, object]:
    return {"name": "cat", "across": "recall", "up": "precision", "points": points}


def test_curves_of_fp32_and_engine_share_a_plot(folders: ReportFolders) -> None:
    evaluation = json.loads((folders.evaluation / "evaluation.json").read_text())
    legend = {"panels": ["target", "INT8"], "colors": {"cat": "#00ff00", "dog": "red;x:y"}}
    evaluation["details"] = {
        "fp32": {"curves": [curve((0, 1), (1, 0.5))]},
        "qat_engine": {"curves": [curve((0, 1), (1, 0.4))], **legend},
    }
    (folders.evaluation / "evaluation.json").write_text(json.dumps(evaluation))
    run = read_run(folders)
    ((name, picture),) = task_curves(run)
    assert name == "cat"
    assert [f"series {each} validation" in picture for each in ("baseline", "qat")] == [True, True]
    assert "QAT INT8: 0.400 at 1.00" in picture
    assert picture_legend(run) == (["target", "INT8"], {"cat": "#00ff00"})
    page = render_report(folders, verdict=VERDICT, gate=GateSettings(), seed=0)
    assert "From left to right: target, INT8." in page
    assert 'class="samples wide"' in page
    assert "red;x:y" not in page


def test_loss_over_orders_of_magnitude_is_drawn_logarithmically() -> None:
    (chart,) = training_charts([Epoch(loss=2.0), Epoch(loss=0.3), Epoch(loss=0.004)], [])
    assert "loss, logarithmic" in chart.picture
    (chart,) = training_charts([Epoch(loss=2.0), Epoch(loss=0.3)], [])
    assert "logarithmic" not in chart.picture


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=10))
def test_log_axis_encloses_its_values(values: list[float]) -> None:
    axis = log_axis(values, start=300, end=0)
    assert axis.low <= min(values) * (1 + 1e-6)
    assert axis.high >= max(values) * (1 - 1e-6)
    assert len(axis.ticks) <= 8
    assert all(-1 <= axis.at(value) <= 301 for value in values)


def test_speed_table_has_one_row_per_engine(folders: ReportFolders) -> None:
    file = folders.evaluation / "evaluation.json"
    content = json.loads(file.read_text())
    content["results"]["qat_engine"] |= {"memory_mib": 98.5, "device_memory_mib": 2.0}
    del content["latency"]["ptq_engine"][1]
    file.write_text(json.dumps(content))
    run = read_run(folders)
    table = speed_table(run)
    assert table is not None
    assert table.batches == (1, 32)
    assert [row.title for row in table.rows] == [
        "FP32 engine",
        "PTQ INT8 engine",
        "QAT INT8 engine",
    ]
    assert table.rows[2].cells == (("0.0400 ms", "25\u202f000 /s"), ("0.800 ms", "40\u202f000 /s"))
    assert table.rows[2].memory == "103 MB + 2.1 MB on the device"
    assert table.rows[1].cells[1] == ("–", "–")
    assert table.rows[0].memory == "–"
    file.write_text("{}")
    assert speed_table(read_run(folders)) is None
