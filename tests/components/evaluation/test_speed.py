"""The sentences on speed, against figures of real runs."""

from typing import Any

from qatline.components.artifacts.evaluation import ResultRow
from qatline.components.evaluation.speed import speed_sentences

VNNI = {"kind": "cpu", "architecture": "x86_64", "name": "a CPU", "flags": ["avx512_vnni"]}
NARROW = {**VNNI, "flags": ["avx2"]}


def row(latency: float | None, throughput: float | None, **others: Any) -> ResultRow:
    figures = {"bytes": 1000.0, "batch_size": 32, "int8_layers": 14, "weighted_layers": 14}
    return ResultRow(latency_ms_p50=latency, throughput=throughput, **(figures | others))


FP32 = row(0.309, 5533.0, bytes=4000.0, int8_layers=0)


def test_speed_sentences_give_only_the_ratios_of_a_fast_engine() -> None:
    (sentence,) = speed_sentences(row(0.180, 17525.0), {"FP32": FP32}, VNNI)
    assert sentence == (
        "INT8 against the FP32 engine: 1.72 times as fast at batch 1, 3.17 times at batch 32, "
        "0.25 times the size."
    )


def test_speed_sentences_name_the_fixed_cost_of_small_networks() -> None:
    small = row(0.110, 60_234.0)
    _, reason = speed_sentences(row(0.113, 150_000.0), {"FP32": small}, VNNI)
    assert "takes 0.110 ms alone and 0.017 ms in a batch" in reason


def test_speed_sentences_name_a_cpu_without_int8_instructions() -> None:
    _, reason = speed_sentences(row(0.25, 6000.0), {"FP32": FP32}, NARROW)
    assert reason == "a CPU has neither VNNI nor AMX, the instructions that make INT8 fast."


def test_speed_sentences_count_float_layers() -> None:
    _, reason = speed_sentences(row(0.25, 6000.0, int8_layers=10), {"FP32": FP32}, VNNI)
    assert reason == "4 of 14 weighted layers run in float."


def test_speed_sentences_admit_an_unknown_cause() -> None:
    _, reason = speed_sentences(row(0.25, 6000.0), {"FP32": FP32}, VNNI)
    assert "cause is not known" in reason
    assert "--layer-timing" in reason


def test_speed_sentences_blame_no_fixed_cost_for_slow_batches() -> None:
    small = row(0.110, 60_234.0)
    _, reason = speed_sentences(row(0.113, 61_000.0), {"FP32": small}, VNNI)
    assert "cause is not known" in reason


def test_speed_sentences_of_unmeasured_engines_are_none() -> None:
    assert speed_sentences(row(None, None), {"FP32": FP32}, VNNI) == ()


def test_speed_sentences_compare_no_different_batches() -> None:
    (sentence, *_) = speed_sentences(row(0.1, 9e9, batch_size=16), {"FP32": FP32}, VNNI)
    assert "batch 16" not in sentence
    assert "3.09 times as fast at batch 1" in sentence


def test_speed_sentences_compare_with_each_float_engine() -> None:
    half = row(0.150, 20_000.0, bytes=2000.0)
    int8 = row(0.180, 17_525.0)
    first, second = speed_sentences(int8, {"FP32": FP32, "BF16": half}, VNNI)
    assert first.startswith("INT8 against the FP32 engine: 1.72 times")
    assert second == (
        "INT8 against the BF16 engine: 0.83 times as fast at batch 1, 0.88 times at batch 32, "
        "0.50 times the size."
    )
    assert speed_sentences(int8, {"FP32": FP32, "FP16": row(None, None)}, VNNI) == (first,)
