"""Settings of the gate, of the model registry, of packages, and of retraining."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qatline.components.settings.settings_base import Settings, renamed

_NAME_CHARACTERS = frozenset("/:%\"'")


class ChampionSettings(Settings):
    """Conditions for the promotion of a candidate.

    Candidate and champion are measured on the same test part, by engines built on the same machine.
    Absolute and relative bounds apply together.
    """

    require: Literal["better", "not_worse"] = Field(
        "better",
        description=(
            "better: significantly better in quality, or faster or smaller by min_gain; not_worse: "
            "within the margins is enough."
        ),
    )
    level: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="Level of the task's paired test (one-sided) of candidate and champion.",
    )
    min_gain: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share by which less latency or size counts as better (0.1 = 10 %).",
    )
    max_drop: float | None = Field(
        None,
        ge=0,
        description=(
            "Largest loss of the primary metric against the champion (accuracy: 0.01 = one "
            "percentage point). Default: 0 for shares such as accuracy; other metrics must not be "
            "significantly worse."
        ),
    )
    max_relative_drop: float | None = Field(
        None, ge=0, le=1, description="The same as a share of the champion's value."
    )
    max_latency_increase: float = Field(
        0.25, ge=0, description="Largest increase of the latency at batch 1, as a share."
    )
    max_latency_increase_ms: float | None = Field(
        None, ge=0, description="Largest increase of the latency at batch 1, in milliseconds."
    )
    max_size_increase: float = Field(
        0.25, ge=0, description="Largest increase of the engine's size, as a share."
    )
    max_size_increase_mib: float | None = Field(
        None, ge=0, description="Largest increase of the engine's size, in MiB."
    )
    max_class_drop: float | None = Field(
        None,
        ge=0,
        description=(
            "Largest loss of the primary metric on any class, which a class without test samples "
            "fails; null: no class may be significantly worse."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, values: Any) -> Any:
        former = {
            "max_accuracy_drop": "max_drop",
            "max_relative_accuracy_drop": "max_relative_drop",
        }
        return renamed(values, former, "gate.champion")


class GateSettings(Settings):
    """When a quantized engine may be promoted."""

    max_drop: float | None = Field(
        None,
        ge=0,
        description=(
            "Largest allowed loss of the task's primary metric against FP32. Default: 0.01 for "
            "shares such as accuracy (one percentage point)."
        ),
    )
    max_relative_drop: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "The same as a share of FP32's value. Default: 0.02 for metrics that are no shares, "
            "such as a mean absolute error, unless max_drop is set."
        ),
    )
    required: float | None = Field(
        None,
        description="Value that the primary metric must reach: at least, or at most for an error.",
    )
    required_per_class: float | None = Field(
        None,
        description=(
            "The same for each class or other group of the task; a class without test samples "
            "fails it."
        ),
    )
    min_int8_fraction: float = Field(
        0.5, ge=0, le=1, description="Minimum share of the weighted layers that run in INT8."
    )
    min_speedup: float | None = Field(
        None,
        gt=0,
        description=(
            "Minimum speedup over the fastest float engine at batch 1, by median latency. "
            "Default: 1.02 times its speed, at batch 1 or at engine.batch_size."
        ),
    )
    champion: ChampionSettings = Field(default_factory=ChampionSettings)

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, values: Any) -> Any:
        former = {
            "max_accuracy_drop": "max_drop",
            "min_accuracy": "required",
            "min_class_accuracy": "required_per_class",
        }
        return renamed(values, former, "gate")


class RegistrySettings(Settings):
    """Registered model of the candidates and their champion."""

    name: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description=(
            "Name of the registered model, which all runs that compete for one champion share. "
            "Default: nothing is registered."
        ),
    )
    lease_seconds: float = Field(
        60.0,
        ge=1,
        le=3600,
        description=(
            "After how many seconds without a sign of life a promotion counts as dead, and "
            "another may take its lock."
        ),
    )

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        is_odd = name is not None and (_NAME_CHARACTERS & set(name) or not name.isprintable())
        if name is not None and (name.strip(" .") != name or is_odd):
            raise ValueError(
                "registry.name: expected a name without / : % and quotes, such as "
                f"line-3-defects; received {name!r}"
            )
        return name


class PackageSettings(Settings):
    """Package of a promoted engine for an inference server."""

    target: Literal["plain", "triton", "ovms", "kserve"] | None = Field(
        None,
        description=(
            "Server of the package in promote's output: plain for qatline serve, triton, ovms "
            "(OpenVINO Model Server) or kserve. Default: no package."
        ),
    )
    raw: bool = Field(
        False,
        description="Triton: whether an ensemble takes raw data and returns answers.",
    )
    publish: str | None = Field(
        None,
        min_length=1,
        description="Where to publish the package, such as s3://bucket/models/digits.",
    )
    license: str | None = Field(
        None,
        pattern=r"^[^\r\n]+$",
        description="Licence of the model for its model card, such as Apache-2.0.",
    )

    @model_validator(mode="after")
    def _has_a_target(self) -> PackageSettings:
        if self.target is None and (self.raw or self.publish):
            raise ValueError("package: expected a target with raw or publish, received none")
        if self.target == "kserve" and not self.publish:
            raise ValueError(
                "package.target=kserve: expected package.publish, the address that KServe loads "
                "the package from"
            )
        return self


class RetrainSettings(Settings):
    """Initial model of a retraining, and steps to skip."""

    start: Literal["scratch", "champion"] = Field(
        "scratch",
        description="champion: training begins with the FP32 weights of the registry's champion.",
    )
    qat: Literal["always", "auto"] = Field(
        "always",
        description=(
            "auto (also written qat: auto): skip fine-tuning where the calibrated model is within "
            "gate.max_drop on the validation part."
        ),
    )
    only_new: bool = Field(
        False,
        description=(
            "End early where the same data, code and settings were judged before; needs "
            "registry.name."
        ),
    )
