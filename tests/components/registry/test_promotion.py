"""The promotion's protocol on a registry in memory, killed before each of its writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_registry import Killed, MemoryRegistry

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.artifacts.promotion import PromotionOutcome, Reason, Verdict
from qatline.components.registry.by_hand import find_version, promote_version, rollback
from qatline.components.registry.journal import MOVE_TAG, Move, history
from qatline.components.registry.lock import ENDED_TAG, LEASE, LockLostError, last_ended
from qatline.components.registry.promotion import (
    UPLOAD_TAG,
    Candidate,
    PromotionOptions,
    promotion_lock,
    submit_candidate,
)
from qatline.components.registry.registry import INPUTS, RUN, STATE, RegisteredVersion


def verdict(good: bool, champion: str, evaluation: str) -> Verdict:
    reason = Reason(check="champion_gain", passed=good)
    decision = "promote" if good else "reject"
    return Verdict.model_validate(
        {"verdict": decision, "reasons": [reason], "champion": champion, "evaluation": evaluation}
    )


class Run:
    """A retraining with a true accuracy, by which it is judged."""

    def __init__(self, folder: Path, digest: str, accuracy: int) -> None:
        self.folder = folder / f"files-{digest}"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "model.onnx").write_text(digest)
        self.digest, self.accuracy = digest, accuracy
        self.judged_again = 0
        self.inputs = "first"

    def judge(self, champion: RegisteredVersion | None, evaluation: str) -> Verdict:
        best = int(champion.tags["accuracy"]) if champion else 0
        digest = champion.digest if champion else ""
        return verdict(self.accuracy > best, digest, evaluation)

    def submit_candidate(
        self, registry: MemoryRegistry, champion: RegisteredVersion | None, evaluation: str = "e"
    ) -> PromotionOutcome:
        def again(found: RegisteredVersion | None) -> Verdict:
            self.judged_again += 1
            return self.judge(found, evaluation + "'")

        def tags(final: Verdict) -> dict[str, str]:
            return {
                "accuracy": str(self.accuracy),
                "qatline.verdict": final.verdict,
                "qatline.evaluation": final.evaluation,
                RUN: f"run-{self.digest}",
                INPUTS: self.inputs,
            }

        candidate = Candidate(
            digest=self.digest,
            verdict=self.judge(champion, evaluation),
            folder=lambda: self.folder,
            tags=tags,
            describe=lambda final: f"accuracy {self.accuracy}",
            by=f"run {self.digest}",
        )
        return submit_candidate(registry, candidate, PromotionOptions(judge_again=again))


@pytest.fixture
def registry(tmp_path: Path) -> MemoryRegistry:
    return MemoryRegistry(tmp_path)


def champion_of(registry: MemoryRegistry) -> RegisteredVersion | None:
    number = registry.aliases.get("champion")
    return registry.found[number - 1] if number else None


def run(
    registry: MemoryRegistry, tmp_path: Path, digest: str, accuracy: int, **options: Any
) -> PromotionOutcome:
    return Run(tmp_path, digest, accuracy).submit_candidate(
        registry, champion_of(registry), **options
    )


def states(registry: MemoryRegistry) -> list[str]:
    return [version.state for version in registry.found]


def test_first_candidate_becomes_champion(registry: MemoryRegistry, tmp_path: Path) -> None:
    outcome = run(registry, tmp_path, "a", 90)
    assert (outcome.action, outcome.champion, outcome.previous) == ("promoted", 1, None)
    assert registry.aliases == {"champion": 1}
    assert states(registry) == ["promoted"]
    (move,) = history(registry.model_tags)
    assert (move.action, move.to, move.left, move.by) == ("promotion", 1, None, "run a")
    assert sorted(registry.model_tags) == ["qatline.history.000001", f"{ENDED_TAG}1"]


def test_better_candidate_takes_over_and_worse_one_is_kept_as_challenger(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 90)
    assert run(registry, tmp_path, "b", 80).action == "rejected"
    assert registry.aliases == {"champion": 1, "challenger": 2}
    assert run(registry, tmp_path, "c", 95).action == "promoted"
    assert registry.aliases == {"champion": 3, "challenger": 2, "previous": 1}
    assert states(registry) == ["promoted", "rejected", "promoted"]


def test_same_candidate_makes_no_second_version(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 95)
    again = run(registry, tmp_path, "b", 95)
    assert (again.action, again.champion, again.version) == ("unchanged", 2, 2)
    old = run(registry, tmp_path, "a", 90, evaluation="new data")
    assert (old.action, old.version) == ("rejected", 1)
    assert len(registry.found) == 2
    assert registry.aliases["champion"] == 2


def test_same_candidate_from_other_inputs_is_noted(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 90)
    again = Run(tmp_path, "a", 90)
    again.inputs = "the same data, a new release"
    assert again.submit_candidate(registry, champion_of(registry)).action == "unchanged"
    assert registry.found[0].tags[INPUTS] == "the same data, a new release"


def test_cached_verdict_does_not_undo_a_rollback(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 95)
    rollback(registry, by="me", lease=60.0)
    assert run(registry, tmp_path, "b", 95).action == "unchanged"
    assert run(registry, tmp_path, "b", 95, evaluation="newly judged").action == "rejected"
    assert registry.aliases["champion"] == 1


def test_candidate_is_judged_again_when_the_champion_changed(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 90)
    seen = champion_of(registry)
    late = Run(tmp_path, "late", 92)
    run(registry, tmp_path, "b", 95)
    outcome = late.submit_candidate(registry, seen)
    assert (outcome.action, late.judged_again) == ("rejected", 1)
    assert outcome.verdict.champion == "b"
    assert registry.aliases["champion"] == 2


def test_newly_judged_candidate_may_return(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 80)
    better_now = run(registry, tmp_path, "b", 99, evaluation="new data")
    assert (better_now.action, better_now.version) == ("promoted", 2)
    assert len(registry.found) == 2


def writes_of(tmp_path: Path, first: list[tuple[str, int]], last: tuple[str, int]) -> int:
    folder = tmp_path / "count"
    folder.mkdir()
    registry = MemoryRegistry(folder)
    for digest, accuracy in first:
        run(registry, folder, digest, accuracy)
    registry.revived()
    run(registry, folder, *last)
    return len(registry.writes)


@pytest.mark.parametrize("last", [("c", 99), ("c", 10)])
@pytest.mark.parametrize("resumed", [True, False])
def test_killed_promotion_is_mended_by_the_next_run(
    tmp_path: Path, last: tuple[str, int], resumed: bool
) -> None:
    first = [("a", 80), ("b", 90)]
    count = writes_of(tmp_path, first, last)
    assert count >= 10
    for point in range(count):
        folder = tmp_path / f"{point}"
        folder.mkdir()
        registry = MemoryRegistry(folder)
        for digest, accuracy in first:
            run(registry, folder, digest, accuracy)
        registry.revived()
        registry.kill_at = point
        with pytest.raises(Killed):
            run(registry, folder, *last)
        _end_process(registry)
        registry.revived()
        assert registry.aliases["champion"] in (2, 3)
        next_run = last if resumed else ("d", 20)
        run(registry, folder, *next_run)
        _check_clean(registry, resumed=resumed, good=last[1] == 99, place=registry.writes)


def _check_clean(registry: MemoryRegistry, *, resumed: bool, good: bool, place: list[str]) -> None:
    left = [key for key in registry.model_tags if not key.startswith("qatline.history.")]
    assert left == [f"{ENDED_TAG}{last_ended(registry)}"], place
    assert not any(lock.exists for lock in registry.locks.values()), place
    assert "pending" not in states(registry)
    digests = [version.digest for version in registry.found]
    assert len(set(digests)) == len(digests)
    assert set(registry.uploads) == set(registry.sources.values())
    champion = champion_of(registry)
    assert champion is not None
    assert champion.state == "promoted"
    if resumed:
        assert champion.digest == ("c" if good else "b")
    else:
        # Nothing of a promotion that was not announced, all of one that was.
        assert champion.digest in ("b", "c")
        assert champion.digest == "b" or good
    moves = history(registry.model_tags)
    assert [move.number for move in moves] == list(range(1, len(moves) + 1))
    assert moves[-1].to == champion.number
    assert registry.aliases.get("previous") == moves[-1].left


def _end_process(registry: MemoryRegistry) -> None:
    """Let the lock look like that of a process that is gone."""
    for lock in registry.locks.values():
        if lock.exists:
            lock.model_tags[LEASE] = "-1"


@pytest.mark.parametrize("point", range(20))
def test_killed_rollback_is_mended(tmp_path: Path, point: int) -> None:
    registry = MemoryRegistry(tmp_path)
    for digest, accuracy in (("a", 80), ("b", 90), ("c", 95)):
        run(registry, tmp_path, digest, accuracy)
    registry.revived()
    registry.kill_at = point
    try:
        rollback(registry, by="me", lease=60.0)
    except Killed:
        _end_process(registry)
        registry.revived()
        if champion_of(registry) == registry.found[2] and MOVE_TAG not in registry.model_tags:
            rollback(registry, by="me", lease=60.0)
        else:
            run(registry, tmp_path, "d", 10)
    assert registry.aliases["champion"] == 2
    assert registry.aliases["previous"] == 1
    assert registry.found[2].state == "rolled_back"
    assert [move.action for move in history(registry.model_tags)][-1] == "rollback"
    assert MOVE_TAG not in registry.model_tags


def test_rollback_goes_back_step_by_step(registry: MemoryRegistry, tmp_path: Path) -> None:
    for digest, accuracy in (("a", 80), ("b", 90), ("c", 95)):
        run(registry, tmp_path, digest, accuracy)
    assert rollback(registry, by="me", lease=60.0, reason="slow in line 3").to == 2
    assert rollback(registry, by="me", lease=60.0).to == 1
    assert registry.aliases == {"champion": 1}
    with pytest.raises(ConfigError, match="no predecessor"):
        rollback(registry, by="me", lease=60.0)
    assert history(registry.model_tags)[-2].reason == "slow in line 3"


def test_rollback_never_returns_to_what_was_rolled_back(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    """A rollback to version 1 does not make version 2, which it left, its predecessor."""
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    assert rollback(registry, by="me", lease=60.0).to == 1
    run(registry, tmp_path, "c", 95)
    assert rollback(registry, by="me", lease=60.0).to == 1
    assert registry.aliases == {"champion": 1}
    with pytest.raises(ConfigError, match="no predecessor"):
        rollback(registry, by="me", lease=60.0)


def test_rollback_without_champion_is_refused(registry: MemoryRegistry) -> None:
    with pytest.raises(ConfigError, match="no champion"):
        rollback(registry, by="me", lease=60.0)


def test_promote_by_hand_needs_consent_for_rejected_versions(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 80)
    with pytest.raises(ConfigError, match="--accept-rejected"):
        promote_version(registry, 2, by="me", lease=60.0)
    move = promote_version(registry, 2, by="me", lease=60.0, accept_rejected=True)
    assert move is not None
    assert (move.action, move.to, move.left) == ("manual promotion", 2, 1)
    assert registry.aliases == {"champion": 2, "previous": 1}
    assert promote_version(registry, 2, by="me", lease=60.0, accept_rejected=True) is None


@pytest.mark.parametrize("number", [2, 3])  # rejected, and missing
def test_promote_by_hand_checks_the_version_before_it_locks(
    registry: MemoryRegistry, tmp_path: Path, number: int
) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 80)
    registry.revived()
    with pytest.raises(ConfigError, match="version"):
        promote_version(registry, number, by="me", lease=60.0)
    assert registry.writes == []


def test_promote_by_hand_refuses_chance(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 90)
    run(registry, tmp_path, "b", 10)
    registry.set_version_tags(2, {"qatline.better_than_chance": "false"})
    with pytest.raises(ConfigError, match="not better than chance"):
        promote_version(registry, 2, by="me", lease=60.0, accept_rejected=True)
    assert registry.aliases["champion"] == 1


def test_promote_by_hand_brings_back_what_was_rolled_back(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    rollback(registry, by="me", lease=60.0)
    promote_version(registry, 2, by="me", lease=60.0)
    assert states(registry) == ["promoted", "promoted"]
    assert registry.aliases == {"champion": 2, "previous": 1}


def test_find_version_takes_numbers_and_runs(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    assert find_version(registry, "1").number == 1
    assert find_version(registry, "run-b", RUN).number == 2
    assert find_version(registry, "run").number == 2  # the MLflow run
    with pytest.raises(ConfigError, match="latest versions: 1, 2"):
        find_version(registry, "run-c", RUN)


def test_version_of_an_earlier_release_counts_as_promoted(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 80)
    tags = dict(registry.found[0].tags)
    del tags[STATE]
    assert RegisteredVersion(number=1, tags=tags).state == "promoted"


def test_unreadable_announcement_is_no_move(registry: MemoryRegistry) -> None:
    assert Move.from_json("{") is None
    assert Move.from_json('{"number": 1}') is None
    assert UPLOAD_TAG not in registry.model_tags


def test_late_announcement_of_a_sleeper_is_no_move(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    late = Move(number=2, action="promotion", to=1, left=None)
    registry.set_tag(MOVE_TAG, late.to_json())
    run(registry, tmp_path, "c", 10)
    assert registry.aliases == {"champion": 2, "previous": 1, "challenger": 3}
    assert MOVE_TAG not in registry.model_tags


def write_late(registry: MemoryRegistry, alias: str, number: int) -> None:
    """Act as a process that wakes up between a look at its lock and a write."""
    with promotion_lock(registry, "sleeper", 60.0):
        registry.set_alias(alias, number)
        raise LockLostError("taken over")


def test_sleeper_sets_the_aliases_right_again(registry: MemoryRegistry, tmp_path: Path) -> None:
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    with pytest.raises(LockLostError):
        write_late(registry, "previous", 2)
    assert registry.aliases == {"champion": 2, "previous": 1}


def test_sleeper_leaves_no_champion_where_there_was_none(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 0)  # rejected: nothing is below the first champion
    with pytest.raises(LockLostError):
        write_late(registry, "champion", 1)
    assert registry.aliases == {"challenger": 1}


def fail_late(registry: MemoryRegistry, *, taken_over: bool) -> None:
    """Act as a process whose upload another one removed while it slept."""
    with promotion_lock(registry, "sleeper", 60.0):
        if taken_over:
            registry.set_tag(f"{ENDED_TAG}{last_ended(registry) + 1}", "")
            registry.set_alias("previous", 2)
        raise TrackingError("there is no such upload")


def test_sleeper_tells_of_its_lock_rather_than_of_what_fails_without_it(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    run(registry, tmp_path, "a", 80)
    run(registry, tmp_path, "b", 90)
    with pytest.raises(TrackingError, match="no such upload"):
        fail_late(registry, taken_over=False)
    with pytest.raises(LockLostError, match="taken over"):
        fail_late(registry, taken_over=True)
