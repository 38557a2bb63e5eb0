"""Parse a Dockerfile and run a target without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

# How this machine reaches its package index, and the cache that a container build mounts.
_FROM_OUTSIDE = ("PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "UV_CACHE")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction (``RUN``, ``COPY``, ...) and its joined text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One ``FROM ... AS name`` with what follows it."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def read_stages(path: Path) -> dict[str, Stage]:
    """Return the stages by name, in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            current = Stage(name=alias.strip(), base=base.strip())
            stages[current.name] = current
        elif current is not None:
            current.instructions.append(Instruction(name=name, text=" ".join(rest.split())))
    return stages


def chain(stages: dict[str, Stage], target: str) -> list[Stage]:
    """Return the stages that ``target`` is built on, the first one first."""
    stage = stages[target]
    return [*(chain(stages, stage.base) if stage.base in stages else []), stage]


class Builder:
    """Runs a target's instructions below ``root``, absolute paths moved there.

    Lines that only root can run (``useradd``) are left out; everything else is executed as it is
    written.
    """

    def __init__(self, stages: dict[str, Stage], context: Path, root: Path, python: Path) -> None:
        self._stages = stages
        self._context = context
        self._root = root
        self._python = python
        self._built: set[str] = set()

    def build(self, target: str) -> dict[str, str]:
        """Execute ``target`` and its sources; return the entry point's environment."""
        # pip of the base image installs into the image: here, into an environment of its own.
        environment = {
            "PATH": f"{self._root}/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._root / "root"),
            **{name: value for name, value in os.environ.items() if name.startswith(_FROM_OUTSIDE)},
        }
        if "base-image" not in self._built:
            subprocess.run([self._python, "-m", "venv", self._root / "usr/local"], check=True)
            self._built.add("base-image")
        directory = self._root
        for stage in chain(self._stages, target):
            for instruction in stage.instructions:
                if instruction.name == "ENV":
                    environment |= {
                        n: self._move(v)
                        for n, v in (p.split("=", 1) for p in shlex.split(instruction.text))
                    }
                elif instruction.name == "WORKDIR":
                    directory = Path(self._move(instruction.text))
                    directory.mkdir(parents=True, exist_ok=True)
                elif instruction.name == "COPY":
                    self._copy(instruction.text, directory)
                elif instruction.name == "RUN":
                    self._run(stage.name, instruction.text, directory, environment)
        return environment

    def entry_point(self, target: str) -> list[str]:
        """Return ENTRYPOINT and CMD of ``target`` as one command."""
        found = {
            i.name: json.loads(i.text)
            for i in self._stages[target].instructions
            if i.name in ("ENTRYPOINT", "CMD")
        }
        return [*found["ENTRYPOINT"], *found["CMD"]]

    def _run(self, stage: str, text: str, directory: Path, environment: dict[str, str]) -> None:
        if text.startswith("useradd") or f"{stage}:{text}" in self._built:
            return
        self._built.add(f"{stage}:{text}")
        command = re.sub(r"--mount=\S+ ", "", text)
        subprocess.run(command, shell=True, cwd=directory, env=environment, check=True)

    def _copy(self, text: str, directory: Path) -> None:
        options = [word for word in text.split() if word.startswith("--")]
        *sources, target = [word for word in text.split() if not word.startswith("--")]
        if options:
            self.build(options[0].removeprefix("--from="))
            return  # the same root holds every stage, so that what is copied lies there already
        for source in sources:
            place = directory / target / source if target.endswith("/") else directory / target
            origin = self._context / source
            if origin.is_dir():
                shutil.copytree(
                    origin, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copyfile(origin, place)

    def _move(self, value: str) -> str:
        return ":".join(
            f"{self._root}{part}" if part.startswith(("/opt", "/home", "/usr/local")) else part
            for part in value.split(":")
        )
