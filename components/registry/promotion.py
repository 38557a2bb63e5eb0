"""Protocol that promotes a candidate to champion.

All steps run under the lock: repair the remains of a killed promotion, read the champion again,
judge the candidate again if it was compared with another champion, create the version with its
verdict, move the aliases. The process may die between any two writes. The next promotion then finds
no change, a ``pending`` version, or an announced move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qat_lib.errors import TrackingError
from qatline.components.artifacts.promotion import PromotionOutcome, Verdict
from qatline.components.registry.journal import (
    MOVE_TAG,
    Move,
    announced,
    carry_out,
    is_due,
    next_number,
    restore_aliases,
    utc_now,
)
from qatline.components.registry.lock import Lease, LockLostError, registry_lock
from qatline.components.registry.registry import (
    ABANDONED,
    CHALLENGER,
    CHAMPION,
    DIGEST,
    EVALUATION,
    INPUTS,
    PENDING,
    REJECTED,
    ROLLED_BACK,
    STATE,
    RegisteredVersion,
    Registry,
)

UPLOAD_TAG = "qatline.upload"
_UNJUDGED = frozenset({PENDING, ABANDONED})


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Candidate of a run.

    Attributes:
        digest: SHA-256 of the ONNX file; identifies the candidate.
        verdict: verdict of the gate, including the compared champion.
        folder: writes the files into an empty folder and returns the folder.
        tags: returns the version's tags for a verdict.
        describe: returns the version's description for a verdict.
        by: the run, for the history.
    """

    digest: str
    verdict: Verdict
    folder: Callable[[], Path]
    tags: Callable[[Verdict], Mapping[str, str]]
    describe: Callable[[Verdict], str]
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class PromotionOptions:
    """Options of a promotion.

    Attributes:
        lease: duration of the lock's lease in seconds.
        waiting: receives the name of the lock's owner.
        judge_again: returns the verdict against the current champion.
    """

    judge_again: Callable[[RegisteredVersion | None], Verdict]
    lease: float = 60.0
    waiting: Callable[[str], None] = field(default=lambda _: None)


def submit_candidate(
    registry: Registry, candidate: Candidate, options: PromotionOptions
) -> PromotionOutcome:
    """Register a candidate and promote it if its verdict allows.

    Returns:
        The action taken, with the final verdict.

    Raises:
        TrackingError: the store fails, or the lock was lost.
    """
    registry.ensure()
    with promotion_lock(registry, candidate.by, options.lease, options.waiting) as lease:
        return _submit(registry, lease, candidate, options)


@contextmanager
def promotion_lock(
    registry: Registry,
    owner: str,
    lease: float,
    waiting: Callable[[str], None] = lambda _: None,
) -> Iterator[Lease]:
    """Hold the lock of a registered model after repairing a killed promotion.

    A process that slept past its lease may complete one more write before it detects the loss. It
    then acquires the lock again and restores the aliases to the last move of the history.

    Raises:
        LockLostError: another process took over the lock.
    """
    try:
        with registry_lock(registry, owner=owner, lease=lease, waiting=waiting) as held:
            mend(registry, held)
            with _lost_lock_first(held):
                yield held
    except LockLostError:
        with registry_lock(registry, owner=owner, lease=lease, waiting=waiting) as held:
            mend(registry, held)
            restore_aliases(registry, held.check)
        raise


@contextmanager
def _lost_lock_first(held: Lease) -> Iterator[None]:
    """Report a lost lock instead of the errors it causes.

    The new owner removes the files of versions not yet created, so that later requests fail.
    """
    try:
        yield
    except LockLostError:
        raise
    except TrackingError:
        held.check()
        raise


def _submit(
    registry: Registry, lease: Lease, candidate: Candidate, options: PromotionOptions
) -> PromotionOutcome:
    aliases, versions = registry.state().aliases, registry.versions()
    champion = _version(versions, aliases.get(CHAMPION))
    found = [version for version in versions if version.digest == candidate.digest]
    known = found[-1] if found else None
    if champion is not None and champion.digest == candidate.digest:
        _note_inputs(registry, lease, candidate, champion)
        return _outcome(
            candidate.verdict, "unchanged", champion.number, champion, "is the champion already"
        )
    verdict = candidate.verdict
    if verdict.champion != (champion.digest if champion else ""):
        # Another run changed the champion since the evaluation: the old verdict does not apply.
        verdict = options.judge_again(champion)
    elif known is not None and _is_settled(known, verdict):
        _note_inputs(registry, lease, candidate, known)
        return _outcome(verdict, "unchanged", known.number, champion, f"was {known.state} before")
    number = _register(registry, lease, candidate, verdict, known)
    # A user rejected this file deliberately: no verdict may promote it again.
    if known is not None and known.state == ROLLED_BACK:
        message = "was rolled back by hand; qatline promote brings it back"
        return _outcome(verdict, "rejected", number, champion, message)
    if not verdict.promoted:
        _reject(registry, lease, number)
        return _outcome(verdict, "rejected", number, champion, "was rejected by the gate")
    move = Move(
        number=next_number(registry.state().tags),
        action="promotion",
        to=number,
        left=champion.number if champion else None,
        previous=champion.number if champion else None,
        by=candidate.by,
        at=utc_now(),
        reason=verdict.summary,
    )
    carry_out(registry, move, lease.check)
    return _outcome(verdict, "promoted", number, champion, "is the champion now")


