"""Command lines that must fail: bad files and bad arguments.

A bad file stands in every command that opens one.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import bad_arguments
import bad_contents
from bad_files import Make, altered, flipped, unusable

SEED = 20_240_607
_TEXT = frozenset(
    {
        "empty",
        "one_byte",
        "first_tenth",
        "half",
        "swapped_halves",
        "reversed",
        "long_integer",
        "text",
    }
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command line.

    Args:
        name: what is wrong, for messages.
        arguments: of ``qatline``, or of one of the steps of the fork server.
        bad: the file that is made bad, below the folder that the command runs in; "" for none.
        make: makes it.
        refused: whether it must be refused; a flipped bit may be harmless.
    """

    name: str
    arguments: list[str]
    bad: str = ""
    make: Make = field(default=lambda _: None)
    refused: bool = True

    def lay_out(self, good: Path, folder: Path) -> set[Path]:
        """Copy the good files and the bad one into ``folder``.

        Return what lies there.
        """
        shutil.copytree(good, folder, symlinks=True)
        place = folder / self.bad
        if self.bad:
            if place.is_file():
                place.unlink()
            self.make(place)
        return set(folder.rglob("*"))


# File -> the commands that open it.
COMMANDS: dict[str, list[list[str]]] = {
    "model.keras": [
        ["quantize", "model.keras"],
        ["quantize", "model.keras", "--data", "x.npy", "-o", "q.keras"],
        ["diagnose", "model.keras", "--data", "x.npy"],
        ["export", "model.keras", "-o", "new.onnx"],
        ["load-weights", "other.keras", "model.keras"],
    ],
    "x.npy": [
        ["quantize", "model.keras", "--data", "x.npy", "-o", "q.keras", "--save-plan", "p.json"],
        ["export", "model.keras", "-o", "new.onnx", "--check", "x.npy"],
        ["diagnose", "model.keras", "--data", "x.npy", "--html", "page.html"],
        ["search", "model.keras", "--data", "x.npy", "--no-engines", "-o", "best.yaml"],
    ],
    "plan.json": [
        ["export", "quantized.keras", "-o", "new.onnx", "--plan", "plan.json"],
        ["verify", "model.onnx", "--plan", "plan.json"],
        ["analyze", "model.onnx", "--trace", "x", "--plan", "plan.json"],
    ],
    "spec.yaml": [
        ["quantize", "model.keras", "--spec", "spec.yaml"],
        ["diagnose", "model.keras", "--data", "x.npy", "--spec", "spec.yaml"],
    ],
    "model.onnx": [
        ["verify", "model.onnx"],
        ["analyze", "model.onnx", "--html", "page.html"],
        ["build-engine", "model.onnx", "-o", "new.engine", "--backend", "onnxruntime"],
    ],
    "layers.json": [["analyze", "model.onnx", "--compare", "layers.json"]],
    "model.engine": [
        ["bench-engine", "model.engine", "--seconds", "0.01"],
        ["check-engine", "model.engine", "--onnx", "model.onnx"],
    ],
    "model.engine.json": [["bench-engine", "model.engine", "--seconds", "0.01"]],
    "data.npz": [["prepare-data", "data.npz", "npz", "out"]],
    "x.npz": [
        ["finetune", "quantized.keras", "-o", "q.keras", "--epochs", "1", "--data", "x.npz"],
        ["evaluate", "model.engine", "--data", "x.npz"],
        ["search", "model.keras", "--data", "x.npz", "--no-engines"],
    ],
    "weights.npz": [["load-weights", "model.keras", "weights.npz"]],
    "model.weights.h5": [["load-weights", "model.keras", "model.weights.h5"]],
    "config.yaml": [
        ["config", "show", "-c", "config.yaml"],
        ["compile", "-c", "config.yaml", "-o", "p.yaml"],
    ],
    "dataset/dataset.json": [["read-dataset", "dataset"]],
    "dataset/preprocessing.json": [["read-dataset", "dataset"]],
    "dataset/train_x.npy": [["read-dataset", "dataset"]],
    "dataset/train_y.npy": [["read-dataset", "dataset"]],
    "images/cat/000.png": [["prepare-data", "images", "folder", "out"]],
    "images/cat/001.jpg": [["prepare-data", "images", "folder", "out"]],
}


def cases(good: Path, flips: int = 8) -> Iterator[Case]:
    """Yield every case; the same ones each time."""
    random = Random(SEED)
    for name, commands in COMMANDS.items():
        data = (good / name).read_bytes()
        for command in commands:
            yield from _of_file(name, command, data, random, flips)
    for case in bad_contents.contents(good):
        for command in COMMANDS[case.file]:
            if case.commands and command[0] not in case.commands:
                continue
            yield Case(
                name=f"{command[0]} {case.file} {case.name}",
                arguments=command,
                bad=case.file,
                make=case.make,
            )
    for case_name, make in bad_contents.folders():
        arguments = ["prepare-data", "images", "folder", "out"]
        yield Case(
            name=f"prepare-data images {case_name}", arguments=arguments, bad="images", make=make
        )
    for arguments in bad_arguments.arguments():
        yield Case(name=" ".join(arguments)[:80], arguments=arguments)


def _of_file(
    name: str, command: list[str], data: bytes, random: Random, flips: int
) -> Iterator[Case]:
    def case(damage: str, make: Make, *, refused: bool) -> Case:
        return Case(
            name=f"{' '.join(command)}: {name} {damage}",
            arguments=command,
            bad=name,
            make=make,
            refused=refused,
        )

    is_yaml = name.endswith(".yaml")
    for damage, make in unusable(data):
        # Half a YAML file may be a YAML file; an image may be missing, and a folder have an image's
        # name.
        optional = name.startswith("images/") and damage in ("missing", "folder")
        yield case(damage, make, refused=not ((is_yaml and damage in _TEXT) or optional))
    for damage, make in flipped(data, random, flips):
        yield case(damage, make, refused=False)
    if name.endswith(".json"):
        for damage, make in altered(data, random, 3 * flips):
            yield case(damage, make, refused=False)
