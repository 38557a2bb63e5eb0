"""Checks that collect all mistakes instead of stopping at the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from qat_lib.errors import ConfigError, QatlineError
from qat_lib.support.foreign_errors import describe_error
from qatline.pipelines.config.errors import ConfigProblem, overlap
from qatline.pipelines.config.run_config import RunConfig

_KEY = re.compile(r"([a-z]+(?:\.[a-z_]+)+)[:= ]")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake.

    Attributes:
        key: key of the config, or name of a check.
        text: expected and received value, and the remedy.
        error: the exception, if any.
    """

    key: str
    text: str
    error: Exception | None = None

    @property
    def line(self) -> str:
        """The text with its key."""
        return self.text if self.key in self.text else f"{self.key}: {self.text}"


@dataclass(kw_only=True)
class Findings:
    """Results of checks.

    Attributes:
        config: the checked config; wrong values in it have their defaults.
        invalid: keys of wrong values; checks that read them are skipped.
        broken: references to user code that can't be imported.
        mistakes: the mistakes in order.
        facts: lines of the summary, by title.
        notes: remarks on what was not read, or will differ.
        unchecked: checks that did not run, with the reason.
    """

    config: RunConfig
    invalid: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    mistakes: list[Mistake] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _current: str = ""

    @contextmanager
    def of(self, key: str, *, blocks: bool = True) -> Iterator[None]:
        """Record an error within the block as a mistake.

        Args:
            key: the key at fault, unless the message starts with another one.
            blocks: whether checks that read the key or follow the current one can't run.
        """
        try:
            yield
        except QatlineError as error:
            self._add(key, str(error), error, blocks)
        except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
            kind = type(error).__name__
            self._add(key, f"{kind}: {describe_error(error)}", error, blocks)

    def add_problems(self, problems: Sequence[ConfigProblem]) -> None:
        """Add the mistakes found while the config was read."""
        for problem in problems:
            source = f"{problem.source}: " if problem.source else ""
            self.mistakes.append(Mistake(key=problem.key, text=f"{source}{problem.text}"))
            # The value of a misspelt key is that of the key that was meant.
            if not problem.meant:
                self.invalid.append(problem.key)

    def skip(self, reason: str) -> None:
        """Declare the current check, and those that follow it, as not done."""
        self.unchecked[self._current] = reason
        self._failed[self._current] = reason

    def run(self, checks: Sequence[Check]) -> None:
        """Run checks in order; skip those that depend on a mistake."""
        for check in checks:
            self._current = check.name
            if reason := self._obstacle(check):
                self.skip(reason)
                continue
            with self.of(check.reads[0] if check.reads else check.name):
                check.function(self)

    def _obstacle(self, check: Check) -> str:
        for key in check.reads:
            for wrong in self.invalid:
                if overlap(key, wrong):
                    return wrong
        return next((self._failed[name] for name in check.after if name in self._failed), "")

    def _add(self, key: str, text: str, error: Exception, blocks: bool) -> None:
        if (named := _KEY.match(text)) and named[1].partition(".")[0] in RunConfig.model_fields:
            key = named[1]
        # A store that several checks ask gives one answer.
        if text not in {mistake.text for mistake in self.mistakes}:
            self.mistakes.append(Mistake(key=key, text=text, error=error))
        if blocks:
            self.invalid.append(key)
            self._failed.setdefault(self._current, key)

    def raise_mistakes(self) -> None:
        """Raise the only mistake, or all of them as one error.

        Raises:
            QatlineError: there is a mistake.
        """
        if not self.mistakes:
            return
        (first, *more) = self.mistakes
        if not more and first.error is not None:
            raise first.error
        lines = "".join(f"\n  - {mistake.line}" for mistake in self.mistakes)
        raise ConfigError(f"{len(self.mistakes)} mistakes{lines}") from first.error


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: what it checks, in a few words.
        function: records mistakes, or raises them.
        reads: keys of the config that it reads, the most important first; it is skipped if one of
            them is wrong.
        after: names of checks that must have passed.
    """

    name: str
    function: Callable[[Findings], None]
    reads: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
