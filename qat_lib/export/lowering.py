"""Lowering of a converted model by the passes selected in the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from qat_lib.export import passes
from qat_lib.export.graph import copy_graph, run_in_place
from qat_lib.export.options import PASSES, ExportOptions
from qat_lib.export.ranges import LearnedRange
from qat_lib.preprocessing import AnyPreprocessing


def lower(
    graph: ir.Model,
    ranges: Mapping[str, LearnedRange],
    options: ExportOptions,
    preprocessing: AnyPreprocessing | None = None,
    *,
    layout: str = "NHWC",
) -> ir.Model:
    """Run the lowering passes on a converted model; ``graph`` is not modified.

    Args:
        graph: the converted model.
        ranges: range of each quantizer, by name.
        options: options of the export; they select the passes.
        preprocessing: preprocessing of images. Default None: the pass that embeds it does not run.
        layout: axis order of image inputs. Default ``"NHWC"``.
    """
    # One copy for all passes: a copy for each took up to a third of the time of an export.
    lowered = copy_graph(graph)
    given: dict[str, Any] = {"ranges": ranges, "preprocessing": preprocessing, "layout": layout}
    for step in PASSES:
        if step.when is not None and not step.when(options):
            continue
        arguments = [given[name] for name in step.takes]
        # A pass without its argument is skipped, such as the preprocessing.
        if not any(argument is None for argument in arguments):
            run_in_place(getattr(passes, step.function), lowered, *arguments)
    return lowered
