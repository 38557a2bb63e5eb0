"""Manual changes of the registry: promotion of a version and rollback."""

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
        registry: the registered model.
        number: number of the version.
        by: user that requests the promotion.
        lease: duration of the lock's lease in seconds.
        accept_rejected: whether to promote a version that the gate rejected.

    Returns:
        The move, or None if the version is already the champion.

    Raises:
        ConfigError: the version does not exist, was rejected by the gate, or is not better than
            chance.
    """
    _check_version(registry, number, accept_rejected)  # a wrong number does not wait for the lock
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
    """Restore the champion's predecessor.

    Runs never promote the replaced version again; only a manual promotion does.

    Raises:
        ConfigError: the champion has no predecessor.
    """
    if CHAMPION not in registry.state().aliases:  # a mistyped name, for example
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
            # The version left now must not be the target of the next rollback: repeated
            # rollbacks would alternate between two versions.
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
    """Return a version by its number, or the newest version of a run.

    Args:
        registry: the registered model.
        name: number of a version, or name of a run.
        tags: keys of the tags that may contain the name of the run.

    Raises:
        ConfigError: no version matches.
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
