"""Score the fusion analysis against engines that TensorRT built.

    python benchmarks/fusion_score.py FOLDER [--json]

``FOLDER`` holds pairs: ``model.onnx`` and the layers of its engine in ``model.json``, as
``trtexec --exportLayerInfo`` or the engine inspector writes them (``model.layers.json`` beside an
engine of qatline is taken, too). Prints for each pair, and over all, the share of the weighted
layers whose precision and output, and of the residual Adds whose fusion, was predicted right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qat_lib.analysis import Comparison, analyze_onnx, compare
from qat_lib.errors import ConfigError, QatlineError


@dataclass(frozen=True, kw_only=True)
class Score:
    """Right and scored predictions of each kind."""

    name: str
    right: dict[str, int]
    scored: dict[str, int]

    def share(self, kind: str) -> float | None:
        """Return the share of right predictions, 0 to 1, or None.

        It is None when nothing was scored.
        """
        return self.right[kind] / self.scored[kind] if self.scored[kind] else None


KINDS = ("precision", "output", "add")


def find_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Return ONNX files with the layer files beside them.

    Raises:
        ConfigError: there is no pair in ``folder``.
    """
    pairs = []
    for model in sorted(folder.rglob("*.onnx")):
        names = (f"{model.stem}.json", f"{model.stem}.layers.json")
        layers = [path for name in names if (path := model.with_name(name)).is_file()]
        pairs += [(model, path) for path in layers[:1]]
    if not pairs:
        raise ConfigError(
            f"Expected pairs of model.onnx and model.json in {folder}. Received none. Write the layers "
            "with trtexec --exportLayerInfo=model.json --profilingVerbosity=detailed."
        )
    return pairs


def score(name: str, comparison: Comparison) -> Score:
    """Count a comparison's right predictions; its mismatches are the wrong ones."""
    scored = {kind: comparison.scored.get(kind, 0) for kind in KINDS}
    right = dict(scored)
    for mismatch in comparison.mismatches:
        right[mismatch.what] -= 1
    return Score(name=name, right=right, scored=scored)


def total(scores: Iterable[Score]) -> Score:
    """Return the sum of several scores."""
    scores = list(scores)
    return Score(
        name="all",
        right={kind: sum(each.right[kind] for each in scores) for kind in KINDS},
        scored={kind: sum(each.scored[kind] for each in scores) for kind in KINDS},
    )


def main(arguments: list[str]) -> int:
    """Score a folder and print a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        pairs = find_pairs(options.folder)
        scores = [score(m.stem, compare(analyze_onnx(m), layers)) for m, layers in pairs]
    except QatlineError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    for each in [*scores, total(scores)]:
        if options.json:
            shares = {kind: each.share(kind) for kind in KINDS}
            sys.stdout.write(
                json.dumps({"name": each.name, **shares, "scored": each.scored}) + "\n"
            )
        else:
            sys.stdout.write(f"{each.name:>24}  " + "  ".join(_cell(each, k) for k in KINDS) + "\n")
    return 0


def _cell(each: Score, kind: str) -> str:
    share = each.share(kind)
    text = "-" if share is None else f"{share:.1%} of {each.scored[kind]}"
    return f"{kind} {text:<14}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
