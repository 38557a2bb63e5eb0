"""A diagnosis as data, text and page."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import qat_lib
from qat_lib.core.plan import SkippedLayer
from qat_lib.errors import SpecError
from qat_lib.keras.diagnosis import (
    Diagnosis,
    LayerEffect,
    LayerFinding,
    TensorError,
    diagnosis_page,
)
from qat_lib.keras.diagnosis.report import PartEffect, as_text, short_name


def finding(layer: str, only: float, *, minor: bool = False) -> LayerFinding:
    return LayerFinding(
        cause="outlier channel",
        layer=layer,
        tensor=f"{layer}:0",
        quantizer=f"{layer}_quantizer",
        only=only,
        without=0.1,
        message="Channel 3 reaches 100 times the median channel's range.",
        change=(qat_lib.LayerConfig(name=f"after_{layer}", quantize_input=False),),
        channels=(3,),
        minor=minor,
    )


@pytest.fixture
def diagnosis() -> Diagnosis:
    weights = PartEffect(quantizers=("w",), only=0.01, without=0.5, sqnr_db=40.0)
    inputs = PartEffect(quantizers=("i",), only=0.25, without=0.125, sqnr_db=float("inf"))
    rows = (
        LayerEffect(layer="<b>&", weights=weights, inputs=inputs),
        *(LayerEffect(layer=f"layer_{n}", weights=weights) for n in range(20)),
    )
    tensor = TensorError(
        quantizer="i",
        kind="activation",
        tensor="a:0",
        layer="a",
        readers=("b",),
        sqnr_db=float("inf"),
        channel_sqnr_db=30.0,
        cosine=1.0,
        clipped=0.25,
        channel_spread=2.0,
    )
    return Diagnosis(
        model="net",
        measure="kl",
        samples=8,
        total=0.5,
        layers=rows,
        tensors=(tensor,),
        findings=(finding("a", 0.25), finding("c", 0.001, minor=True)),
        skipped=(SkippedLayer(layer="own", class_name="Own", reason="unsupported", detail="why"),),
    )


def test_to_dict_round_trips_as_json(diagnosis: Diagnosis) -> None:
    plain = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert plain["tensors"][0]["sqnr_db"] is None
    assert Diagnosis.from_dict(plain) == diagnosis


@pytest.mark.parametrize("key", ["model", "layers", "findings", "tensors"])
def test_from_dict_refuses_damaged_data(diagnosis: Diagnosis, key: str) -> None:
    plain = diagnosis.to_dict()
    del plain[key]
    with pytest.raises(SpecError, match="This is not a diagnosis"):
        Diagnosis.from_dict(plain)
    with pytest.raises(SpecError):
        Diagnosis.from_dict(
            {**diagnosis.to_dict(), key: None if key != "model" else {}} | {"samples": "x"}
        )


def test_spec_has_the_changes_that_matter_behind_the_base(diagnosis: Diagnosis) -> None:
    base = qat_lib.QuantizationSpec().add(["after_a", "other"])
    names = [entry.name for entry in diagnosis.spec(base).layers]
    assert names == ["other", "after_a"]
    assert diagnosis.spec().layers[0].quantize_input is False


def test_as_text_fits_80_columns(diagnosis: Diagnosis) -> None:
    text = str(diagnosis)
    assert max(map(len, text.splitlines())) <= 80
    assert "... and 9 layers with smaller effects" in text
    assert "1. a: outlier channel in a:0" in text
    assert "2. c" not in text
    assert "     - name: after_a\n       quantize_input: false" in text
    assert "exact" in text
    longer = as_text(diagnosis, every_layer=True)
    assert "2. c: outlier channel" in longer
    assert "layer_19" in longer


def test_as_text_says_that_no_layer_stands_out(diagnosis: Diagnosis) -> None:
    text = str(replace(diagnosis, findings=()))
    assert "No layer stands out: the largest effect, <b>&'s, is 50% of the whole" in text
    assert "costs nothing measurable" in str(replace(diagnosis, findings=(), total=0.0))


def test_short_name_keeps_both_ends() -> None:
    assert short_name("a" * 26) == "a" * 26
    assert short_name("start" + "x" * 60 + "end", 20) == "startxxxxx…xxxxxxend"


def test_page_has_a_bar_for_each_part_and_escapes(diagnosis: Diagnosis) -> None:
    page = diagnosis_page(diagnosis)
    assert page.count('class="meter int8"') == 21
    assert page.count('class="meter float"') == 1
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert re.findall(r'class="fill" width="([\d.]+)"', page)[:2] == ["4.0", "100.0"]
    assert "quantize_input: false" in page
    assert "https:" not in page


def test_page_without_findings_says_so(diagnosis: Diagnosis) -> None:
    assert "No layer stands out" in diagnosis_page(replace(diagnosis, findings=()))


def test_repr_is_a_line(diagnosis: Diagnosis) -> None:
    assert repr(diagnosis) == "<Diagnosis of 'net': kl 0.5, 21 layers, 2 findings>"
