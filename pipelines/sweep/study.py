"""Trials of a sweep in Optuna's storage: their order, results, and resumption."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from qat_lib.errors import ConfigError, StorageError
from qatline.pipelines.sweep.measures import Goal, TrialBound, TrialMeasures
from qatline.pipelines.sweep.space import Parameter, Space, TrialSettings

if TYPE_CHECKING:
    import optuna

SamplerName: TypeAlias = Literal["grid", "tpe", "random"]
State: TypeAlias = Literal["finished", "pruned", "failed", "unfinished"]

_NAME = "sweep"
_IDENTITY, _RUN, _MEASURED, _PROBLEM = "identity", "run", "measured", "problem"


class SweepTrial:
    """A trial with its settings and results.

    Attributes:
        number: number of the trial, from 1.
        settings: values of the varied keys.
        run_id: name of its run; empty before its start.
        state: ``finished``, ``pruned``, ``failed``, or ``unfinished``.
        measured: measures of a finished trial.
        problem: reason of a failed or pruned trial.
    """

    def __init__(self, trial: optuna.trial.Trial, frozen: Any, settings: TrialSettings) -> None:
        self._trial = trial
        attributes = frozen.user_attrs
        self.number: int = frozen.number + 1
        self.settings = settings
        self.run_id: str = attributes.get(_RUN, "")
        self.problem: str = attributes.get(_PROBLEM, "")
        self.measured = TrialMeasures.model_validate_json(attributes.get(_MEASURED, "{}"))
        states: dict[str, State] = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        self.state: State = states.get(frozen.state.name, "unfinished")

    def start(self, run_id: str) -> None:
        """Store the run of the trial, for a resumed sweep."""
        self.run_id = run_id
        self._trial.set_user_attr(_RUN, run_id)

    def is_hopeless(self, drop: float) -> bool:
        """Return whether Optuna's pruner stops the trial for the drop of the calibrated model."""
        if not self._trial.study.trials[self._trial.number].intermediate_values:
            self._trial.report(drop, step=0)
        return self._trial.should_prune()

    def finish(self, measured: TrialMeasures, goal: Goal, bounds: Sequence[TrialBound]) -> None:
        """Store the measures of the finished run."""
        self.measured, cost = measured, measured.cost(goal)
        self._trial.set_user_attr(_MEASURED, measured.model_dump_json())
        if cost is None:
            self.end("failed", f"its {goal} was not measured")
            return
        for bound in bounds:
            self._trial.set_constraint(bound.text, bound.violation(measured))
        self._trial.study.tell(self._trial, cost)
        self.state = "finished"

    def end(self, state: Literal["failed", "pruned"], problem: str) -> None:
        """Store the end of a trial without a result."""
        import optuna

        self.state, self.problem = state, problem
        self._trial.set_user_attr(_PROBLEM, problem)
        states = optuna.trial.TrialState
        told = states.FAIL if state == "failed" else states.PRUNED
        self._trial.study.tell(self._trial, state=told)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "number": self.number,
            "state": self.state,
            "settings": dict(self.settings),
            "run_id": self.run_id or None,
            **self.measured.to_dict(),
            "problem": self.problem or None,
        }


