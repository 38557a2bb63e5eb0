"""The table of roles: names exist, rows are unique, no duplicates.

Each name stands in one line, and no module keeps a list of its own.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from pathlib import Path
from typing import get_args

import keras
import onnx
import pytest
import tensorflow as tf
from keras.src.activations import activations
from keras.src.ops import core, nn, numpy

import qat_lib
from qat_lib.graph import roles
from qat_lib.graph.roles import TABLE, Role
from qat_lib.keras.graph.layer_traits import WEIGHTED

COLUMNS = ("onnx", "layers", "operators", "functions", "others", "tensorflow", "modules", "torch")
OF_LIBRARIES = {"stochastic_depth", "drop_path"}  # torchvision's and timm's
OF_RUNTIMES = {"QGemm", "QAttention"}  # ONNX Runtime's own domain
ROOT = Path(qat_lib.__file__).parent.parent

# Collections of three names or more beside the table, each with its reason.
ALLOWED = {
    # What a function, a label or a position is for an operator: not what the operator is.
    ("qat_lib/export/passes/fold_constants.py", "Identity"): "a function for each operator",
    ("qat_lib/export/passes/layout_rules.py", "Pad"): "a rule for each operator",
    ("qat_lib/export/passes/names.py", "QuantizeLinear"): "names of the inputs",
    ("qat_lib/onnx_view/shape_vectors.py", "Range"): "positions of the sizes",
    ("qat_lib/engines/onnxruntime_layers.py", "QLinearConv"): "positions of the weights",
    ("qat_lib/utils/onnx_files.py", "If"): "TensorFlow operators to convert",
    ("qat_lib/engines/pair_sums.py", "Conv"): "a layout of weights for each operator",
    ("qat_lib/engines/pair_sums.py", "MaxPool"): "what OpenVINO carries integers through",
    ("qat_lib/engines/pair_sums.py", "Slice"): "what OpenVINO carries integers through",
    ("qat_lib/planner/entries.py", "Flatten"): "what mixes channels with positions",
    ("qat_lib/keras/graph/keras_traits.py", "Conv1D"): "what has an axis of input channels",
    ("qat_lib/torch/quant_modules.py", "Conv1d"): "what pytorch-quantization replaces",
    # What one place meets, of what a role holds.
    ("qat_lib/analysis/rules/attention.py", "Reshape"): "as attention is exported",
    ("qat_lib/analysis/rules/borders.py", "Concat"): "merges whose operands have one type",
    ("qat_lib/export/passes/half.py", "Clip"): "bounds and masks that stand for infinity",
    ("qat_lib/export/passes/strides.py", "Sigmoid"): "measured with strides above them",
    ("qat_lib/export/passes/strides.py", "Add"): "measured with strides above them",
    ("qat_lib/export/passes/singleton_reshapes.py", "Sigmoid"): "gates of squeeze-and-excite",
    ("qat_lib/onnx_view/shape_vectors.py", "Identity"): "the arithmetic of shapes",
    ("qat_lib/keras/correction/equalization.py", "Conv1D"): "kernels whose channels can be scaled",
    (
        "qat_lib/keras/correction/equalization.py",
        "ZeroPadding2D",
    ): "what scaled channels pass unchanged",
    ("qat_lib/engines/layer_check.py", "Add"): "what a kernel applies before it writes",
    ("qat_lib/engines/layer_check.py", "QuantizeLinear"): "nodes without a tensor to compare",
}

PINNED = {
    "weighted": (
        {"Conv", "ConvTranspose", "Gemm", "MatMul"},
        {"Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"}
        | {"DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"}
        | {"Dense", "EinsumDense"},
    ),
    "pair": ({"QuantizeLinear", "DequantizeLinear"}, set()),
    "layout": (
        {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"},
        {"Reshape", "Flatten", "Permute"},
    ),
    "max pool": (
        {"MaxPool", "GlobalMaxPool"},
        {f"{kind}MaxPooling{n}D" for kind in ("", "Global", "Adaptive") for n in (1, 2, 3)},
    ),
    "average pool": (
        {"AveragePool", "GlobalAveragePool", "ReduceMean"},
        {f"{kind}AveragePooling{n}D" for kind in ("", "Global", "Adaptive") for n in (1, 2, 3)},
    ),
    "activation layer": (
        {"Relu", "LeakyRelu", "PRelu", "Elu"},
        {"Activation", "ReLU", "LeakyReLU", "PReLU", "ELU"},
    ),
    "normalization": (
        {"LayerNormalization", "GroupNormalization", "InstanceNormalization"},
        {"LayerNormalization", "GroupNormalization"},
    ),
    "int8": (
        {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "BatchNormalization"}
        | {"LeakyRelu", "PRelu", "Clip"},
        {"Add", "Subtract", "Multiply", "Maximum", "Minimum", "BatchNormalization"}
        | {"LeakyReLU", "PReLU"},
    ),
}


@pytest.mark.parametrize("role", PINNED)
def test_roles_pinned(role: Role) -> None:
    operators, layers = PINNED[role]
    assert roles.onnx_operators(role) == operators
    assert set(roles.layer_names(role)) == layers


def test_roles_of_activation_functions() -> None:
    assert roles.activation_functions("epilogue") == {
        *("relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "hard_silu", "mish")
    }
    assert roles.onnx_operators("epilogue") == {
        *("Relu", "Clip", "LeakyRelu", "HardSwish", "Gelu", "Elu")
    }
    assert roles.activation_functions("after add") == {"relu", "relu6", "leaky_relu"}
    assert roles.onnx_operators("after add") == {"Relu", "Clip", "LeakyRelu"}
    assert roles.activation_functions("gated") == {"gelu", "silu", "mish"}


def test_roles_of_signs() -> None:
    assert roles.activation_functions("non-negative") == {
        *("relu", "relu6", "sigmoid", "hard_sigmoid", "softmax", "softplus", "exponential")
    }
    assert roles.onnx_operators("non-negative") == {
        *("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Softplus", "Exp")
    }
    assert roles.keras_operators("merge", "sign preserving") == {
        *("Add", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
    }


def test_roles_all_in_table() -> None:
    used = set().union(*(row.roles for row in TABLE))
    assert used == set(get_args(Role))


@pytest.mark.parametrize("column", COLUMNS)
def test_table_names_each_operation_once(column: str) -> None:
    count = Counter(name for row in TABLE for name in getattr(row, column))
    assert [name for name, times in count.items() if times > 1] == []


def test_table_names_exist() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas()} | OF_RUNTIMES
    operations = {name for module in (activations, core, nn, numpy) for name in vars(module)}
    for row in TABLE:
        assert set(row.onnx) <= known
        assert all(hasattr(keras.layers, name) for name in row.layers)
        assert set(row.operators) <= operations | {"TrueDivide"}
        assert all(callable(keras.activations.get(name)) for name in row.functions)
        assert all(hasattr(tf.raw_ops, name) for name in row.tensorflow)


def test_table_names_exist_in_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra qatline[torch]")
    places = (torch, torch.nn.functional, torch.Tensor, operator)
    for row in TABLE:
        assert [name for name in row.modules if not hasattr(torch.nn, name)] == []
        for name in set(row.torch) - OF_LIBRARIES:
            assert any(hasattr(place, name) for place in places), name


def test_table_pairs_pytorch_names_with_keras_names() -> None:
    layers = {}
    for row in TABLE:
        for names in (row.modules, row.torch):
            layers.update(zip(names, row.layers, strict=False))
    assert layers["Conv2d"] == layers["conv2d"] == "Conv2D"
    assert (layers["add"], layers["mul"], layers["cat"]) == ("Add", "Multiply", "Concatenate")
    assert layers["MaxPool2d"] == layers["max_pool2d"] == "MaxPooling2D"
    assert (layers["AvgPool3d"], layers["maximum"]) == ("AveragePooling3D", "Maximum")
    for row in roles.rows("activation"):
        assert len(row.modules) in (0, len(row.functions))
        assert len(row.torch) == len(row.functions)


def test_table_pairs_activation_functions_with_operators() -> None:
    for row in roles.rows("activation"):
        for name, function in zip(row.operators, row.functions, strict=True):
            assert name.lower() == function.replace("_", "")


def test_layer_traits_resolves_names_to_classes() -> None:
    assert {layer.__name__ for layer in WEIGHTED} == set(roles.layer_names("weighted"))


def test_no_module_lists_operations_beside_the_table() -> None:
    known = {name for row in TABLE for column in COLUMNS for name in getattr(row, column)}
    found = set()
    for package in ("qat_lib", "components", "pipelines"):
        for path in (ROOT / package).rglob("*.py"):
            where = path.relative_to(ROOT).as_posix()
            if not where.startswith("qat_lib/roles/"):
                found |= {(where, names[0]) for names in _collections(path) if len(names) >= 3}
    listed = {(where, first) for where, first in found if first in known}
    assert listed == set(ALLOWED)


def _collections(path: Path) -> list[list[str]]:
    """Return the names in each collection of a module.

    Collections are tuples, lists, sets and dicts; names are strings, or ``layers.Name``.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = node.elts
        elif isinstance(node, ast.Dict):
            items = [key for key in node.keys if key is not None]
        else:
            continue
        names = [name for item in items if (name := _name(item)) and name[0].isupper()]
        found.append(names or [""])
    return found


def _name(item: ast.expr) -> str:
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return item.value
    if isinstance(item, ast.Attribute) and ast.unparse(item.value).endswith("layers"):
        return item.attr
    return ""
