"""Bring the README's table and the documentation's pictures up to date from a run: ``readme_figures.py RUN_FOLDER``.

Run it on a machine that does nothing else. The pictures need Chromium (``--chromium PATH``) and
Pillow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from qat_lib.pages import numbers
from qatline.components.artifacts.variants import CANDIDATE, FP32_ENGINE, REFERENCE, ROWS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: docs/tools/readme_figures.py -->\n", "<!-- end of results -->"


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the result table in Markdown."""
    head = "| | Accuracy | Change | File | Latency p50 / p99, batch 1 | Throughput, batch {} | INT8 layers |"
    lines = [head.format(results[CANDIDATE]["batch_size"]), "|---|---|---|---|---|---|---|"]
    reference = results[REFERENCE]["quality"]["accuracy"]
    for name in (REFERENCE, FP32_ENGINE, "ptq_engine", CANDIDATE):
        row = results[name]
        latency = f"{numbers.milliseconds(row['latency_ms_p50'])} / {numbers.milliseconds(row['latency_ms_p99'])}"
        cells = [
            ROWS[name],
            numbers.percent(row["quality"]["accuracy"]),
            numbers.DASH
            if name == REFERENCE
            else numbers.points(row["quality"]["accuracy"] - reference),
            numbers.size(row["bytes"]),
            latency if row["latency_ms_p50"] is not None else numbers.DASH,
            numbers.rate(row["throughput"]),
            f"{row['int8_layers']} of {row['weighted_layers']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def wrapped(sentences: list[str]) -> str:
    """Return sentences as one paragraph of the README."""
    return textwrap.fill(" ".join(sentences), 120)


def machine(run: Path) -> str:
    """Return a sentence on where the run was made."""
    engine = json.loads((run / "artifacts" / "engines" / "qat.engine.json").read_text())
    version = str(engine["backend_version"]).split("-")[0]
    names = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT"}
    evaluation = json.loads((run / "artifacts" / "evaluation" / "evaluation.json").read_text())
    return (
        f"Seed 0, {evaluation['samples']} test images, {names[engine['backend']]} {version} on "
        f"{len(os.sched_getaffinity(0))} cores ({engine['device']['name']})."
    )


def pictures(page: Path, chromium: str) -> None:
    """Take the two pictures of the documentation from a report."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ]
        options += [
            "--hide-scrollbars",
            "--window-size=1280,3600",
            f"--user-data-dir={folder}/profile",
        ]
        command = [chromium, *options, f"--screenshot={shot}", page.absolute().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        image = Image.open(shot).convert("RGB")
        for name, box in (("report", (0, 0, 1280, 1220)), ("report-graph", (80, 2437, 1200, 3507))):
            image.crop(box).quantize(256).save(
                ROOT / "docs" / "images" / f"{name}.png", optimize=True
            )


def main() -> None:
    """Update the README and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--chromium", help="path of Chromium; without it the pictures stay as they are"
    )
    arguments = parser.parse_args()
    result = json.loads((arguments.run / "result.json").read_text())
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(
        f"{before}{BEGIN}\n{table(result['results'])}\n\n{wrapped(result['speed'])}\n\n"
        f"{wrapped([machine(arguments.run)])}\n\n{END}{after}"
    )
    if arguments.chromium:
        pictures(arguments.run / "report.html", arguments.chromium)
    sys.stdout.write(f"{README}\n")


if __name__ == "__main__":
    main()
