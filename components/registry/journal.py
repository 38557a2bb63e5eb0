"""Moves of the aliases: each is announced, made, and written into the history.

An alias moves in one write, three of them in three. So a move is announced in one tag first. Whoever
holds the lock next finishes a move that was announced: each of its writes may be made twice.
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
    """One move of the champion.

    Attributes:
        number: counted from 1.
        action: ``promotion``, ``manual promotion`` or ``rollback``.
        to: the version that becomes champion.
        left: the version that was it; None for none.
        previous: the version to which a rollback goes back from then on; None for none.
        by: the run, or the user and the machine.
        at: when, ISO 8601 in UTC.
        reason: why, in a sentence.
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
        """Return the text of the tag; a long reason is shortened to fit into it."""
        content, kept = asdict(self), self.reason
        while len(text := json.dumps(content)) > _LONGEST and kept:
            kept = kept[: len(kept) * 9 // 10]
            content["reason"] = f"{kept}..."
        return text

    @classmethod
    def from_json(cls, text: str) -> Move | None:
        """Read a tag; None if it is damaged."""
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
    """Return the finished moves, the first one first."""
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
    """Return the move that was announced and not finished."""
    text = state.tags.get(MOVE_TAG)
    return Move.from_json(text) if text else None


def is_due(move: Move, state: ModelState) -> bool:
    """Whether an announced move is the next one.

    One that a process announced late, after it had slept through its lease, is not.
    """
    return move.number == next_number(state.tags)


def restore_aliases(registry: Registry, check: Callable[[], None]) -> None:
    """Let the aliases say what the last move of the history says."""
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
    """Announce a move, make it, and write it into the history.

    Args:
        registry: the model; its lock is held.
        move: what moves. One that was announced before is made to its end.
        check: called before each write; raises where the lock was lost.
    """
    check()
    registry.set_tag(MOVE_TAG, move.to_json())
    check()
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
    if registry.state().aliases.get(CHALLENGER) == move.to:
        registry.delete_alias(CHALLENGER)
    check()
    registry.set_tag(f"{HISTORY_TAG}{move.number:06d}", move.to_json())
    check()
    registry.delete_tag(MOVE_TAG)


def predecessor(tags: Mapping[str, str], version: int) -> int | None:
    """Return the champion that a version replaced when it last became one."""
    for move in reversed(history(tags)):
        if move.to == version and move.action != "rollback":
            return move.left
    return None