def mend(registry: Registry, lease: Lease) -> list[str]:
    """Complete or remove the remains of a killed promotion; return the actions taken.

    An announced move is completed. A version without a final verdict becomes ``abandoned``;
    resuming its run registers it again. Files without a version are removed.
    """
    done, state = [], registry.state()
    move = announced(state)
    if move is not None and is_due(move, state):
        carry_out(registry, move, lease.check)
        done.append(f"finished the {move.action} of version {move.to}")
    elif MOVE_TAG in state.tags:  # announced too late, or damaged
        lease.check()
        registry.delete_tag(MOVE_TAG)
    place = state.tags.get(UPLOAD_TAG)
    if place is not None:
        lease.check()
        # The crash may have happened after the version was created: its files are in use then.
        if not any(version.tags.get(UPLOAD_TAG) == place for version in registry.versions()):
            registry.discard_upload(place)
            done.append("removed files of a version that was never made")
        registry.delete_tag(UPLOAD_TAG)
    for version in registry.versions():
        if version.state == PENDING:
            lease.check()
            registry.set_version_tags(version.number, {STATE: ABANDONED})
            done.append(f"abandoned version {version.number}")
    return done


def _register(
    registry: Registry,
    lease: Lease,
    candidate: Candidate,
    verdict: Verdict,
    known: RegisteredVersion | None,
) -> int:
    """Return the number of the candidate's version; create one for a new file."""
    tags = dict(candidate.tags(verdict))
    if known is not None:
        lease.check()
        registry.set_version_tags(known.number, tags)
        return known.number
    folder = candidate.folder()
    lease.check()
    # Record the name before the upload: ``mend`` finds the files of a killed one by it.
    place = registry.new_place()
    registry.set_tag(UPLOAD_TAG, place)
    source = registry.upload(place, folder)
    lease.check()
    # Created as pending: only a completed promotion sets a final state.
    tags |= {STATE: PENDING, DIGEST: candidate.digest, UPLOAD_TAG: place}
    number = registry.create_version(source, tags, candidate.describe(verdict))
    registry.delete_tag(UPLOAD_TAG)
    return number


def _note_inputs(
    registry: Registry, lease: Lease, candidate: Candidate, version: RegisteredVersion
) -> None:
    """Record these inputs with the version they led to."""
    inputs = candidate.tags(candidate.verdict).get(INPUTS)
    if inputs and version.tags.get(INPUTS) != inputs:
        lease.check()
        registry.set_version_tags(version.number, {INPUTS: inputs})


def _reject(registry: Registry, lease: Lease, number: int) -> None:
    lease.check()
    # The state is written last: if the process dies before, ``mend`` finds a pending version.
    registry.set_alias(CHALLENGER, number)
    lease.check()
    registry.set_version_tags(number, {STATE: REJECTED})


def _is_settled(known: RegisteredVersion, verdict: Verdict) -> bool:
    """Return whether the same evaluation already judged this version."""
    judged = known.state not in _UNJUDGED
    return judged and known.tags.get(EVALUATION) == verdict.evaluation


def _version(versions: Sequence[RegisteredVersion], number: int | None) -> RegisteredVersion | None:
    for version in versions:
        if version.number == number:
            return version
    return None


def _outcome(
    verdict: Verdict,
    action: str,
    version: int,
    champion: RegisteredVersion | None,
    message: str,
) -> PromotionOutcome:
    before = champion.number if champion is not None else None
    return PromotionOutcome.model_validate(
        {
            "action": action,
            "version": version,
            "champion": version if action == "promoted" else before,
            "previous": before,
            "message": f"Version {version} {message}.",
            "verdict": verdict,
        }
    )
