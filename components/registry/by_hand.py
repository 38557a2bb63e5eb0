"""What people do to the registry: promote a version, go back to the one before."""

from __future__ import annotations

from qat_lib.errors import ConfigError
from qatline.components.registry.journal import Move, carry_out, next_number, predecessor, utc_now
from qatline.components.registry.promotion import promotion_lock
from qatline.components.registry.registry import (
    CHAMPION,
    CHANCE,
    PREVIOUS,
    REJECTED,
    VERDICT,
    RegisteredVersion,
    Registry,
)


def promote_version(
    registry: Registry, number: int, *, by: str, lease: float, accept_rejected: bool = False
) -> Move | None:
    """Make a version the champion.

    Args:
        registry: the model.
        number: the version.
        by: who asks for it.
        lease: seconds of the lock's lease.
        accept_rejected: whether a version that the gate rejected may be promoted.

    Returns:
        The move; None where the version is the champion already.

    Raises:
        ConfigError: there is no such version, the gate rejected it, or it is not better than
            chance.
    """
    with promotion_lock(registry, by, lease) as held:
        _check_version(registry, number, accept_rejected)
        state = registry.state()
        champion = state.aliases.get(CHAMPION)
        if champion == number:
            return None
        move = Move(
            number=next_number(state.tags),
            action="manual promotion",
            to=number,
            left=champion,
            previous=champion,
            by=by,
            at=utc_now(),
        )
        carry_out(registry, move, held.check)
        return move


def rollback(registry: Registry, *, by: str, lease: float, reason: str = "") -> Move:
    """Make the champion's predecessor the champion again.

    The version that is left is not promoted again by any run, only by hand.

    Raises:
        ConfigError: there is no predecessor.
    """
    if CHAMPION not in registry.state().aliases:  # a mistyped name makes no model
        raise _nothing_to_go_back_to(registry, champion=None)
    with promotion_lock(registry, by, lease) as held:
        state = registry.state()
        champion, previous = state.aliases.get(CHAMPION), state.aliases.get(PREVIOUS)
        if champion is None or previous is None:
            raise _nothing_to_go_back_to(registry, champion)
        before = predecessor(state.tags, previous)
        move = Move(
            number=next_number(state.tags),
            action="rollback",
            to=previous,
            left=champion,
            previous=before if before != champion else None,
            by=by,
            at=utc_now(),
            reason=reason,
        )
        carry_out(registry, move, held.check)
        return move


def _nothing_to_go_back_to(registry: Registry, champion: int | None) -> ConfigError:
    return ConfigError(
        f"Expected a champion of {registry.name!r} with a predecessor to go back to; there "
        f"is {'no predecessor' if champion else 'no champion'}. See: qatline registry."
    )


def find_version(registry: Registry, name: str, *tags: str) -> RegisteredVersion:
    """Return the newest version of a run, or the version of a number.

    Args:
        registry: the model.
        name: a version's number, or a run.
        tags: the tags that may hold the name of the run.

    Raises:
        ConfigError: there is none.
    """
    versions = registry.versions()
    for version in reversed(versions):
        if name in (str(version.number), version.run_id) or name in map(version.tags.get, tags):
            return version
    listed = ", ".join(str(version.number) for version in versions[-5:]) or "none"
    raise ConfigError(
        f"Expected a version of {registry.name!r} or a run that made one, received {name!r}. Its "
        f"latest versions: {listed}."
    )


def _check_version(registry: Registry, number: int, accept_rejected: bool) -> None:
    found = find_version(registry, str(number))
    if found.tags.get(CHANCE) == "false":
        raise ConfigError(
            f"Version {number} of {registry.name!r} is not better than chance on its test data: "
            "it can't be promoted."
        )
    if (found.tags.get(VERDICT) == "reject" or found.state == REJECTED) and not accept_rejected:
        failed = found.tags.get("qatline.failed", "")
        raise ConfigError(
            f"The gate rejected version {number} of {registry.name!r}"
            f"{f' ({failed})' if failed else ''}. To promote it all the same: --accept-rejected."
        )
