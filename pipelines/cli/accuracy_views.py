"""What ``qatline finetune`` and ``qatline evaluate`` show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from qatline.pipelines.cli.model_views import plain_table
from qatline.pipelines.run.result_table import format_milliseconds

if TYPE_CHECKING:
    from qatline.components.artifacts.models import Epoch
    from qatline.pipelines.cli.evaluation import FileEvaluation

_NONE = "-"


def show_finetuning(output: Path, history: Sequence[Epoch], kept: Epoch) -> None:
    """Show each epoch of a fine-tuning, and which one was kept."""
    console = Console(highlight=False)
    table = plain_table("epoch", "loss", "accuracy", "val. loss", "val. accuracy", "kept")
    for epoch in history:
        losses = [
            _NONE if value is None else f"{value:.4f}" for value in (epoch.loss, epoch.val_loss)
        ]
        shares = [_percent(epoch.accuracy), _percent(epoch.val_accuracy)]
        cells = (losses[0], shares[0], losses[1], shares[1], "yes" if epoch is kept else "")
        table.add_row(f"{epoch.epoch:.0f}", *cells)
    console.print(table)
    if not kept.epoch:
        console.print("No epoch beats the model as it came by more than noise: it is kept.")
    console.print(f"Wrote {escape(str(output))}", soft_wrap=True)


def show_evaluation(found: FileEvaluation) -> None:
    """Show a model's accuracy and, if measured, its latency."""
    console = Console(highlight=False)
    console.print(
        f"{escape(str(found.model))}: {found.backend}, {found.samples} samples, "
        f"{found.classes} classes",
        soft_wrap=True,
    )
    console.print(f"accuracy {_percent(found.accuracy)}")
    if found.top5 is not None:
        console.print(f"top-5    {_percent(found.top5)}")
    if found.latency_ms_p50 is not None and found.latency_ms_p99 is not None:
        times = map(format_milliseconds, (found.latency_ms_p50, found.latency_ms_p99))
        console.print(f"latency  {' / '.join(times)} ms (p50 / p99, batch {found.latency_batch})")


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.2%}"
