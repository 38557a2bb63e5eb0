"""Readable verdict of the gate: failed checks first, each with a suggested command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from qatline.components.artifacts.promotion import Reason, Verdict

NEXT_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "quality_drop": "qatline run --set quantization.diagnose_layers=10",
        "quality": "qatline run --set qat.epochs=12",
        "group_quality": "qatline run --set quantization.diagnose_layers=10",
        "chance": "qatline runs logs {run} --step train_baseline",
        "int8_fraction": "qatline analyze {run}/artifacts/onnx/qat.onnx --all",
        "speedup": "qatline bench-engine {run}/artifacts/engines/qat.engine --layers",
        "infrastructure": "qatline check-engine {run}/artifacts/engines/qat.engine "
        "--onnx {run}/artifacts/onnx/qat.onnx --layers",
        "verification": "qatline verify {run}/artifacts/onnx/qat.onnx "
        "--plan {run}/artifacts/onnx/plan.json",
        "analysis": "qatline analyze {run}/artifacts/onnx/qat.onnx --all",
        "champion": "qatline registry",
        "champion_quality": "qatline compare",
        "champion_groups": "qatline compare",
        "champion_gain": "qatline compare",
    }
)
"""Suggested command by failed check; ``{run}`` is replaced by the folder of the run."""


def failed_first(reasons: Iterable[Reason]) -> list[Reason]:
    """Return the reasons with failed checks first, otherwise in their order."""
    return sorted(reasons, key=lambda reason: reason.passed)


def next_command(reason: Reason, run: str = "RUN") -> str:
    """Return the suggested command for a failed check.

    Args:
        reason: the check.
        run: folder of the run.

    Returns:
        The command; empty for passed and unknown checks.
    """
    return "" if reason.passed else NEXT_COMMANDS.get(reason.check, "").format(run=run)


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in sentences, such as "Verdict: reject. Too slow. Try `...`."."""
    sentences = [f"Verdict: {verdict.verdict}."]
    for reason in failed_first(verdict.reasons):
        sentences.append(reason.message)
        if command := next_command(reason):
            sentences.append(f"Try `{command}`.")
    return " ".join(filter(None, sentences))
