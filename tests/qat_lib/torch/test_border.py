"""Names of outputs by their place in what forward returns."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qat_lib.torch.border import output_names

Pair = namedtuple("Pair", ["left", "right"])


class Answers(OrderedDict[str, Any]):
    """Outputs without paths, as those of diffusers' models; the last one comes first."""


torch.utils._pytree.register_pytree_node(
    Answers,
    lambda answers: (list(reversed(answers.values())), list(reversed(answers))),
    lambda values, names: Answers(reversed(list(zip(names, values, strict=True)))),
)


def program(returned: Any) -> SimpleNamespace:
    spec = torch.utils._pytree.tree_structure(returned)
    return SimpleNamespace(call_spec=SimpleNamespace(out_spec=spec))


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        (0, ["output"]),
        ((0, 1), ["output_0", "output_1"]),
        ([0], ["output_0"]),
        ({"logits": 0, "features": 1}, ["logits", "features"]),
        ({"parts": (0, {"left": 1})}, ["parts_0", "parts_1_left"]),
        (Pair(0, (1, 2)), ["left", "right_0", "right_1"]),
        ((0, {"a": 1}), ["output_0", "output_1_a"]),
        (Answers(first=0, second=1), ["second", "first"]),
    ],
)
def test_output_names_say_the_place(returned: Any, names: list[str]) -> None:
    assert output_names(program(returned)) == names
