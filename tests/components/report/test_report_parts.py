"""The report's computations: numbers, axes, histograms, layout, graph view."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from sample_run import VERDICT
from sample_run import graph as sample_graph

from qat_lib.onnx_view.identity import Identities
from qatline.components.artifacts import FineTuned
from qatline.components.artifacts.exported import Analysis, LayerPrediction
from qatline.components.artifacts.models import Epoch, QuantizerRange, RangeHistogram
from qatline.components.report import ReportFolders, numbers, render_report, svg
from qatline.components.report.axis import log_axis, nice_axis
from qatline.components.report.curves import kept_epoch, training_charts
from qatline.components.report.errors import class_rows
from qatline.components.report.graph import read_view, with_analysis
from qatline.components.report.graph_picture import draw_graph
from qatline.components.report.graph_view import GraphView
from qatline.components.report.histogram import clipped_share, rebin, weight_picture
from qatline.components.report.numbers import DASH
from qatline.components.report.ranges import _oscillation, range_rows
from qatline.components.report.sources import read_run
from qatline.components.report.speed import speed_table
from qatline.components.settings import GateSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.percent(0.97222), "97.22%"),
        (numbers.percent(math.nan), "–"),
        (numbers.percent(None), "–"),
        (numbers.points(0.0028), "+0.28 pp"),
        (numbers.points(-0.0056), "−0.56 pp"),
        (numbers.points(0.00001), "±0.00 pp"),
        (numbers.size(999), "999 B"),
        (numbers.size(999_600), "1 MB"),
        (numbers.size(186_123), "186 kB"),
        (numbers.size(102_500_000), "102 MB"),
        (numbers.size(3.2e12), "3.2e+03 GB"),
        (numbers.milliseconds(0.0402), "0.0402 ms"),
        (numbers.milliseconds(0.00402), "4.02 µs"),
        (numbers.milliseconds(21.84), "21.8 ms"),
        (numbers.rate(160_000), "160\u202f000 /s"),
        (numbers.significant(0.99999), "1.00"),
        (numbers.significant(-1234.5), "−1234"),
        (numbers.significant(0), "0"),
        (numbers.significant(1e-9), "1.00e−09"),
        (numbers.significant(True), "–"),
        (numbers.seconds(95), "1 min 35 s"),
        (numbers.seconds(4.23), "4.2 s"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


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


def test_svg_escapes_text_and_attributes() -> None:
    drawn = svg.element("text", "<b>", data_x='"><script>', width=1.5)
    assert drawn == Markup('<text data-x="&#34;&gt;&lt;script&gt;" width="1.5">&lt;b&gt;</text>')


@pytest.fixture
def view(tmp_path_factory: pytest.TempPathFactory) -> GraphView:
    path = tmp_path_factory.mktemp("graph") / "qat.onnx"
    path.write_bytes(sample_graph().SerializeToString())
    found = read_view(path)
    assert found is not None
    return found


def test_graph_view_holds_layers_pairs_and_weights(view: GraphView) -> None:
    nodes = {node.title: node for node in view.nodes if node.kind not in ("Input", "Output")}
    names = [
        "stem",
        "block1_conv1",
        "block1_conv2",
        "block1_project",
        "block1_add",
        "pool",
        "flatten",
        "head",
    ]
    assert list(nodes) == names
    assert nodes["block1_conv1"].kind == "Conv 3×3 /2 + ReLU"
    assert nodes["block1_conv1"].weights == 8
    assert nodes["stem"].output is not None
    assert nodes["stem"].output.amax == pytest.approx(2.5)
    assert nodes["block1_conv2"].output is None
    assert nodes["head"].precision == "float"
    assert nodes["flatten"].precision == ""
    assert {name for name, node in nodes.items() if node.precision == "int8"} == {
        "stem", "block1_conv1", "block1_conv2", "block1_project", "pool",
    }  # fmt: skip


def test_shared_pair_has_two_edges(view: GraphView) -> None:
    key = next(node.key for node in view.nodes if node.title == "stem")
    assert [edge.quantized for edge in view.edges if edge.source == key] == [True, True]
    drawn = draw_graph(view, {"quant_stem/Conv": "i8"})
    assert drawn.count('class="pill"') == 5
    assert "runs in i8 in the engine" in drawn


def test_unsigned_ranges_begin_at_zero(tmp_path: Path) -> None:
    proto = sample_graph()
    pair = next(
        node
        for node in proto.graph.node
        if node.op_type == "QuantizeLinear" and "stem" in node.input[0]
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), np.uint8), "unsigned"))
    for node in proto.graph.node:
        if node is pair or (node.op_type == "DequantizeLinear" and node.input[0] == pair.output[0]):
            node.input[2:] = ["unsigned"]
    (tmp_path / "qat.onnx").write_bytes(proto.SerializeToString())
    found = read_view(tmp_path / "qat.onnx")
    assert found is not None
    output = next(node.output for node in found.nodes if node.title == "stem")
    assert output is not None
    assert output.range() == "0…5.02"  # 255 steps where signed integers have 127 over ±2.5
    assert "Q/DQ 0…5.02" in draw_graph(found, {})


def test_layer_title_comes_from_the_file(tmp_path: Path) -> None:
    proto = sample_graph()
    known = {"quant_stem/Conv": "backbone/stem"}
    for key, text in Identities(layers=known).to_metadata().items():
        proto.metadata_props.add(key=f"qatline.{key}", value=text)
    (tmp_path / "qat.onnx").write_bytes(proto.SerializeToString())
    found = read_view(tmp_path / "qat.onnx")
    assert found is not None
    assert [node.names for node in found.nodes if node.title == "backbone/stem"] == [
        ("quant_stem/Conv", "quant_stem/Relu")
    ]


def test_the_table_of_ranges_says_which_are_unsigned(folders: ReportFolders) -> None:
    run = read_run(folders)
    ((name, first), *_) = run.qat_ranges.items()
    assert not [row for row in range_rows(run)[0] if "unsigned" in row.tensor]
    unsigned = first.model_copy(update={"unsigned": True})
    rows, _ = range_rows(replace(run, qat_ranges={name: unsigned}))
    assert [row.name for row in rows if row.tensor.endswith(", unsigned")] == [name]


def test_analysis_decides_the_precision(view: GraphView) -> None:
    add = LayerPrediction(
        name="quant_block1_add/Add", precision="int8", fused_into="quant_block1_conv2/Conv"
    )
    seen = with_analysis(view, Analysis(adds=[add]))
    node = next(node for node in seen.nodes if node.title == "block1_add")
    assert (node.precision, node.fused) == ("int8", "block1_conv2")


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
def test_weights_say_how_many_oscillate(shares: dict[str, float], expected: str) -> None:
    assert _oscillation(QuantizerRange(kind="weight", **shares)) == expected


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
