"""Search space of a sweep: the varied keys with their values or ranges."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from qat_lib.errors import ConfigError, QatlineError
from qatline.components.settings import PackageSettings
from qatline.pipelines.config.run_config import SECTIONS, ConfigReading, RunConfig
from qatline.pipelines.config.yaml_files import parse_config

ReadConfig = Callable[[Sequence[str]], ConfigReading]
"""Reads the config of the sweep with further ``section.key=value`` texts."""

TrialSettings = Mapping[str, str]
"""Values of a trial by key, as YAML."""

MOST_TRIALS = 1000

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\.\.({_NUMBER})(:log)?\s*")
# Keys without a meaning for trials, which register nothing.
_FIXED = ("registry", "retrain.only_new")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A varied key.

    Attributes:
        key: path of the key, such as ``quantization.calibrator``.
        values: its values as YAML; empty for a range.
        low, high: inclusive ends of a range.
        whole: whether the range contains integers only.
        log: whether the range is sampled on a logarithmic scale.
    """

    key: str
    values: Sequence[str] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def samples(self) -> Sequence[str]:
        """Values to check: all of a list, or the ends of a range."""
        return self.values or [self.text(self.low), self.text(self.high)]

    def text(self, value: Any) -> str:
        """Return a sampled value as YAML."""
        if not self.is_range:
            return str(value)
        return as_yaml(int(value) if self.whole else float(value))


def as_yaml(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def parse_parameter(text: str) -> Parameter:
    """Return the parameter of an ``--over`` text.

    Examples:
        >>> parse_parameter("quantization.calibrator=entropy,mse").values
        ['entropy', 'mse']
        >>> parse_parameter("qat.epochs=1..4").high
        4.0

    Raises:
        ConfigError: the text has another form, or a value occurs twice.
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")) or not raw.strip():
        raise ConfigError(
            "--over: expected KEY=VALUE,VALUE,... or KEY=LOW..HIGH, such as "
            f"quantization.calibrator=entropy,mse; received {text!r}."
        )
    if (match := _RANGE.fullmatch(raw)) is not None:
        low, high = float(match[1]), float(match[2])
        whole = match[1].lstrip("+-").isdigit() and match[2].lstrip("+-").isdigit()
        log = match[3] is not None
        if low >= high or (log and low <= 0):
            expected = "LOW below HIGH" + (", both positive" if log else "")
            raise ConfigError(f"--over {key}: expected {expected}, received {text!r}.")
        return Parameter(key=key, low=low, high=high, whole=whole, log=log)
    values = [as_yaml(value) for value in parse_config(f"[{raw}]", f"--over {key}")]
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ConfigError(f"--over {key}: expected different values, received {twice[0]} twice.")
    return Parameter(key=key, values=values)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The varied keys of a sweep, with the config that they vary."""

    parameters: Sequence[Parameter]
    read: ReadConfig

    def config(self, settings: TrialSettings) -> RunConfig:
        """Return the config of a trial, as the user would run it.

        Raises:
            ConfigError: the values contradict each other.
        """
        return self._config(settings).checked()

    def _config(self, settings: TrialSettings) -> ConfigReading:
        return self.read([f"{key}={value}" for key, value in settings.items()])

    def grid(self) -> list[dict[str, str]]:
        """Return all combinations; the values of the last key change first.

        Raises:
            ConfigError: a parameter is a range, or there are more than ``MOST_TRIALS``.
        """
        count = 1
        for each in self.parameters:
            if each.is_range:
                raise ConfigError(
                    f"--over {each.key}: a grid needs a list of values. Give values separated by "
                    "commas, or sample the range with --sampler tpe or --sampler random."
                )
            count *= len(each.values)
        if count > MOST_TRIALS:
            raise ConfigError(
                f"--over: expected at most {MOST_TRIALS} combinations, received {count}. Use fewer "
                "values, or --sampler tpe or random with --trials."
            )
        keys = [each.key for each in self.parameters]
        combinations = itertools.product(*(each.values for each in self.parameters))
        return [dict(zip(keys, values, strict=True)) for values in combinations]

    def check(self, check: Callable[[RunConfig], object]) -> None:
        """Check each value by itself.

        Args:
            check: check of a run before its first step.

        Raises:
            ConfigError: a key or a value is wrong, or a key is varied twice; the message names the
                option.
            QatlineError: the config itself is wrong.
        """
        # The base config alone comes first: its mistakes would appear under each value.
        check(self.config({}))
        seen: set[str] = set()
        for each in self.parameters:
            section = each.key.partition(".")[0]
            if section not in ("seed", *SECTIONS) or each.key.startswith(_FIXED):
                known = ", ".join(name for name in ("seed", *SECTIONS) if name not in _FIXED)
                raise ConfigError(
                    f"--over {each.key}: expected a key of {known}; the other sections do not "
                    "change the result of a trial."
                )
            if each.key in seen:
                raise ConfigError(f"--over {each.key}: expected each key once, received it twice.")
            seen.add(each.key)
            for value in each.samples:
                problems = self._config({each.key: value}).problems
                if problems:
                    texts = "; ".join(problem.text for problem in problems)
                    raise ConfigError(f"--over {each.key}={value}: {texts}")
                try:
                    check(self.config({each.key: value}))
                except QatlineError as error:
                    raise ConfigError(f"--over {each.key}={value}: {error}") from error


def trial_config(config: RunConfig) -> RunConfig:
    """Return a config without registration, packaging and publication, for a run that is not skipped.

    A champion of one trial would change the inputs of the next.

    Raises:
        ConfigError: the training starts from the champion.
    """
    if config.retrain.start == "champion":
        raise ConfigError(
            "retrain.start: expected scratch for a sweep, received champion. Trials use no "
            "registry; start from a file with model.weights instead."
        )
    return config.model_copy(
        update={
            "registry": config.registry.model_copy(update={"name": None}),
            "package": PackageSettings(),
            "retrain": config.retrain.model_copy(update={"only_new": False}),
        }
    )
