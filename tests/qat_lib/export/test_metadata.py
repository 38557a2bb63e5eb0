"""What an exported file says about itself, read back from damaged files, too."""

import json

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export.metadata import Recorded, RecordedWeight, read_names


def record() -> Recorded:
    weight = RecordedWeight(
        quantizer="k", scale=np.float32([0.5, 2.0]), factor=np.float32([1.0, -1.0]), digest="0" * 64, axis=1
    )
    return Recorded(
        activations={"x": 0.25},
        weights={"k/DequantizeLinear": weight},
        disabled=("off",),
        half=True,
        readers={"x/DequantizeLinear": ("conv:0", "y:")},
        unsigned=("x/DequantizeLinear",),
    )


def test_recorded_round_trips() -> None:
    again = Recorded.from_json(record().to_json())
    assert again.to_json() == record().to_json()
    assert (again.disabled, again.half, again.unsigned) == (("off",), True, ("x/DequantizeLinear",))
    assert again.readers == {"x/DequantizeLinear": ("conv:0", "y:")}
    np.testing.assert_array_equal(again.weights["k/DequantizeLinear"].scale, [0.5, 2.0])


@pytest.mark.parametrize("key", ["readers", "unsigned", "disabled", "half"])
def test_recorded_reads_an_older_record(key: str) -> None:
    """Without the key, which says less; not wrong."""
    data = {k: v for k, v in json.loads(record().to_json()).items() if k != key}
    assert getattr(Recorded.from_json(json.dumps(data)), key) == getattr(Recorded(), key)


def test_recorded_keeps_names_only() -> None:
    data = {**json.loads(record().to_json()), "disabled": [["a"]], "readers": {"n": [3, None]}}
    assert Recorded.from_json(json.dumps(data)).disabled == ("['a']",)
    assert Recorded.from_json(json.dumps(data)).readers == {"n": ("3", "None")}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "[" * 50_000, '{"activations": 3}', '{"activations": {"x": "y"}, "weights": {}}']
)
def test_recorded_refuses_what_is_no_record(text: str) -> None:
    with pytest.raises(ExportError, match=r"qatline\.quantizers"):
        Recorded.from_json(text)


def test_read_names_takes_a_missing_entry_as_empty() -> None:
    assert read_names({"layout": '{"x": "NCHW"}'}, "layout") == {"x": "NCHW"}
    assert read_names({}, "layout") == {}


@pytest.mark.parametrize("text", ["", "3", "[]", '{"x": 3}', "[" * 50_000])
def test_read_names_refuses_another_form(text: str) -> None:
    with pytest.raises(ExportError, match=r"qatline\.layout"):
        read_names({"layout": text}, "layout")
