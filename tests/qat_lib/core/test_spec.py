"""QuantizationSpec: entries, lists, checks, round trips."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_lib import LayerConfig, QuantizationSpec
from qat_lib.core.spec import CALIBRATORS, RANGE_POLICIES
from qat_lib.errors import SpecError


def test_the_defaults_of_an_entry() -> None:
    (entry,) = QuantizationSpec().add("conv").layers
    assert (entry.name, entry.is_keras_class, entry.quantize_input, entry.quantize_weight) == (
        "conv",
        False,
        True,
        True,
    )
    assert entry.quantization_index is None


def test_arguments_keep_the_toolkit_order() -> None:
    (entry,) = QuantizationSpec().add("Add", True, True, False, [0, 1]).layers
    assert entry == LayerConfig(
        name="Add", is_keras_class=True, quantize_weight=False, quantization_index=(0, 1)
    )


def test_one_value_serves_all_names() -> None:
    spec = QuantizationSpec().add(["a", "b"], quantize_input=False, range_policy="frozen")
    assert [(e.name, e.quantize_input, e.range_policy) for e in spec.layers] == [
        ("a", False, "frozen"),
        ("b", False, "frozen"),
    ]


def test_lists_go_name_by_name() -> None:
    spec = QuantizationSpec().add(
        ["a", "Add", "c"],
        is_keras_class=[False, True, False],
        quantize_input=[True, True, False],
        quantize_weight=[False, False, True],
        quantization_index=[None, [1], 0],
        num_bits=[None, 4, 8],
    )
    assert [e.is_keras_class for e in spec.layers] == [False, True, False]
    assert [e.quantize_weight for e in spec.layers] == [False, False, True]
    assert [e.quantization_index for e in spec.layers] == [None, (1,), (0,)]
    assert [e.num_bits for e in spec.layers] == [None, 4, 8]


@pytest.mark.parametrize(
    "key",
    [
        "is_keras_class",
        "quantize_input",
        "quantize_weight",
        "quantization_index",
        "calibrator",
        "is_regex",
    ],
)
def test_a_list_of_another_length_is_refused(key: str) -> None:
    values: list[Any] = [None] * 3 if key in ("quantization_index", "calibrator") else [True] * 3
    with pytest.raises(SpecError, match=rf"{key} must be one value or a list of 2.*Received 3"):
        QuantizationSpec().add(["a", "b"], **{key: values})


def test_a_refused_list_adds_nothing() -> None:
    spec = QuantizationSpec()
    with pytest.raises(SpecError):
        spec.add(["a", "b"], num_bits=[8, 99])
    assert len(spec) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "needs the name"),
        ({"name": 3}, "needs the name"),
        ({"name": "a", "quantize_input": "yes"}, "quantize_input.*true or false"),
        ({"name": "a", "quantize_weight": 1}, "quantize_weight.*true or false"),
        ({"name": "a", "quantization_index": -1}, "counted from 0"),
        ({"name": "a", "quantization_index": [0, "1"]}, "counted from 0"),
        ({"name": "a", "quantization_index": True}, "counted from 0"),
        ({"name": "a", "num_bits": 1}, "from 2 to 16"),
        ({"name": "a", "num_bits": True}, "from 2 to 16"),
        ({"name": "a", "num_bits": 8.0}, "from 2 to 16"),
        ({"name": "a", "weight_num_bits": 17}, "weight_num_bits of 'a' must be an integer from 2"),
        ({"name": "a", "per_channel": "yes"}, "per_channel.*true or false"),
        ({"name": "a", "calibrator": "median"}, "must be one of max, percentile"),
        ({"name": "a", "range_policy": "current"}, "must be one of frozen"),
        ({"name": "a(", "is_regex": True}, "not a regular expression"),
        ({"name": "a", "is_regex": True, "is_keras_class": True}, "choose one"),
        ({"name": "a", "calibrator": ["max", "mse"]}, "2 values for the one layer"),
    ],
)
def test_a_wrong_value_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        QuantizationSpec().add(**arguments)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12
)
ENTRIES = st.builds(
    LayerConfig,
    name=NAMES,
    is_keras_class=st.booleans(),
    quantize_input=st.booleans(),
    quantize_weight=st.booleans(),
    quantization_index=st.none() | st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    num_bits=st.none() | st.integers(2, 16),
    weight_num_bits=st.none() | st.integers(2, 16),
    per_channel=st.none() | st.booleans(),
    calibrator=st.sampled_from([None, *CALIBRATORS]),
    range_policy=st.sampled_from([None, *RANGE_POLICIES]),
    reason=NAMES | st.just(""),
)


@settings(max_examples=100, deadline=None)
@given(entries=st.lists(ENTRIES, max_size=4))
def test_every_spec_round_trips(entries: list[LayerConfig]) -> None:
    spec = QuantizationSpec(entries)
    assert QuantizationSpec.from_list(spec.to_list()) == spec
    assert QuantizationSpec.from_list(json.loads(spec.to_json())) == spec
    assert QuantizationSpec.from_json(spec.to_json()) == spec
    assert QuantizationSpec.from_list(yaml.safe_load(spec.to_yaml())) == spec
    assert copy.deepcopy(spec) == spec


def test_files_round_trip(tmp_path: Path) -> None:
    spec = (
        QuantizationSpec()
        .add("Add", is_keras_class=True, quantization_index=[1])
        .add(r"b.*", is_regex=True)
    )
    spec.to_yaml(tmp_path / "spec.yaml")
    (tmp_path / "spec.json").write_text(spec.to_json())
    assert QuantizationSpec.from_yaml(tmp_path / "spec.yaml") == spec
    assert QuantizationSpec.from_yaml(tmp_path / "spec.json") == spec
    (tmp_path / "empty.yaml").write_text("")
    assert len(QuantizationSpec.from_yaml(tmp_path / "empty.yaml")) == 0


def test_defaults_are_not_written() -> None:
    assert QuantizationSpec().add("conv").to_list() == [{"name": "conv"}]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1",
        "just text",
        "[1, 2]",
        "- {nam: x}",
        "- {name: x, bits: 4}",
        "- [",
        "!!python/object:os.x {}",
    ],
)
def test_non_spec_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError):
        QuantizationSpec.from_yaml(tmp_path / "spec.yaml")


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, problem in (("missing.yaml", "there is none"), ("binary", "in UTF-8 at")):
        with pytest.raises(SpecError, match=problem):
            QuantizationSpec.from_yaml(tmp_path / name)


def test_a_spec_prints_itself() -> None:
    assert "conv" in str(QuantizationSpec().add("conv"))
    assert len(QuantizationSpec().add(["a", "b"])) == 2


def test_integers_of_numpy_are_integers() -> None:
    (entry,) = QuantizationSpec().add("a", quantization_index=[np.int64(2), np.int32(0)]).layers
    assert entry.quantization_index == (0, 2)
    assert json.loads(QuantizationSpec([entry]).to_json())[0]["quantization_index"] == [0, 2]


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(SpecError, match="no valid JSON"):
        QuantizationSpec.from_json("[")
    with pytest.raises(SpecError, match="list of entries"):
        QuantizationSpec.from_json("{}")


def test_yaml_text_round_trips() -> None:
    spec = QuantizationSpec().add("conv", quantize_input=False).add("Add", is_keras_class=True)
    assert QuantizationSpec.from_yaml(spec.to_yaml()) == spec
    assert QuantizationSpec.from_yaml(QuantizationSpec().to_yaml()) == QuantizationSpec()
    with pytest.raises(SpecError, match="The quantization spec, line"):
        QuantizationSpec.from_yaml("- [\n")


@pytest.mark.parametrize(("suffix", "begin"), [(".json", "["), (".yaml", "- ")])
def test_save_and_load(tmp_path: Path, suffix: str, begin: str) -> None:
    spec = QuantizationSpec().add("conv", quantization_index=[0, 2]).add("Add", True)
    path = tmp_path / f"spec{suffix}"
    spec.save(str(path))
    assert QuantizationSpec.load(str(path)) == spec
    assert path.read_text().startswith(begin)