class SweepStudy:
    """The trials of a sweep in ``sweep.db``.

    Args:
        study: an Optuna study.
        space: the varied keys.
        most: number of trials.
    """

    def __init__(self, study: optuna.Study, space: Space, most: int) -> None:
        self._study, self._space, self._most = study, space, most
        self._interrupted = [t.number for t in study.trials if t.state.name == "RUNNING"]
        for trial in self._latest():
            if trial.state.name == "FAIL":
                self._study.enqueue_trial(trial.params, user_attrs={"repeats": trial.number})

    def next(self) -> SweepTrial | None:
        """Return the next trial, an interrupted one first; None if all have started."""
        import optuna

        if self._interrupted:
            frozen = self._study.trials[self._interrupted.pop(0)]
            return self._opened(optuna.trial.Trial(self._study, frozen._trial_id))
        started = [t for t in self._latest() if t.state.name != "WAITING"]
        if len(started) >= self._most:
            return None
        return self._opened(self._study.ask())

    def trials(self) -> list[SweepTrial]:
        """Return the started trials in order, without earlier failures of the same settings."""
        import optuna

        found = []
        for frozen in self._latest():
            if frozen.state.name != "WAITING" and len(frozen.params) == len(self._space.parameters):
                trial = optuna.trial.Trial(self._study, frozen._trial_id)
                found.append(SweepTrial(trial, frozen, self._settings(frozen.params)))
        return found

    def _opened(self, trial: optuna.trial.Trial) -> SweepTrial:
        # A killed sweep may have left a trial without some of its values.
        params = {each.key: _suggest(trial, each) for each in self._space.parameters}
        return SweepTrial(trial, self._study.trials[trial.number], self._settings(params))

    def _settings(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {each.key: each.text(params[each.key]) for each in self._space.parameters}

    def _latest(self) -> list[Any]:
        """Return the trials without failed ones that were repeated."""
        trials = self._study.trials
        repeated = {t.user_attrs.get("repeats") for t in trials}
        return [t for t in trials if t.number not in repeated]


def open_study(
    folder: Path,
    space: Space,
    identity: Mapping[str, Any],
    *,
    sampler: SamplerName,
    most: int,
    seed: int,
    prune: float | None,
) -> SweepStudy:
    """Create the study in ``folder``, or open it to resume the sweep.

    Args:
        folder: folder of the sweep.
        space: the varied keys.
        identity: config and options of the sweep; those of an existing study must be equal.
        sampler: order of the trials: ``grid``, or the name of Optuna's sampler.
        most: number of trials; ignored for a grid.
        seed: seed of the sampler.
        prune: largest drop of the calibrated model; None to prune no trial.

    Raises:
        ConfigError: the folder contains another sweep.
        StorageError: the database is damaged.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = optuna.samplers
    path = folder / "sweep.db"
    grid = space.grid() if sampler == "grid" else []
    with _readable(path):
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage(f"sqlite:///{path}"),
            study_name=_NAME,
            sampler=samplers.TPESampler(seed=seed)
            if sampler == "tpe"
            else samplers.RandomSampler(seed=seed),
            pruner=optuna.pruners.NopPruner()
            if prune is None
            else optuna.pruners.ThresholdPruner(upper=prune),
            load_if_exists=True,
        )
        known = study.user_attrs.get(_IDENTITY)
        if known is None:
            study.set_user_attr(_IDENTITY, dict(identity))
        else:
            _check_same(folder, known, identity)
        if len(study.trials) < len(grid):
            for settings in grid:
                study.enqueue_trial(dict(settings), skip_if_exists=True)
        return SweepStudy(study, space, len(grid) or most)


def _check_same(folder: Path, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for key in dict.fromkeys([*known, *given]):
        if known.get(key) != given.get(key):
            raise ConfigError(
                f"{folder} contains a sweep with {key}={known.get(key)!r}, received "
                f"{given.get(key)!r}. Repeat its command to resume it, or choose another folder "
                "with --output-dir."
            )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import optuna
    import sqlalchemy.exc

    try:
        with warnings.catch_warnings():
            # Of features that Optuna may still change; its version is pinned.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StorageError(
            f"{path} can't be read as the database of a sweep: {reason}. Move it away and repeat "
            "the command; the results of finished steps are reused."
        ) from error


def _suggest(trial: optuna.trial.Trial, parameter: Parameter) -> Any:
    """Return the value of a parameter in a trial; sample it unless it is known."""
    key, low, high = parameter.key, parameter.low, parameter.high
    if not parameter.is_range:
        return trial.suggest_categorical(key, list(parameter.values))
    if parameter.whole:
        return trial.suggest_int(key, int(low), int(high), log=parameter.log)
    return trial.suggest_float(key, low, high, log=parameter.log)
