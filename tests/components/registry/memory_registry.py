"""A registry in memory that counts its writes, and can stop at one of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from qat_lib.errors import TrackingError
from qatline.components.registry.registry import ModelState, RegisteredVersion


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code catches it."""


class MemoryRegistry:
    """Tags, aliases and versions; ``kill_at`` raises before the write of that number."""

    def __init__(
        self, folder: Path, name: str = "model", parent: MemoryRegistry | None = None
    ) -> None:
        self.name = name
        self.parent = parent
        self.locks: dict[int, MemoryRegistry] = {}
        self.folder = folder
        self.exists = False
        self.model_tags: dict[str, str] = {}
        self.aliases: dict[str, int] = {}
        self.found: list[RegisteredVersion] = []
        self.uploads: dict[str, Path | None] = {}
        self.sources: dict[int, str] = {}
        self.writes: list[str] = []
        self.kill_at: int | None = None
        self.dead = False

    def _write(self, what: str) -> None:
        if self.parent is not None:
            self.parent._write(f"{self.name}: {what}")
            return
        if self.dead or (self.kill_at is not None and len(self.writes) >= self.kill_at):
            self.dead = True
            raise Killed(what)
        self.writes.append(what)

    def revived(self) -> None:
        """Go on as the next process."""
        self.kill_at, self.dead, self.writes = None, False, []

    def ensure(self, tags: Mapping[str, str] = MappingProxyType({})) -> None:
        self._write("ensure")
        if not self.exists:
            self.exists, self.model_tags = True, dict(tags)

    def remove(self) -> None:
        self._write("remove")
        self.exists, self.model_tags = False, {}

    def lock(self, number: int) -> MemoryRegistry:
        return self.locks.setdefault(number, MemoryRegistry(self.folder, f"lock {number}", self))

    def state(self) -> ModelState:
        return ModelState(tags=dict(self.model_tags), aliases=dict(self.aliases))

    def set_tag(self, key: str, value: str) -> None:
        self._write(f"tag {key}")
        if not self.exists:
            raise TrackingError(f"there is no {self.name}")
        assert len(value) <= 5000
        self.model_tags[key] = value

    def delete_tag(self, key: str) -> None:
        self._write(f"untag {key}")
        self.model_tags.pop(key, None)

    def set_alias(self, alias: str, number: int) -> None:
        self._write(f"alias {alias} {number}")
        assert number in self.sources
        self.aliases[alias] = number

    def delete_alias(self, alias: str) -> None:
        self._write(f"unalias {alias}")
        self.aliases.pop(alias, None)

    def versions(self) -> Sequence[RegisteredVersion]:
        return list(self.found)

    def new_place(self) -> str:
        return f"place-{len(self.writes)}-{len(self.uploads)}"

    def upload(self, place: str, folder: Path) -> str:
        self._write("begin upload")
        self.uploads[place] = None
        self._write("upload")
        target = self.folder / place
        shutil.copytree(folder, target)
        self.uploads[place] = target
        return place

    def discard_upload(self, place: str) -> None:
        self._write("discard upload")
        self.uploads.pop(place, None)

    def create_version(self, source: str, tags: Mapping[str, str], description: str) -> int:
        self._write("version")
        number = len(self.found) + 1
        assert self.uploads[source] is not None
        assert description
        self.sources[number] = source
        self.found.append(RegisteredVersion(number=number, tags=dict(tags), run_id="run"))
        return number

    def set_version_tags(self, number: int, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._write(f"version {number} tag {key}")
            version = self.found[number - 1]
            self.found[number - 1] = replace(version, tags={**version.tags, key: value})

    def download(self, number: int, folder: Path) -> None:
        source = self.uploads[self.sources[number]]
        assert source is not None
        shutil.copytree(source, folder, dirs_exist_ok=True)
