"""RunConfig: all settings of a run, validated once.

Layers of a config in ascending priority: defaults, the YAML file, its profiles in the requested
order, ``--set`` options. Relative paths in a file refer to that file's folder, those of ``--set``
to the working directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from qat_lib.errors import ConfigError, ExportError
from qat_lib.models import check_reference_name
from qat_lib.options import BackendChoice
from qatline.components import settings
from qatline.components.export.choice import sign_problem
from qatline.components.settings import Settings
from qatline.components.settings.config_values import restore_integers
from qatline.components.support.frameworks import FRAMEWORKS, Feature
from qatline.components.training.quantization_choice import check_case_name
from qatline.pipelines.config.cluster_settings import ClusterSettings
from qatline.pipelines.config.errors import check_keys, describe_problems
from qatline.pipelines.config.paths import absolute_paths, weights_beside_data
from qatline.pipelines.config.yaml_files import parse_config, read_yaml_mapping

_LARGEST_BATCH = 4  # GiB of input images


class RunConfig(Settings):
    """One run of the pipeline.

    Examples:
        >>> RunConfig().training.epochs
        20
    """

    seed: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Seed of splits, initial weights, shuffling and augmentation.",
    )
    output: str = Field(
        "runs",
        description="Folder of the runs, their shared step store and the default MLflow store.",
    )
    data: settings.DataSettings = Field(default_factory=settings.DataSettings)
    task: settings.TaskSettings = Field(default_factory=settings.TaskSettings)
    model: settings.ModelSettings = Field(default_factory=settings.ModelSettings)
    training: settings.TrainingSettings = Field(default_factory=settings.TrainingSettings)
    quantization: settings.QuantizationSettings = Field(
        default_factory=settings.QuantizationSettings
    )
    qat: settings.QATSettings = Field(default_factory=settings.QATSettings)
    export: settings.ExportSettings = Field(default_factory=settings.ExportSettings)
    engine: settings.EngineSettings = Field(default_factory=settings.EngineSettings)
    gate: settings.GateSettings = Field(default_factory=settings.GateSettings)
    registry: settings.RegistrySettings = Field(default_factory=settings.RegistrySettings)
    retrain: settings.RetrainSettings = Field(default_factory=settings.RetrainSettings)
    tracking: settings.TrackingSettings = Field(default_factory=settings.TrackingSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        """Reject at once the combinations that a step would reject after hours of training."""
        if re.search(r"(^|/)(https?|s3|gs|hdfs|abfss?):/", self.output):
            raise ValueError(f"output: expected a folder on this machine, received {self.output}")
        target = self.engine.backend if self.export.target == "auto" else self.export.target
        problem = sign_problem(self.quantization.unsigned, target, self.engine.backend)
        if problem is not None:
            raise ValueError(problem)
        # The exporting machine resolves ``auto``: the options must suit the strictest target.
        self._check_export("tensorrt" if target == "auto" else target)
        workers = max(self.training.workers, self.qat.workers or 1)
        wanted: list[tuple[Feature, bool, str]] = [
            ("equalization", self.quantization.equalize is True, "quantization.equalize=false"),
            ("adaround", self.quantization.rounding == "adaround", "quantization.rounding=nearest"),
            ("workers", workers > 1, "training.workers=1 and qat.workers=1"),
        ]
        for feature, is_wanted, instead in wanted:
            if is_wanted and not FRAMEWORKS[self.model.framework].supports(feature):
                raise ValueError(
                    f"model.framework={self.model.framework} does not support {feature}; set {instead}"
                )
        for section in ("training", "qat"):
            parts = getattr(self, section).accumulate_steps
            if parts > 1 and workers > 1:
                raise ValueError(
                    f"{section}.accumulate_steps: expected 1 with {workers} workers, received "
                    f"{parts}; several workers split a batch among them already. Set it to 1, or "
                    "training.workers and qat.workers."
                )
        if ":" not in self.model.name and not self.model.name.endswith(".keras"):
            check_reference_name(self.model.name, self.model.framework)
        for name in self.quantization.cases:
            check_case_name(name)
        self._check_batches()
        needs = self.retrain.start == "champion" or self.retrain.only_new
        if self.registry.name is None and needs:
            raise ValueError(
                "retrain.start=champion and retrain.only_new: expected registry.name beside them, "
                "which says whose champion is meant; received none"
            )
        return self

    def _check_export(self, target: BackendChoice) -> None:
        """Reject contradicting options of the export."""
        try:
            self.export.model_copy(update={"target": target}).options()
        except ExportError as error:
            raise ValueError(f"export: {error}") from error

    def _check_batches(self) -> None:
        """Reject a batch that exceeds a machine's memory by itself."""
        if self.data.image_size is None:
            return
        height, width = self.data.image_size
        for section in ("training", "quantization", "qat", "engine"):
            batch = getattr(self, section).batch_size
            gigabytes = batch * height * width * 3 * 4 / 2**30
            if gigabytes > _LARGEST_BATCH:
                raise ValueError(
                    f"{section}.batch_size: expected at most {_LARGEST_BATCH} GiB of pixels, "
                    f"received {batch} images of {height}x{width}, which take {gigabytes:.0f} GiB "
                    "in float32; lower it or data.image_size"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the complete config as plain data, including defaults."""
        return self.model_dump(mode="json")

    def sections(self) -> dict[str, Settings]:
        """Return the sections that are parameters of the pipeline, in the form its steps read."""
        workers = self.qat.workers or self.training.workers
        sections: dict[str, Settings] = {name: getattr(self, name) for name in SECTIONS}
        return {**sections, "qat": self.qat.model_copy(update={"workers": workers})}

    def pipeline_parameters(self) -> dict[str, Any]:
        """Return the arguments of the pipeline: the seed and one dict per section.

        kfp does not support null inside a dict: keys without a value are omitted, since null is
        their default in every section. Options belong to a user's function, where null may have a
        meaning; if they contain null, they are passed as JSON text.
        """
        sections = {
            name: section.model_dump(mode="json") for name, section in self.sections().items()
        }
        for section in sections.values():
            if _holds_null(options := section.get("options", {})):
                section["options"] = json.dumps(options)
        return {"seed": self.seed, **_without_nulls(sections)}


SECTIONS = tuple(
    name for name in RunConfig.model_fields if name not in ("seed", "output", "tracking", "cluster")
)
"""Sections that are parameters of the pipeline; the others describe its location."""

_EMPTY_ALLOWED = frozenset(RunConfig.model_fields) - {"seed", "output"}


def _with_qat_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    """Expand ``qat: auto``, the short form of ``retrain.qat: auto``."""
    if values.get("qat") != "auto":
        return dict(values)
    retrain = values.get("retrain")
    content = retrain if isinstance(retrain, Mapping) else {}
    rest = {name: value for name, value in values.items() if name != "qat"}
    return {**rest, "retrain": {**content, "qat": "auto"}}


def build_config(values: Mapping[str, Any], *, source: str = "config") -> RunConfig:
    """Validate plain data.

    Raises:
        ConfigError: a key is unknown or a value is wrong; the message lists every problem with its
            path.
    """
    # The same conversion as in the steps: the launcher and the steps must compute equal keys.
    values = restore_integers(_with_qat_auto(values))
    check_keys(values, RunConfig, source=source)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, source)) from error


def load_config(
    path: Path | None = None,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    runs_dir: Path | None = None,
    cwd: Path | None = None,
) -> RunConfig:
    """Merge a YAML file, its profiles and ``a.b=value`` overrides over the defaults.

    Args:
        path: the YAML file; None uses the defaults.
        profiles: names under the file's ``profiles:`` key, merged over the base in this order.
        overrides: ``a.b=value`` texts; the value is parsed as YAML.
        runs_dir: folder of the runs, instead of the config's ``output``.
        cwd: base of relative paths in ``overrides`` and ``runs_dir``. Default: the working
            directory.

    Raises:
        ConfigError: the file, a profile, a key or a value is wrong.
    """
    here = Path.cwd() if cwd is None else cwd
    values: dict[str, Any] = {}
    layers = _file_layers(path, profiles)
    layers.append(("--set", here, _parse_overrides(overrides)))
    if runs_dir is not None:
        layers.append(("--runs-dir", here, {"output": str(runs_dir)}))
    for source, base, content in layers:
        # A section with all lines commented out is null in YAML: treat it as empty.
        layer = {
            key: value
            for key, value in content.items()
            if value is not None or key not in _EMPTY_ALLOWED
        }
        layer = _with_qat_auto(layer)
        check_keys(layer, RunConfig, source=source)
        # Resolve paths per layer: each layer has its own base folder.
        values = _merge(values, absolute_paths(layer, base))
    if "output" not in values:
        values["output"] = str(here / RunConfig().output)
    values = weights_beside_data(values)
    sources = " + ".join(source for source, _, layer in layers if layer) or "defaults"
    return build_config(values, source=sources)


def _file_layers(
    path: Path | None, profiles: Sequence[str]
) -> list[tuple[str, Path, dict[str, Any]]]:
    if path is None:
        if profiles:
            raise ConfigError(
                f"Expected --config with --profile {profiles[0]}: profiles are part of a config "
                "file."
            )
        return []
    base = read_yaml_mapping(path)
    folder = path.resolve().parent
    known = base.pop("profiles", None) or {}
    if not isinstance(known, dict) or not all(
        isinstance(layer, dict) or layer is None for layer in known.values()
    ):
        raise ConfigError(f"{path}: expected 'profiles' to map each name to a part of a config.")
    # Check all profiles: a typing error is reported before the profile is first used.
    for name, layer in known.items():
        where = f"{path}, profile {name}"
        known[name] = _with_qat_auto(layer or {})
        check_keys(known[name], RunConfig, source=where)
    layers = [(str(path), folder, base)]
    for name in profiles:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"{path}: expected a profile of this file ({listed}), received {name!r}."
            )
        layers.append((f"{path}, profile {name}", folder, known[name]))
    return layers


def _parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in overrides:
        key, equals, raw = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(
                f"Expected --set section.key=value, such as training.epochs=5; received {text!r}."
            )
        layer: Any = parse_config(raw, f"--set {key}")
        for part in reversed(parts):
            layer = {part: layer}
        values = _merge(values, layer)
    return values


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list) else value is None
