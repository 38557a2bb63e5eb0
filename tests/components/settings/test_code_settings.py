"""Settings of the user's code: forms, references and messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from qatline.components.settings import QATSettings, TrainingSettings

BOTH = pytest.mark.parametrize("kind", [TrainingSettings, QATSettings])


@BOTH
def test_references_name_all_code(kind: Any) -> None:
    given = kind(
        callbacks=["TerminateOnNaN", {"name": "mine:Log", "options": {"every": 2}}],
        optimizer="mine:lion",
        schedule={"name": "mine:warmup"},
        augment="mine.images:mix",
    )
    assert list(given.references()) == [
        ("callbacks", "keras.callbacks:TerminateOnNaN", {}),
        ("callbacks", "mine:Log", {"every": 2}),
        ("optimizer", "mine:lion", {}),
        ("schedule", "mine:warmup", {}),
        ("augment", "mine.images:mix", {}),
    ]
    assert given.keras_callbacks() == ["TerminateOnNaN"]
    assert list(kind().references()) == []


@BOTH
def test_class_weights_are_by_text(kind: Any) -> None:
    assert kind(class_weights={0: 2, "b": 0.5}).class_weights == {"0": 2.0, "b": 0.5}
    assert kind(class_weights="balanced").class_weights == "balanced"


@BOTH
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adm"}, "optimizer: expected adam, adamw, sgd or module:function"),
        ({"schedule": "linear"}, "schedule: expected cosine, constant or module:function"),
        (
            {"augment": "mirror"},
            "augment: expected none, shift, flip, flip_crop or module:function",
        ),
        ({"augment": "my module:f"}, "augment: expected none, shift"),
        ({"callbacks": ["a-b"]}, "callbacks: expected the name of a callback of Keras"),
        ({"callbacks": [{"nme": "A"}]}, "callbacks: expected a name, or the keys name and options"),
        ({"callbacks": [{"name": "a:B", "options": {"x": None}}]}, "received null"),
        ({"schedule": {"name": "a:b", "options": 3}}, "expected options by name, received int"),
        ({"schedule": {"name": "cosine", "options": {"a": 1}}}, "cosine takes no options"),
        ({"optimizer": "a:b", "weight_decay": 0.1}, "weight_decay: expected 0 with optimizer=a:b"),
        ({"class_weights": "balance"}, "expected balanced, or a weight by class name"),
        ({"class_weights": {"a": -1}}, "expected a number from 0 for class a, received -1"),
        ({"early_stopping": {"patience": 0}}, "patience"),
        ({"early_stopping": {"monitor": "x"}}, "monitor"),
    ],
)
def test_wrong_values_are_named(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        kind(**given)
    assert message in str(refused.value)
    assert refused.value.error_count() == 1
