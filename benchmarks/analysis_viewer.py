"""Time one frame of the fusion report's graph in headless Chromium.

It is drawn in software.

    python benchmarks/analysis_viewer.py [--chromium /usr/bin/chromium] [--nodes 1000 5000] [--keep DIR]

A frame under 16.7 ms is fluid at 60 per second. Each frame is read back, so that the time includes
rasterization on one CPU core; with a GPU it is less.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.analysis import analyze_onnx, to_html

FRAMES = """
<script>
addEventListener("load", () => {
  const scenes = { all: null, overview: 0.12, reading: 0.8 }, found = {};
  for (const [name, zoom] of Object.entries(scenes)) {
    fit();
    if (zoom) view.zoom = zoom;
    const times = [];
    for (let frame = 0; frame < 60; frame++) {
      if (zoom) view.y = data.boxes[Math.floor(frame / 60 * data.boxes.length)][Y];
      view.zoom *= frame % 2 ? 1.01 : 1 / 1.01;
      const begin = performance.now();
      draw(); paint.getImageData(0, 0, 1, 1);
      times.push(performance.now() - begin);
    }
    times.sort((a, b) => a - b);
    found[name] = { median_ms: times[30], p95_ms: times[57] };
  }
  const result = { id: "frames", textContent: JSON.stringify(found) };
  document.body.append(Object.assign(document.createElement("pre"), result));
});
</script>
"""


def residual_graph(nodes: int) -> onnx.ModelProto:
    """Build quantized residual blocks until the graph shows ``nodes`` boxes.

    A block has five operators, so the number is about that.
    """
    made, constants = [], []

    def constant(name: str, value: object, dtype: type) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    scale, zero = constant("scale", 0.1, np.float32), constant("zero", 0, np.int8)
    weight = constant("weight", np.ones((16, 16, 3, 3)), np.int8)

    def qdq(x: str, name: str) -> str:
        made.append(
            helper.make_node(
                "QuantizeLinear", [x, scale, zero], [f"{name}_q"], f"{name}/QuantizeLinear"
            )
        )
        made.append(
            helper.make_node(
                "DequantizeLinear", [f"{name}_q", scale, zero], [name], f"{name}/DequantizeLinear"
            )
        )
        return name

    def conv(x: str, name: str) -> str:
        made.append(
            helper.make_node(
                "DequantizeLinear", [weight, scale, zero], [f"{name}_w"], f"{name}_weight"
            )
        )
        made.append(
            helper.make_node("Conv", [x, f"{name}_w"], [name], f"quant_{name}/Conv", pads=[1] * 4)
        )
        return name

    x = "x"
    for block in range(max(nodes // 5, 1)):
        read = qdq(x, f"b{block}_in_quantizer")
        inner = conv(read, f"b{block}_1")
        made.append(helper.make_node("Relu", [inner], [f"b{block}_r"], f"b{block}_relu/Relu"))
        inner = conv(qdq(f"b{block}_r", f"b{block}_mid_quantizer"), f"b{block}_2")
        made.append(
            helper.make_node(
                "Add", [inner, read if block % 3 else x], [f"b{block}_a"], f"b{block}_add/Add"
            )
        )
        made.append(
            helper.make_node("Relu", [f"b{block}_a"], [f"b{block}_o"], f"b{block}_out/Relu")
        )
        x = f"b{block}_o"
    graph = helper.make_graph(
        made,
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 32, 32])],
        [helper.make_empty_tensor_value_info(x)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(page: Path, chromium: str) -> dict[str, dict[str, float]]:
    """Load ``page`` offline and return the times it recorded."""
    with tempfile.TemporaryDirectory() as profile:
        run = subprocess.run(
            [
                *(
                    chromium,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--no-first-run",
                    "--window-size=1400,900",
                ),
                *(
                    "--disable-background-networking",
                    f"--user-data-dir={profile}",
                    "--dump-dom",
                    page.as_uri(),
                ),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    match = re.search(r'<pre id="frames">(.*?)</pre>', run.stdout)
    if match is None:
        raise SystemExit(f"the page did not draw; chromium said: {run.stderr[-2000:]}")
    return dict(json.loads(match.group(1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--keep", type=Path, help="folder for the pages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for nodes in options.nodes:
            model = folder / f"{nodes}.onnx"
            onnx.save(residual_graph(nodes), model)
            report = analyze_onnx(model)
            page = folder / f"{nodes}.html"
            text = to_html(report)
            page.write_text(text.replace("</body>", FRAMES + "</body>"), encoding="utf-8")
            print(
                json.dumps(
                    {
                        "boxes": len(report.drawing.boxes),
                        "bytes": len(text),
                        **measure(page, options.chromium),
                    }
                )
            )


if __name__ == "__main__":
    main()
