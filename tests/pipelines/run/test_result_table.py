import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qatline.pipelines.run.result import RunResult
from qatline.pipelines.run.result_table import show_result, ui_command

ROW = {"int8_layers": 14, "weighted_layers": 14, "batch_size": 32}
RESULT: dict[str, Any] = {
    "run_id": "20260101-000000-abcd",
    "run_dir": "/somewhere/with/a/long/path/that/goes/on/and/on/runs/20260101-000000-abcd",
    "steps": [{"name": "a", "status": "executed"}, {"name": "b", "status": "reused"}],
    "results": {
        "fp32": {"accuracy": 0.986, "bytes": 2_248_158, "int8_layers": 0, "weighted_layers": 14, "batch_size": 32},
        "fp32_engine": {**ROW, "int8_layers": 0, "accuracy": 0.986, "bytes": 735_739, "latency_ms_p50": 0.0771,
                        "latency_ms_p99": 4.888, "throughput": 11548.3},
        "ptq_engine": {**ROW, "accuracy": 0.976, "bytes": 336_803, "latency_ms_p50": 12.3, "latency_ms_p99": 106.1,
                       "throughput": 15678.5},
        "qat_engine": {**ROW, "accuracy": 0.9916, "bytes": 12_337_140, "latency_ms_p50": 0.0818,
                       "latency_ms_p99": 8.934, "throughput": 1_218_350.7},
    },
    "gate": {
        "verdict": "reject",
        "reasons": [
            {"check": "a", "passed": True, "message": "14 of 14 weighted layers run in INT8."},
            {"check": "speedup", "passed": False, "message": "A reason that is long enough " * 5},
        ],
    },
    "report": "/somewhere/with/a/long/path/that/goes/on/and/on/runs/20260101-000000-abcd/report.html",
    "tracking": {"run_id": "x"},
}  # fmt: skip


def shown(result: dict[str, Any], width: int = 80) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    show_result(console, RunResult.model_validate(result), seconds=83.2)
    return stream.getvalue().splitlines()


def test_table_reads_well_at_80_columns() -> None:
    lines = shown(RESULT)
    places = ("Run ", "Report ", "MLflow ", "       Try ")  # to be copied, never wrapped
    assert all(len(line) <= 80 for line in lines if not line.startswith(places))
    assert not any(
        line.endswith("  ")
        for line in lines
        if "│" not in line and "─" not in line and "accuracy" in line
    )
    header, _, *rows = lines[1:7]
    assert header.split() == [
        "accuracy",
        "change",
        "size",
        "p50",
        "/",
        "p99",
        "ms",
        "per",
        "s",
        "@32",
        "INT8",
    ]
    assert [" ".join(row.split()) for row in rows] == [
        "FP32 Keras 98.60% - 2.25 MB - - 0/14",
        "FP32 engine 98.60% +0.00 736 kB 0.0771 / 4.89 11,548 0/14",
        "PTQ INT8 engine 97.60% -1.00 337 kB 12.3 / 106 15,678 14/14",
        "QAT INT8 engine 99.16% +0.56 12.3 MB 0.0818 / 8.93 1,218,351 14/14",
    ]


def test_verdict_reasons_and_places_follow() -> None:
    lines = shown(RESULT)
    assert "Gate: reject" in lines
    assert "  pass 14 of 14 weighted layers run in INT8." in lines
    assert any(line.startswith("  FAIL A reason that is long") for line in lines)
    first = next(index for index, line in enumerate(lines) if line == "Gate: reject") + 1
    assert lines[first].startswith("  FAIL")
    command = f"qatline bench-engine {RESULT['run_dir']}/artifacts/engines/qat.engine --layers"
    assert lines.index(f"       Try {command}") < lines.index(
        "  pass 14 of 14 weighted layers run in INT8."
    )
    # One line, however long: it is there to be copied.
    assert f"Report   {RESULT['report']}" in lines
    assert lines[-1] == "Done in 1 min 23 s: 2 steps, 1 reused."


def test_a_run_without_results_shows_its_places() -> None:
    lines = shown(
        {
            **RESULT,
            "results": {},
            "gate": {"verdict": None, "reasons": []},
            "report": None,
            "tracking": None,
        }
    )
    assert not any("Gate" in line or "Report" in line or "MLflow" in line for line in lines)


def test_ui_command_fits_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV", raising=False)
    assert ui_command(tmp_path / "runs" / "x") == "qatline ui runs/x"
    monkeypatch.setenv("UV", "/usr/bin/uv")
    assert ui_command(tmp_path / "runs" / "x") == "uv run qatline ui runs/x"


def test_show_result_wraps_the_sentences_on_speed() -> None:
    sentences = ["INT8 against the FP32 engine: 1.03 times as fast at batch 1.", "Because " * 20]
    lines = shown({**RESULT, "speed": sentences})
    start = lines.index(sentences[0])
    assert lines[start - 1] == ""
    assert " ".join(lines[start + 1 : start + 4]).split() == ["Because"] * 20
    assert max(map(len, lines[start : start + 4])) <= 80
