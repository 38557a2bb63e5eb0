"""RunConfig: all settings of a run, validated once.

Layers of a config in ascending priority: defaults, the YAML file, its profiles in the requested
order, ``--set`` options. Relative paths in a file refer to that file's folder, those of ``--set``
to the working directory.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from qat_lib.errors import ConfigError, ExportError
from qat_lib.models import check_reference_name
from qatline.components import settings
from qatline.components.export.choice import sign_problem
from qatline.components.settings import Settings
from qatline.components.settings.config_values import restore_integers
from qatline.components.support.credentials import scrub
from qatline.components.support.frameworks import FRAMEWORKS, Feature
from qatline.components.training.quantization_choice import check_case_name
from qatline.pipelines.config.cluster_settings import ClusterSettings
from qatline.pipelines.config.errors import (
    CONTRADICTIONS,
    ConfigProblem,
    message_of,
    overlap,
    unknown_keys,
    value_problems,
)
from qatline.pipelines.config.paths import absolute_paths, weights_beside_data
from qatline.pipelines.config.yaml_files import parse_config, read_yaml_mapping

_LARGEST_BATCH = 4  # GiB of input images


class RunConfig(Settings):
    """One run of the pipeline.

    Examples:
        >>> RunConfig().training.epochs
        9
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
    package: settings.PackageSettings = Field(default_factory=settings.PackageSettings)
    retrain: settings.RetrainSettings = Field(default_factory=settings.RetrainSettings)
    tracking: settings.TrackingSettings = Field(default_factory=settings.TrackingSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        """Reject at once the combinations that a step would reject after hours of training."""
        if found := list(contradictions(self)):
            text = "; ".join(message for _, message in found)
            # As template variables: the text may contain braces.
            raise PydanticCustomError(CONTRADICTIONS, "{text}", {"text": text, "found": found})
        return self

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


def contradictions(config: RunConfig, invalid: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each combination of values that a step would reject.

    Args:
        config: the config.
        invalid: keys whose values are not those of the user; they are not checked.
    """
    for keys, check in _COMBINATIONS:
        if not any(overlap(key, other) for key in keys for other in invalid):
            for message in check(config):
                yield keys[0], message


def _output(config: RunConfig) -> Iterator[str]:
    if re.search(r"(^|/)(https?|s3|gs|hdfs|abfss?):/", config.output):
        yield f"output: expected a folder on this machine, received {scrub(config.output)}"


def _export_target(config: RunConfig) -> str:
    return config.engine.backend if config.export.target == "auto" else config.export.target


def _signs(config: RunConfig) -> Iterator[str]:
    unsigned, backend = config.quantization.unsigned, config.engine.backend
    if (problem := sign_problem(unsigned, _export_target(config), backend)) is not None:
        yield problem


def _export_options(config: RunConfig) -> Iterator[str]:
    """Check the options of the export for its target."""
    target = _export_target(config)
    # The exporting machine resolves ``auto``: the options must suit the strictest target.
    update = {"target": "tensorrt" if target == "auto" else target}
    try:
        config.export.model_copy(update=update).options()
    except ExportError as error:
        yield f"export: {error}"


def _workers(config: RunConfig) -> int:
    return max(config.training.workers, config.qat.workers or 1)


def _features(config: RunConfig) -> Iterator[str]:
    framework, quantization = config.model.framework, config.quantization
    wanted: list[tuple[Feature, bool, str]] = [
        ("equalization", quantization.equalize is True, "quantization.equalize=false"),
        ("adaround", quantization.rounding == "adaround", "quantization.rounding=nearest"),
        ("workers", _workers(config) > 1, "training.workers=1 and qat.workers=1"),
    ]
    for name in (*config.training.keras_callbacks(), *config.qat.keras_callbacks()):
        wanted.append(("keras callbacks", True, f"module:Class in place of {name}"))
    for feature, is_wanted, instead in wanted:
        if is_wanted and not FRAMEWORKS[framework].supports(feature):
            yield f"model.framework={framework} does not support {feature}; set {instead}"


def _accumulation(config: RunConfig) -> Iterator[str]:
    workers = _workers(config)
    for section in ("training", "qat"):
        parts = getattr(config, section).accumulate_steps
        if parts > 1 and workers > 1:
            yield (
                f"{section}.accumulate_steps: expected 1 with {workers} workers, received "
                f"{parts}; several workers split a batch among them already. Set it to 1, or "
                "training.workers and qat.workers."
            )


def _reference_network(config: RunConfig) -> Iterator[str]:
    name = config.model.name
    if ":" not in name and not name.endswith(".keras"):
        try:
            check_reference_name(name, config.model.framework)
        except ConfigError as error:
            yield str(error)


def _cases(config: RunConfig) -> Iterator[str]:
    for name in config.quantization.cases:
        try:
            check_case_name(name)
        except ConfigError as error:
            yield str(error)


def _batches(config: RunConfig) -> Iterator[str]:
    """Check that no batch exceeds a machine's memory by itself."""
    height, width = config.data.image_size or (0, 0)
    for section in ("training", "quantization", "qat", "engine"):
        batch = getattr(config, section).batch_size
        gigabytes = batch * height * width * 3 * 4 / 2**30
        if gigabytes > _LARGEST_BATCH:
            yield (
                f"{section}.batch_size: expected at most {_LARGEST_BATCH} GiB of pixels, "
                f"received {batch} images of {height}x{width}, which take {gigabytes:.0f} GiB "
                "in float32; lower it or data.image_size"
            )


def _champion(config: RunConfig) -> Iterator[str]:
    needs = config.retrain.start == "champion" or config.retrain.only_new
    if config.registry.name is None and needs:
        yield (
            "retrain.start=champion and retrain.only_new: expected registry.name, the "
            "name of the champion; received none"
        )


# Checks of combinations, with the keys that they read.
_COMBINATIONS: Sequence[tuple[Sequence[str], Callable[[RunConfig], Iterator[str]]]] = (
    (("output",), _output),
    (("export.target", "engine.backend", "quantization.unsigned"), _signs),
    (("export", "engine.backend"), _export_options),
    (
        (
            *("model.framework", "quantization.equalize", "quantization.rounding"),
            *("training.workers", "qat.workers", "training.callbacks", "qat.callbacks"),
        ),
        _features,
    ),
    (
        (
            *("training.accumulate_steps", "qat.accumulate_steps"),
            *("training.workers", "qat.workers"),
        ),
        _accumulation,
    ),
    (("model.name", "model.framework"), _reference_network),
    (("quantization.cases",), _cases),
    (
        (
            *("data.image_size", "training.batch_size", "quantization.batch_size"),
            *("qat.batch_size", "engine.batch_size"),
        ),
        _batches,
    ),
    (("registry.name", "retrain"), _champion),
)


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


@dataclass(frozen=True, kw_only=True)
class ConfigReading:
    """A config as far as it can be read.

    Attributes:
        config: the settings; wrong values have their defaults.
        problems: the mistakes in it.
    """

    config: RunConfig
    problems: tuple[ConfigProblem, ...] = ()

    def checked(self) -> RunConfig:
        """Return the config.

        Raises:
            ConfigError: it has mistakes; the message lists all of them.
        """
        if self.problems:
            raise ConfigError(message_of(self.problems))
        return self.config


def build_config(values: Mapping[str, Any], *, source: str = "config") -> RunConfig:
    """Validate plain data.

    Raises:
        ConfigError: a key is unknown or a value is wrong; the message lists every problem with its
            path.
    """
    problems: list[ConfigProblem] = []
    values = _known(_with_qat_auto(values), source, problems)
    return _validate(values, source, problems).checked()


def _known(values: Mapping[str, Any], source: str, problems: list[ConfigProblem]) -> dict[str, Any]:
    """Add the unknown keys to ``problems``; return the values under the keys that were meant."""
    content = copy.deepcopy(dict(values))
    for problem in unknown_keys(content, RunConfig, source=source):
        problems.append(problem)
        section, _, name = problem.key.rpartition(".")
        place: Any = content
        for part in section.split(".") if section else ():
            place = place[part]
        value = place.pop(name)
        near_section, _, near = problem.meant.rpartition(".")
        if near and near_section == section:
            place.setdefault(near, value)
    return content


def _validate(
    values: Mapping[str, Any], source: str, problems: Sequence[ConfigProblem] = ()
) -> ConfigReading:
    """Validate the values; of a wrong config, each section for itself."""
    # The same conversion as in the steps: the launcher and the steps must compute equal keys.
    values = restore_integers(values)
    try:
        config = RunConfig.model_validate(values)
        return ConfigReading(config=config, problems=tuple(problems))
    except ValidationError as error:
        whole = value_problems(error, source)
    parts: dict[str, Any] = {}
    found: list[ConfigProblem] = []
    for name, value in values.items():
        parts |= _validate_part(name, value, source, found)
    # Without its validators: the parts that are left may contradict each other.
    config = RunConfig.model_construct(**parts)
    for key, text in contradictions(config, [problem.key for problem in found]):
        found.append(ConfigProblem(source=source, key=key, text=text))
    return ConfigReading(config=config, problems=(*problems, *(found or whole)))


def _validate_part(
    name: str, value: Any, source: str, found: list[ConfigProblem]
) -> dict[str, Any]:
    """Validate a section without its wrong values, which are added to ``found``.

    Returns:
        The section by its name; empty if it can't be used at all.
    """
    info = RunConfig.model_fields.get(name)
    if info is None:
        return {}
    adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, Annotated[info.annotation, info]))
    # Terminates: each round removes a key.
    while True:
        try:
            return {name: adapter.validate_python(value)}
        except ValidationError as error:
            new = value_problems(error, source, f"{name}.")
        found += new
        wrong = {problem.key.split(".")[1] for problem in new if "." in problem.key}
        if not isinstance(value, Mapping) or not wrong & set(value):
            return {}
        value = {key: item for key, item in value.items() if key not in wrong}


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
        ConfigError: the file, a profile, a key or a value is wrong; the message lists all mistakes.
    """
    return read_config(
        path, profiles=profiles, overrides=overrides, runs_dir=runs_dir, cwd=cwd
    ).checked()


def read_config(
    path: Path | None = None,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    runs_dir: Path | None = None,
    cwd: Path | None = None,
) -> ConfigReading:
    """Read a config like ``load_config``; return its mistakes instead of raising them.

    Values of misspelt keys are read as those of the nearest keys.

    Raises:
        ConfigError: the file can't be read at all.
    """
    here = Path.cwd() if cwd is None else cwd
    values: dict[str, Any] = {}
    problems: list[ConfigProblem] = []
    layers = _file_layers(path, profiles, problems)
    layers.append(("--set", here, _parse_overrides(overrides, problems)))
    if runs_dir is not None:
        layers.append(("--runs-dir", here, {"output": str(runs_dir)}))
    for source, base, content in layers:
        # A section with all lines commented out is null in YAML: treat it as empty.
        layer = {
            key: value
            for key, value in content.items()
            if value is not None or key not in _EMPTY_ALLOWED
        }
        layer = _known(_with_qat_auto(layer), source, problems)
        # Resolve paths per layer: each layer has its own base folder.
        values = _merge(values, absolute_paths(layer, base))
    if "output" not in values:
        values["output"] = str(here / RunConfig().output)
    values = weights_beside_data(values)
    sources = " + ".join(source for source, _, layer in layers if layer) or "defaults"
    return _validate(values, sources, problems)


def _file_layers(
    path: Path | None, profiles: Sequence[str], problems: list[ConfigProblem]
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
        known[name] = _known(_with_qat_auto(layer or {}), f"{path}, profile {name}", problems)
    layers = [(str(path), folder, base)]
    for name in profiles:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            text = f"expected a profile of this file ({listed}), received {name!r}."
            problems.append(ConfigProblem(source=str(path), key="profiles", text=text))
            continue
        layers.append((f"{path}, profile {name}", folder, known[name]))
    return layers


def _parse_overrides(overrides: Iterable[str], problems: list[ConfigProblem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in overrides:
        key, equals, raw = text.partition("=")
        parts = key.strip().split(".")
        try:
            if not equals or not all(parts):
                raise ConfigError(
                    "Expected --set section.key=value, such as training.epochs=5; received "
                    f"{text!r}."
                )
            layer: Any = parse_config(raw, f"--set {key}")
        except ConfigError as error:
            problems.append(ConfigProblem(source="", key=key.strip(), text=str(error)))
            continue
        # ``a.b.c=1`` becomes ``{a: {b: {c: 1}}}``, and is merged like a config file.
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
