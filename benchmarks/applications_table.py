"""The results of ``applications.py`` as tables, and a row's problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from applications_maps import KNOWN
from record import versions


def problems(row: dict[str, Any]) -> list[str]:
    """Return a row's problems, which should be none."""
    if "error" in row:
        return [row["error"]]
    parity = row["parity"].values()
    checks = {
        "differs when off": not row["off_identical"],
        "differs after loading": row["load_difference"] != 0.0,
        "differs after cloning": row["clone_difference"] != 0.0,
        "loss is not finite": not np.isfinite(row["loss"]),
        f"no gradient: {len(row['without_gradient'])}": bool(row["without_gradient"]),
        "no parity": not all(p["passed"] for p in parity),
        "no parity in float": "float_parity" in row and not row["float_parity"]["passed"],
        f"{row['analysis']['errors']} error findings": row["analysis"]["errors"] > 0,
        f"{row['analysis']['warnings']} warnings": row["analysis"]["warnings"] > 0,
    }
    return [text for text, wrong in checks.items() if wrong]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table.

    The findings and reasons are spelled out below it.
    """
    head = (
        "network",
        "pixels",
        "layers",
        "quantizers: activations + weights",
        "tied groups",
        "Q/DQ pairs in ONNX",
        "INT8 / weighted layers",
        "INT8 share of MACs",
        "fused / all Adds",
        "findings: errors, warnings, infos",
        "labels equal: random, real",
        "largest difference",
        "the same of Keras alone",
        "ONNX / FP32 bytes",
        "plan + apply, CPU s",
        "verdict",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        if "error" in row:
            verdict = "; ".join(_reasons(row)) or row["error"][:200]
            lines.append(f"| {row['name']} |" + " |" * (len(head) - 2) + f" {verdict} |")
        else:
            lines.append("| " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines)


def _reasons(row: dict[str, Any]) -> list[str]:
    """Return the known reason of a row's problems, if it has any."""
    return [KNOWN[row["name"]]] if row["name"] in KNOWN and problems(row) else []


def _cells(row: dict[str, Any]) -> list[str]:
    kinds, found, parity = row["quantizers"], row["analysis"], row["parity"]
    equal = ", ".join(
        f"{p['labels_equal']}/{p['samples']}" + (f" ({p['ties']} ties)" if p["ties"] else "")
        for p in parity.values()
        if p["labels_equal"] is not None
    )
    return [
        row["name"],
        str(row["pixels"]),
        str(row["layers"]),
        f"{kinds['activation'] + kinds.get('internal', 0)} + {kinds['weight']}",
        str(row["groups"]),
        f"{row['pairs']['activations']} + {row['pairs']['weights']}",
        f"{found['int8_layers']} / {found['weighted_layers']}",
        f"{100 * found['int8_macs_share']:.1f}%",
        f"{found['fused_adds']} / {found['adds']}",
        f"{found['errors']}, {found['warnings']}, {found['infos']}",
        equal,
        f"{max(p['largest_difference'] for p in parity.values()):.1e}",
        f"{max(p['difference_of_keras_alone'] for p in parity.values()):.1e}",
        f"{row['onnx_bytes'] / row['float_bytes']:.2f}",
        f"{row['seconds']['plan'] + row['seconds']['apply']:.1f}",
        "; ".join([*problems(row), *_reasons(row)]) or "ok",
    ]


def skipped_table(rows: list[dict[str, Any]]) -> str:
    """Return unquantized layers by reason, and finding codes, as Markdown table."""
    done = [row for row in rows if "error" not in row]
    reasons = sorted({reason for row in done for reason in row["skipped"]})
    lines = [
        "| network | " + " | ".join(reasons) + " | warnings | infos |",
        "|" + " --- |" * (len(reasons) + 3),
    ]
    for row in done:
        codes = [
            ", ".join(
                f"{code} x {count}" for code, count in row["findings"].get(severity, {}).items()
            )
            or "-"
            for severity in ("warning", "info")
        ]
        counts = [str(row["skipped"].get(reason, 0)) for reason in reasons]
        lines.append("| " + " | ".join([row["name"], *counts, *codes]) + " |")
    return "\n".join(lines)


def write_results(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as JSON and, beside it, as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    text = (
        "# keras.applications and keras_hub with TensorRTQDQCase\n\n"
        "Written by `benchmarks/applications.py`; random weights. A verdict of `ok` means: bit-identical to the\n"
        "original with all quantizers off; difference 0.0 after save and load and after `clone_model`; one training\n"
        "step with a finite loss and a gradient for every trainable weight; the exported file verified against the\n"
        "plan; ONNX Runtime and Keras agree on every label but ties, of the original and of the quantized network; no\n"
        "finding that is an error or a warning. The largest difference is that of two class probabilities, on all\n"
        "images; next to it is that of Keras alone, when its inputs move by a millionth of their value.\n"
        "Detectors and segmenters have no labels to compare: their outputs differ by no more than rounding\n"
        "explains, and OpenVINO builds their engine.\n\n"
        f"Made with {', '.join(f'{name} {version}' for name, version in versions().items() if name != 'nncf')}.\n\n"
        f"{table(rows)}\n\n## Layers not quantized, by reason, and findings by code\n\n{skipped_table(rows)}\n"
    )
    path.with_suffix(".md").write_text(text)
