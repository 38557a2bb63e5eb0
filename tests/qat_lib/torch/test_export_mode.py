from __future__ import annotations

import threading

import pytest
import torch

from qat_lib.torch.export_mode import export_mode, is_exporting, mark


def test_export_mode_ends_with_its_block() -> None:
    def stop() -> None:
        with export_mode():
            raise ValueError(f"exporting: {is_exporting()}")

    with pytest.raises(ValueError, match="exporting: True"):
        stop()
    assert not is_exporting()


def test_export_mode_stays_in_its_thread() -> None:
    seen: list[bool] = []
    with export_mode():
        thread = threading.Thread(target=lambda: seen.append(is_exporting()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_mark_keeps_every_value() -> None:
    x = torch.tensor([[1.0, -0.0], [float("inf"), 2.0**-149]])
    marked = mark(x, "x_quantizer")
    assert marked.numpy().tobytes() == x.numpy().tobytes()


def test_mark_names_its_quantizer_in_exported_program() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * mark(x, "x_quantizer")

    program = torch.export.export(Doubled().eval(), (torch.zeros(2, 3),))
    targets = {str(node.target): node.args for node in program.graph.nodes}
    assert targets["qatline.quantizer.default"][1] == "x_quantizer"
