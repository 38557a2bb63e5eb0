"""Protocol of a registered model for promotions.

Each method is one request to the store, and each write is atomic. Sequences of writes are not; the
lock and the journal protect them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"

STATE = "qatline.state"
DIGEST = "qatline.digest"
EVALUATION = "qatline.evaluation"
VERDICT = "qatline.verdict"
CHANCE = "qatline.better_than_chance"
RUN = "qatline.run"
INPUTS = "qatline.inputs"
LOCK_TOKEN = "qatline.token"
"""Tag of a registered model that is a lock; unique to its owner."""

PENDING, PROMOTED, REJECTED = "pending", "promoted", "rejected"
ABANDONED, ROLLED_BACK = "abandoned", "rolled_back"


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model.

    Attributes:
        number: number of the version, counted from 1.
        tags: its tags; ``qatline.state`` is ``pending`` until a final verdict, then ``promoted``,
            ``rejected``, ``rolled_back``, or ``abandoned`` if the run was killed.
        run_id: MLflow run of the version; empty if unknown.
        created: creation time in milliseconds since 1970.
    """

    number: int
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    created: int = 0

    @property
    def state(self) -> str:
        """State of the version; versions of earlier releases count as promoted."""
        return self.tags.get(STATE, PROMOTED)

    @property
    def digest(self) -> str:
        """SHA-256 of its ONNX file."""
        return self.tags.get(DIGEST, "")


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """Tags and aliases of the registered model, read in one request."""

    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)


class Registry(Protocol):
    """A registered model. Every method raises TrackingError if the store fails."""

    name: str

    def ensure(self, tags: Mapping[str, str] = ...) -> None:
        """Create the registered model with these tags if it is missing.

        Of concurrent calls, exactly one creates it.
        """

    def remove(self) -> None:
        """Remove the registered model; a missing one is ignored."""

    def lock(self, number: int) -> Registry:
        """Return the registered model that is the lock of that number of this one."""

    def state(self) -> ModelState:
        """Return its tags and aliases; empty if the model is missing."""

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the model."""

    def delete_tag(self, key: str) -> None:
        """Delete a tag of the model; missing tags are ignored."""

    def set_alias(self, alias: str, number: int) -> None:
        """Point an alias to a version."""

    def delete_alias(self, alias: str) -> None:
        """Delete an alias; missing aliases are ignored."""

    def versions(self) -> Sequence[RegisteredVersion]:
        """Return all versions, oldest first."""

    def new_place(self) -> str:
        """Return a new, unique name for an upload."""

    def upload(self, place: str, folder: Path) -> str:
        """Store the files of ``folder`` under a new name and return their URI."""

    def discard_upload(self, place: str) -> None:
        """Remove the upload of that name, if any."""

    def create_version(self, source: str, tags: Mapping[str, str], description: str) -> int:
        """Create a version of an upload together with its tags, and return its number."""

    def set_version_tags(self, number: int, tags: Mapping[str, str]) -> None:
        """Set tags of a version, one request each."""

    def download(self, number: int, folder: Path) -> None:
        """Copy the files of a version into an existing empty folder."""
