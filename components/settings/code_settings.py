"""Settings that name the user's own code for a training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from qatline.components.settings.settings_base import Settings
from qatline.components.support.training_options import Augmentation, Code, Optimizer, Schedule

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "optimizer": get_args(Optimizer),
    "schedule": get_args(Schedule),
    "augment": get_args(Augmentation),
}
_KERAS_CALLBACKS = "keras.callbacks"


def name_and_options(code: Code) -> tuple[str, dict[str, Any]]:
    """Return the name in a setting of code, and its options."""
    if isinstance(code, str):
        return code, {}
    return code["name"], dict(code.get("options") or {})


def callback_reference(name: str) -> str:
    """Return the reference of a callback; names without a module are those of Keras."""
    return name if ":" in name else f"{_KERAS_CALLBACKS}:{name}"


class EarlyStoppingSettings(Settings):
    """End of a training without further gain on the validation part."""

    patience: int = Field(
        3,
        ge=1,
        le=10_000,
        description="Epochs without a gain of the task's primary metric after which training ends.",
    )
    min_delta: float = Field(
        0.0, ge=0, description="Smallest change of the primary metric that counts as a gain."
    )


def _checked_weights(weights: Any) -> Any:
    """Check weights by class name; names such as 0 in YAML become text."""
    if weights is None or weights == "balanced":
        return weights
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"expected balanced, or a weight by class name; received {weights!r:.200}")
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise ValueError(f"expected a number from 0 for class {name}, received {weight!r:.50}")
    return {str(name): float(weight) for name, weight in weights.items()}


ClassWeights = Annotated[
    dict[str, float] | Literal["balanced"] | None, BeforeValidator(_checked_weights)
]


class CustomTraining(Settings):
    """The user's additions to a training, the same for the baseline and for QAT."""

    section: ClassVar[str] = ""
    """Name of the section in the config."""

    callbacks: list[Code] = Field(
        default_factory=list,
        description="Names of Keras's callbacks or module:Class, or {name, options} of each.",
    )
    schedule: Code = Field(
        "cosine",
        description=(
            "Learning rate by step: cosine (decay to zero), constant or module:function, also as "
            "{name, options}."
        ),
    )
    early_stopping: EarlyStoppingSettings | None = Field(
        None,
        description=(
            "patience and min_delta: end the training if the primary metric of the validation "
            "part no longer improves."
        ),
    )
    class_weights: ClassWeights = Field(
        None,
        description=(
            "Weight of each class in the loss by class name, 1 for others; balanced: samples / "
            "(classes * samples of the class)."
        ),
    )

    @field_validator("optimizer", "schedule", "augment", "callbacks", check_fields=False)
    @classmethod
    def _names_code(cls, value: Any, info: ValidationInfo) -> Any:
        key = str(info.field_name)
        for code in value if isinstance(value, list) else [value]:
            if code is not None:
                _check_code(key, code)
        return value

    @model_validator(mode="after")
    def _has_one_weight_decay(self) -> CustomTraining:
        name, _ = name_and_options(getattr(self, "optimizer", "adam"))
        decay: float = getattr(self, "weight_decay", 0)
        if ":" in name and decay:
            raise ValueError(
                f"weight_decay: expected 0 with optimizer={name}, received {decay:g}; pass it in "
                "the optimizer's options"
            )
        return self

    def references(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield key, ``module:attribute`` and options of all code that is not built in."""
        for callback in self.callbacks:
            name, options = name_and_options(callback)
            yield "callbacks", callback_reference(name), options
        for key in _BUILT_IN:
            code: Code | None = getattr(self, key, None)
            if code is not None and ":" in name_and_options(code)[0]:
                yield key, *name_and_options(code)

    def keras_callbacks(self) -> list[str]:
        """Return the callbacks that are named without a module."""
        names = [name_and_options(code)[0] for code in self.callbacks]
        return [name for name in names if ":" not in name]


def _check_code(key: str, code: Code) -> None:
    """Reject names that are neither built in nor ``module:attribute``, and wrong mappings."""
    if isinstance(code, Mapping):
        options = code.get("options", {})
        if not set(code) <= {"name", "options"} or not isinstance(code.get("name"), str):
            raise ValueError(
                f"{key}: expected a name, or the keys name and options; received {dict(code)!r:.200}"
            )
        if not isinstance(options, Mapping):
            raise ValueError(
                f"{key}: expected options by name, received {type(options).__name__} for "
                f"{code['name']}"
            )
    name, options = name_and_options(code)
    if None in options.values():
        # A pipeline's parameters contain no null.
        raise ValueError(f"{key}: expected values in the options of {name}, received null")
    if _REFERENCE.fullmatch(name):
        return
    if key == "callbacks":
        if not name.isidentifier():
            raise ValueError(
                f"callbacks: expected the name of a callback of Keras, or module:Class; received "
                f"{name!r}"
            )
    elif name not in _BUILT_IN[key]:
        raise ValueError(
            f"{key}: expected {', '.join(_BUILT_IN[key])} or module:function; received {name!r}"
        )
    elif options:
        raise ValueError(f"{key}: {name} takes no options, received {', '.join(map(str, options))}")
