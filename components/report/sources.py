"""What the report is made of: the steps' directories, read as far as they can be read.

A run that was cut short, an older one, or one of another backend lacks some files. The report then
says so in a sentence; it never fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.steps import STEPS

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReportFolders:
    """The output directory of each step before ``promote``."""

    dataset: Path
    baseline: Path
    ptq: Path
    qat: Path
    onnx: Path
    engines: Path
    evaluation: Path

    def items(self) -> list[tuple[str, Path]]:
        """Return (step's name, directory) in the order of the pipeline."""
        return [
            (step.name, getattr(self, step.artifact))
            for step in STEPS
            if hasattr(self, step.artifact)
        ]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The content of the JSON files; an empty container stands for a missing or unreadable one.

    Args:
        notes: One sentence for each file that is there but can't be used.
    """

    folders: ReportFolders
    dataset: Json
    preprocessing: Json
    model: Json
    baseline_history: Sequence[Json]
    qat_history: Sequence[Json]
    plan: Json
    spec: Any
    ptq_ranges: Json
    qat_ranges: Json
    export: Json
    analysis: Json
    engines: Mapping[str, Json]
    layers: Mapping[str, Sequence[Json]]
    evaluation: Json
    steps: Mapping[str, Json]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def results(self) -> Mapping[str, Json]:
        """The rows of the result table by name."""
        return {
            name: row
            for name, row in as_mapping(self.evaluation.get("results")).items()
            if isinstance(row, Mapping)
        }

    @property
    def classes(self) -> list[str]:
        """The class names in label order."""
        names = self.dataset.get("classes")
        return (
            [str(name) for name in names]
            if isinstance(names, Sequence) and not isinstance(names, str)
            else []
        )


def read_run(folders: ReportFolders) -> RunData:
    """Read every file that the report uses."""
    reader = _Reader()
    engines = reader.each(folders.engines, ".engine.json")
    layers = reader.each(folders.engines, ".layers.json")
    return RunData(
        folders=folders,
        dataset=as_mapping(reader.json(folders.dataset / "dataset.json")),
        preprocessing=as_mapping(reader.json(folders.dataset / "preprocessing.json")),
        model=as_mapping(reader.json(folders.baseline / "model.json")),
        baseline_history=as_rows(reader.json(folders.baseline / "history.json")),
        qat_history=as_rows(reader.json(folders.qat / "history.json")),
        plan=as_mapping(
            reader.first(
                folders.onnx / "plan.json", folders.qat / "plan.json", folders.ptq / "plan.json"
            )
        ),
        spec=reader.json(folders.ptq / "spec.json"),
        ptq_ranges=as_mapping(reader.json(folders.ptq / "ranges.json")),
        qat_ranges=as_mapping(reader.json(folders.qat / "ranges.json")),
        export=as_mapping(reader.json(folders.onnx / "export.json")),
        analysis=as_mapping(reader.json(folders.onnx / "analysis.json")),
        engines={name: as_mapping(value) for name, value in engines.items()},
        layers={name: as_rows(value) for name, value in layers.items()},
        evaluation=as_mapping(reader.json(folders.evaluation / "evaluation.json")),
        steps={
            name: as_mapping(reader.json(path / "manifest.json")) for name, path in folders.items()
        },
        notes=tuple(reader.notes),
    )


def as_mapping(value: Any) -> Json:
    """Return ``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_rows(value: Any) -> list[Json]:
    """Return the mappings in ``value``, which may be a list, or a mapping that holds one list."""
    if isinstance(value, Mapping):
        value = next((item for item in value.values() if isinstance(item, list)), [])
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


class _Reader:
    """Reads JSON files and remembers what it could not read."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.notes.append(f"{path.parent.name}/{path.name} can't be read: {error}")
            return None

    def first(self, *paths: Path) -> Any:
        return next((value for path in paths if (value := self.json(path)) is not None), None)

    def each(self, folder: Path, suffix: str) -> dict[str, Any]:
        found = sorted(folder.glob(f"*{suffix}")) if folder.is_dir() else []
        return {path.name.removesuffix(suffix): self.json(path) for path in found}
