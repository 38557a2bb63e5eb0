"""Journal of alias moves: announce, execute, record.

A move changes up to three aliases, one write each, and is therefore not atomic. It is announced in
a single tag first. The next owner of the lock completes an announced move; each of its writes is
idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone

from qatline.components.registry.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    PROMOTED,
    ROLLED_BACK,
    STATE,
    ModelState,
    Registry,
)

MOVE_TAG = "qatline.move"
HISTORY_TAG = "qatline.history."
_LONGEST = 4000  # characters of a move as text; the registry's tables hold 5000


@dataclass(frozen=True, kw_only=True)
class Move:
    """One replacement of the champion.

    Attributes:
        number: sequence number, counted from 1.
        action: ``promotion``, ``manual promotion`` or ``rollback``.
        to: version of the new champion.
        left: version of the replaced champion; None for none.
        previous: target version of the next rollback; None for none.
        by: the run, or the user and the machine.
        at: time in ISO 8601, UTC.
        reason: reason, in one sentence.
    """

    number: int
    action: str
    to: int
    left: int | None = None
    previous: int | None = None
    by: str = ""
    at: str = ""
    reason: str = ""

    def to_json(self) -> str:
        """Return the text of the tag; long reasons are truncated."""
        content, kept = asdict(self), self.reason
        # Shorten step by step: the length in JSON depends on escaped characters.
        while len(text := json.dumps(content)) > _LONGEST and kept:
            kept = kept[: len(kept) * 9 // 10]
            content["reason"] = f"{kept}..."
        return text

    @classmethod
    def from_json(cls, text: str) -> Move | None:
        """Read a tag; return None if it is damaged."""
        try:
            content = json.loads(text)
            known = {field.name for field in fields(cls)}
            move = cls(**{name: content[name] for name in content if name in known})
        except (ValueError, TypeError):
            return None
        texts = (move.action, move.by, move.at, move.reason)
        numbers = (move.number, move.to, move.left or 0, move.previous or 0)
        sound = all(isinstance(text, str) for text in texts) and all(
            isinstance(number, int) for number in numbers
        )
        return move if sound else None


def utc_now() -> str:
    """Return the time as ISO 8601 text in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def history(tags: Mapping[str, str]) -> list[Move]:
    """Return the finished moves, oldest first."""
    moves = []
    for key in sorted(key for key in tags if key.startswith(HISTORY_TAG)):
        move = Move.from_json(tags[key])
        if move is not None:
            moves.append(move)
    return moves


def next_number(tags: Mapping[str, str]) -> int:
    """Return the number of the next move."""
    return max((move.number for move in history(tags)), default=0) + 1


def announced(state: ModelState) -> Move | None:
    """Return the announced, unfinished move, or None."""
    text = state.tags.get(MOVE_TAG)
    return Move.from_json(text) if text else None


def is_due(move: Move, state: ModelState) -> bool:
    """Return whether an announced move is the next one.

    A process that slept past its lease may announce a move too late; that move is not due.
    """
    return move.number == next_number(state.tags)


def restore_aliases(registry: Registry, check: Callable[[], None]) -> None:
    """Set the aliases as recorded by the last move of the history."""
    moves = history(registry.state().tags)
    champion = moves[-1].to if moves else None
    previous = moves[-1].previous if moves else None
    for alias, number in ((PREVIOUS, previous), (CHAMPION, champion)):
        check()
        if number is None:
            registry.delete_alias(alias)
        else:
            registry.set_alias(alias, number)


def carry_out(registry: Registry, move: Move, check: Callable[[], None]) -> None:
    """Announce a move, execute it and record it in the history.

    Args:
        registry: the registered model; the caller holds its lock.
        move: the move; a move announced earlier is completed.
        check: called before each write; raises if the lock was lost.
    """
    check()
    registry.set_tag(MOVE_TAG, move.to_json())
    check()
    # ``previous`` moves first: if the process dies here, ``champion`` still points to a valid
    # version.
    if move.previous is None:
        registry.delete_alias(PREVIOUS)
    else:
        registry.set_alias(PREVIOUS, move.previous)
    check()
    registry.set_alias(CHAMPION, move.to)
    check()
    registry.set_version_tags(move.to, {STATE: PROMOTED})
    if move.action == "rollback" and move.left is not None:
        registry.set_version_tags(move.left, {STATE: ROLLED_BACK})
    # A newer rejected candidate may be the challenger by now; its alias must not be removed.
    if registry.state().aliases.get(CHALLENGER) == move.to:
        registry.delete_alias(CHALLENGER)
    check()
    # The history is written before the announcement is deleted. A crash in between leaves a move
    # that is no longer due, which the next owner discards.
    registry.set_tag(f"{HISTORY_TAG}{move.number:06d}", move.to_json())
    check()
    registry.delete_tag(MOVE_TAG)


def predecessor(tags: Mapping[str, str], version: int) -> int | None:
    """Return the champion that a version replaced at its last promotion."""
    for move in reversed(history(tags)):
        if move.to == version and move.action != "rollback":
            return move.left
    return None
