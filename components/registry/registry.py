"""One registered model, as the promotion needs it.

A small protocol: each method is one request to the store, and each write is atomic by itself. No
two of them are atomic together, which is what the lock and the journal are for.
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

PENDING, PROMOTED, REJECTED = "pending", "promoted", "rejected"
ABANDONED, ROLLED_BACK = "abandoned", "rolled_back"


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of the model.

    Attributes:
        number: its version, counted from 1.
        tags: what is known about it; ``qatline.state`` is ``pending`` while it is being judged,
            then ``promoted``, ``rejected``, ``rolled_back``, or ``abandoned`` where its run was
            killed.
        run_id: the MLflow run that made it; empty where it is unknown.
        created: milliseconds since 1970.
    """

    number: int
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    created: int = 0

    @property
    def state(self) -> str:
        """What became of it; a version of an earlier release was promoted."""
        return self.tags.get(STATE, PROMOTED)

    @property
    def digest(self) -> str:
        """SHA-256 of its ONNX file."""
        return self.tags.get(DIGEST, "")


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """Tags and aliases of the registered model, read at once."""

    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)


class Registry(Protocol):
    """A registered model. Every method raises TrackingError when the store fails."""

    name: str

    def ensure(self) -> None:
        """Make the registered model where it is missing."""

    def state(self) -> ModelState:
        """Return its tags and aliases; empty where it is missing."""

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the model."""

    def delete_tag(self, key: str) -> None:
        """Delete a tag of the model; a missing one is no error."""

    def set_alias(self, alias: str, number: int) -> None:
        """Let an alias point to a version."""

    def delete_alias(self, alias: str) -> None:
        """Delete an alias; a missing one is no error."""

    def versions(self) -> Sequence[RegisteredVersion]:
        """Return all versions, the oldest first."""

    def new_place(self) -> str:
        """Return a new name for files."""

    def upload(self, place: str, folder: Path) -> str:
        """Store the files of ``folder`` under a new name, and return where they are."""

    def discard_upload(self, place: str) -> None:
        """Remove what was stored under that name; nothing stored is no error."""

    def create_version(self, source: str, tags: Mapping[str, str], description: str) -> int:
        """Make a version of what was uploaded, its tags with it, and return its number."""

    def set_version_tags(self, number: int, tags: Mapping[str, str]) -> None:
        """Set tags of a version, one after the other."""

    def download(self, number: int, folder: Path) -> None:
        """Copy the files of a version into an existing empty folder."""
