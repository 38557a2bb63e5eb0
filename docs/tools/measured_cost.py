"""Sections of docs/reference/measurements.md on speed, size and memory, and on networks."""

from __future__ import annotations

from typing import Any

from tables import RESULTS, block, load, measured, table


def openvino() -> list[str]:
    """Return the section on latency against other quantizers."""
    figures = load("export_openvino")
    tools = {"qatline": "qatline", "nncf": "NNCF", "onnxruntime": "ONNX Runtime"}
    rows = []
    for name, row in figures["networks"].items():
        for way, options in (
            ("defaults", "OpenVINO's defaults"),
            ("no snippets", "without snippets"),
        ):
            medians = row["median_ms"][way]
            times = [medians["fp32"], *(medians[tool] for tool in tools)]
            signed = medians["qatline signed"]
            ratio = f"{medians['fp32'] / medians['qatline']:.2f}"
            rows.append(
                [f"{name}, {options}", *(f"{t:.2f}" for t in times), ratio, f"{signed:.2f}"]
            )
    return [
        "## How fast is the INT8 graph?\n",
        block("uv run --group bench python benchmarks/export_openvino.py --signed"),
        "The same network quantized by qatline, by OpenVINO's own post-training tool (NNCF) and by ONNX Runtime's\n"
        "`quantize_static`; all of them run in OpenVINO at batch 1, in turns. Medians in milliseconds over "
        f"{figures['rounds']} rounds.\nSnippets are OpenVINO's code generator for element-wise chains: it takes "
        "residual Adds away from convolutions,\nand `build_engine` switches it off for INT8 graphs.\n",
        table(
            ["224 x 224 pixels", "FP32", *tools.values(), "FP32 / qatline", "qatline, signed"], rows
        ),
        "Ours has unsigned integers behind ReLUs, as `qatline run` chooses them for OpenVINO. The last column has\n"
        "signed ones, as a model for TensorRT has: 127 steps, at which OpenVINO must clamp, since a CPU's UINT8\n"
        "saturates at 255. If you compile the ONNX file without `build_engine`, set `SNIPPETS_MODE` to `DISABLE`.\n",
        measured(figures, "openvino", "nncf", "onnxruntime"),
    ]


def export() -> list[str]:
    """Return the section on the cost of the export."""
    figures = load("export_speed")
    labels = {
        "tf2onnx": "tf2onnx alone, float",
        "fp32": "`export_onnx`, float",
        "int8": "`export_onnx`, INT8",
    }
    rows = [
        [
            label,
            f"{row['conversion_seconds']:.1f} s",
            f"{row['seconds'] - row['conversion_seconds']:.1f} s",
            f"{row['bytes'] / 1e6:.1f} MB",
            f"{row['memory_factor']:.1f}",
        ]
        for key, label in labels.items()
        for row in [figures["rows"][key]]
    ]
    return [
        "## What does the export cost?\n",
        block(f"uv run python benchmarks/export_speed.py --network {figures['network']}"),
        f"{figures['network']} at {figures['pixels']} pixels, each row in a new process, best of "
        f"{figures['repeats']}. Beyond the conversion\ncome the passes, the verification and the file. "
        f"The INT8 file is {figures['int8_share']:.3f} times the FP32 one.\n",
        table(["", "conversion", "beyond it", "file", "peak memory / FP32 weights"], rows),
        measured(figures, "tf2onnx", "tensorflow", "keras"),
    ]


def overhead() -> list[str]:
    """Return the section on the cost of Engine.infer."""
    figures = load("engine_overhead")
    return [
        "## What does `Engine.infer` cost?\n",
        block("uv run python benchmarks/engine_overhead.py"),
        "ResNet-50 in INT8 at batch 1, requests in turns with the backend's own Python call on the same engine file:\n"
        f"{figures['engine_ms']:.2f} ms against {figures['own_ms']:.2f} ms, a ratio of the medians of "
        f"{figures['ratio']:.3f} ({figures['requests']} requests each).\n",
        measured(figures, "openvino"),
    ]


def scaling() -> list[str]:
    """Return the section on how quantize_model grows."""
    figures = load("quantize_scaling")
    rows = [
        [
            row["model"],
            str(row["layers"]),
            str(row["quantizers"]),
            f"{row['plan_seconds']:.2f} s",
            f"{row['apply_seconds']:.2f} s",
            f"{row['milliseconds_per_layer']:.1f} ms",
        ]
        for row in figures["rows"]
    ]
    return [
        "## How does `quantize_model` grow?\n",
        block("uv run python benchmarks/quantize_scaling.py"),
        "CPU seconds on one core, with `TensorRTQDQCase`.\n",
        table(["", "layers", "quantizers", "plan", "apply", "each layer"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def steps() -> list[str]:
    """Return the section on the overhead of the pipeline per step."""
    figures = load("step_overhead")
    names = ("function_seconds", "by_launcher_seconds", "by_itself_seconds")
    rows = []
    for row in figures["steps"]:
        rows.append([f"`{row['step']}`", *(f"{row[name]:.1f} s" for name in names)])
    cached, help_text = figures["runs_seconds"]["cached"], figures["help_seconds"]
    return [
        "## What does the pipeline add to a step?\n",
        block("uv run python benchmarks/step_overhead.py"),
        "CPU seconds of a step's process beyond its function with TensorFlow imported: the interpreter, Kubeflow's\n"
        "executor, keys, files and the record in MLflow, which the launcher writes on one machine and the step on a\n"
        f"cluster. A whole run that is in the store takes {cached:.1f} CPU seconds, `qatline --help`\n"
        f"{help_text:.2f}.\n",
        table(["step", "its function", "around it", "around it, on a cluster"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def qat_step() -> list[str]:
    """Return the section on the cost of a QAT step."""
    plain, xla, torch = load("qat_step"), load("qat_step_xla"), load("qat_step_torch")
    return [
        "## What does a QAT step cost?\n",
        block(
            "uv run python benchmarks/qat_step.py --rounds 5 --starts 3\n"
            "uv run python benchmarks/qat_step.py --rounds 5 --xla --networks resnet20 mobilenetv2\n"
            "pip install --target packages --no-deps torchao\n"
            "uv run python benchmarks/qat_step.py --framework torch --packages packages --starts 2",
        ),
        QAT_STEP,
        _step_table(plain),
        measured(plain, "tensorflow", "keras"),
        "Both networks' steps compiled with XLA:\n",
        _step_table(xla),
        measured(xla, "tensorflow", "keras"),
        """PyTorch 2.13 on one thread, next to its own fake quantization: `fx` is `torch.ao.quantization`'s graph mode
with the configuration `x86`, `pt2e` is torchao 0.18 with `X86InductorQuantizer`. Neither is compiled.
pytorch-quantization did not install from the Python Package Index, and was not measured.
""",
        _step_table(torch),
        measured(torch),
    ]


def _step_table(figures: dict[str, Any]) -> str:
    rows = []
    for row in figures["rows"]:
        low, median, high = row["step"]
        cells = [f"{median:.2f} ({low:.2f} to {high:.2f})", f"{row['step_cpu'][1]:.2f}"]
        cells += [f"{row[name]:.2f}" for name in ("first_step", "memory")]
        cells += [f"{row[name][1]:.2f}" for name in ("inference_cpu", "folded_inference_cpu")]
        cells += [f"{row['floor']:.2f}" if "floor" in row else "-"]
        rows.append([f"{row['network']}, {row['policy']}", *cells])
    head = ["step (quartiles)", "step, CPU time", "first step", "peak memory", "inference"]
    return table(["times FP32", *head, "inference, weights folded", "floor"], rows)


def inference() -> list[str]:
    """Return the section on the cost of inference of a quantized Keras model."""
    figures = load("quantized_inference")
    rows = []
    for row in figures["rows"]:
        cells = [
            f"{median:.2f} ({low:.2f} to {high:.2f})"
            for low, median, high in row["ratios"].values()
        ]
        rows.append(
            [f"{row['batch']} images, cores: {row['cores']}", f"{row['fp32_ms']:.0f} ms", *cells]
        )
    kinds = ["quantized", "weights folded", "weights not quantized", "activations not quantized"]
    return [
        "## What does inference of a quantized Keras model cost?\n",
        block("uv run python benchmarks/quantized_inference.py"),
        f"{figures['network']} at 96 pixels, in turns with the FP32 model: CPU time of a batch, and its\n"
        "ratio with all quantizers, with the weights quantized once for all calls\n"
        "(`folded_weights`), and with a kind of quantizers or all of them off. Medians and quartiles\n"
        f"of {figures['rounds']} rounds. An engine has none of this cost.\n",
        table(["", "FP32", *kinds, "none quantized"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def reading() -> list[str]:
    """Return the section on the speed of reading prepared data."""
    figures = load("data_throughput")
    rows = []
    for row in figures["rows"]:
        ratio = figures["ratios"].get(f"{row['reader']} / {row['reader'].split(', ')[0]}, by hand")
        cells = [f"{row['samples_per_second']:,} /s", f"{row['cpu_us_per_sample']:,.0f} µs"]
        rows.append([row["reader"], *cells, f"{ratio['speed']:.2f}" if ratio else ""])
    return [
        "## How fast is prepared data read?\n",
        block("uv run python benchmarks/data_throughput.py"),
        """Shuffled epochs of RGB images of 96 pixels in batches of 32, from a data set that fits into the page
cache. "By hand" is a `tf.data` pipeline for the same files; the last column is the speed relative to it. TensorFlow
decodes JPEG files that have the size of the input already, with the pixels that Pillow gives, so that training and
engine see the same images. All other images, such as the photographs (480x640 pixels), are decoded and resized by
Pillow. The ratio varies by 0.1 between runs.
""",
        table(["reader", "samples", "CPU time per sample", "to hand-written"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def memory() -> list[str]:
    """Return the section on the memory of the steps by the size of the data."""
    figures = load("data_memory")
    few, times = figures["samples"], figures["factor"]
    rows = [
        [
            row["step"],
            *(f"{row[key]:.0f} MiB" for key in ("mib_1", f"mib_{times}", "growth_mib")),
            f"{row[f'seconds_{times}']:.0f} s",
        ]
        for row in figures["steps"]
    ]
    return [
        "## Does memory grow with the data?\n",
        block(
            f"uv run --group test python benchmarks/data_memory.py --samples {few} --factor {times}"
        ),
        f"""Peak of the anonymous memory of each step, of {few:,} and of {few * times:,} images of 256 pixels with masks
({figures["data_mib"] / 1024:.1f} GiB), read from a user's generator. A control group limited all memory, pages of files
included, to {figures["group_mib"] / 1024:.2f} GiB, a tenth of the data. Training and fine-tuning take one epoch.
""",
        table(["step", f"{few:,} images", f"{few * times:,} images", "growth", "duration"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def serving() -> list[str]:
    """Return the section on the server."""
    figures = load("serving")
    rows = []
    for name, found in figures["networks"].items():
        rates = (found["engine_requests_per_second"], found["server_requests_per_second"])
        times = (found["ms_p50"], found["ms_p99"])
        least, most = min(found["server_mib"]), max(found["server_mib"])
        rows.append(
            [
                name,
                *(f"{rate:,.0f} /s" for rate in rates),
                f"{found['ratio']:.2f}",
                *(f"{time:,.0f} ms" for time in times),
                f"{least:,.0f} to {most:,.0f} MiB",
                str(found["requests_without_answer"] + found["lost_at_stop"]),
            ]
        )
    head = ["network", "engine", "server", "ratio", "median", "99 %", "memory", "lost"]
    return [
        "## How much does the server cost?\n",
        block("uv run --group test python benchmarks/serving.py --network resnet18"),
        """`qatline serve` with 8 clients that send raw images over HTTP for a minute, from the same machine, in turns
with 8 threads that give prepared arrays to the engine itself. Server and clients share the CPUs with
the engine, and need less than a millisecond for a small image, most of it in FastAPI and KServe: the
ratio is low for engines that answer thousands of requests per second. Medium is a ResNet-18 of half the
width for images of 112 pixels. The last column
counts requests without an answer, also of those that ran when the server was stopped.
""",
        table(head, rows),
        measured(figures, "openvino"),
    ]


MODELS = {
    "resnet20": "ResNet-20, trained on CIFAR-10",
    "keras_file": "MobileNetV2 on photographs, a `.keras` file",
    "detector": "detector, three maps",
    "segmenter": "segmenter",
    "open_sizes": "segmenter, images of any size",
    "regressor": "regression of a vector",
    "two_inputs": "image and vector",
    "signals": "signals, one-dimensional",
    "lines_of_text": "reader of lines of text: convolutions, LSTMs, a GRU",
    "transposed_unet": "U-Net with transposed convolutions",
    "subclassed_super_resolution": "super-resolution, a subclassed model",
    "keras_hub_resnet": "ResNet backbone of keras_hub",
    "mixed_precision": "float16 layers",
    "torch_module": "residual PyTorch module",
    "torchvision_ssdlite": "torchvision's SSDlite, PyTorch",
    "torchvision_fcos": "torchvision's FCOS, PyTorch",
    "torchvision_lraspp": "torchvision's LR-ASPP, PyTorch",
    "torchvision_deeplabv3": "torchvision's DeepLabv3, PyTorch",
    "ultralytics_yolov8n": "Ultralytics' YOLOv8n, PyTorch",
    "timm_mobilenetv4": "timm's MobileNetV4, PyTorch",
    "timm_convnext": "timm's ConvNeXt-Atto, PyTorch",
    "transformers_vit": "Hugging Face's ViT-Tiny, PyTorch",
    "transformers_segformer": "Hugging Face's SegFormer-B0, PyTorch",
    "transformers_bert": "Hugging Face's BERT with 4 layers, PyTorch",
    "nothing_to_quantize": "a softmax alone",
}


def one_call() -> list[str]:
    """Return the section on ``optimize``."""
    figures = load("one_call")
    rows = []
    for found in figures["models"]:
        if "skipped" in found:
            continue
        if "error" in found:
            rows.append([MODELS[found["name"]], "refused with a reason", "", "", "", ""])
            continue
        values = f"{found['float_value']:.4f}", f"{found['value']:.4f}"
        int8 = f"{found['int8_layers']} of {found['weighted_layers']}"
        seconds = f"{found['seconds'] - 2 * figures['seconds']:.0f} s"
        rows.append(
            [
                MODELS[found["name"]],
                int8,
                found["metric"],
                " → ".join(values),
                f"{found['speedup']:.2f}",
                seconds,
            ]
        )
    head = ["model", "INT8 layers", "metric", "float → INT8", "speedup", "time"]
    return [
        "## What does one call give?\n",
        block("uv run --group bench python benchmarks/one_call.py"),
        """`qat_lib.optimize(model, data, folder)` with no other decision; for ResNet-20 also test images and
labels. MobileNetV2 has ImageNet weights, and the weights of the others are random: their fidelity is measured
(1 minus the error of the outputs as a share of their standard deviation). Deep networks with random weights amplify
rounding, so their fidelity is low; YOLOv8n with trained weights follows below. The networks of torchvision,
Ultralytics, timm and Hugging Face ran with PyTorch 2.14.1;
the rows before timm's are of 2026-11-27. The speedup is that of batch 1 over the
float engine, in turns. The time covers quantization, calibration, correction, both builds, the checks and the report,
without the two seconds of measurement for each engine.
""",
        table(head, rows),
        measured(figures, "openvino"),
    ]


def ultralytics() -> list[str]:
    """Return the section on Ultralytics' export."""
    figures = load("ultralytics_export")
    rows = []
    for name, row in figures["rows"].items():
        cost = (
            [f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}"] if "seconds" in row else ["", ""]
        )
        values = [f"{row['map']:.3f}", f"{row['map50']:.3f}", f"{row['latency_ms']:.2f} ms"]
        rows.append([name, *values, *cost])
    return [
        "## How does one call compare with Ultralytics' export?\n",
        block("python benchmarks/ultralytics_export.py --json ultralytics_export.json"),
        f"""YOLOv8n, trained from random weights for 60 epochs on photographs of blood cells (BCCD)
with {figures["size"]} pixels. `YOLO(...).export(format="openvino", quantize=8, data=...)` and
`qat_lib.optimize(model, images, folder)` get the same 87 images for calibration; the validator of Ultralytics
measures all models on the 72 test images. Its INT8 result differs by up to 0.002 from run to run. Latencies are
medians of one image in OpenVINO, with float operations in FP32, in turns. The seconds of `optimize` include the float
engine, the checks of both engines, their latencies and the report; Ultralytics' command writes the INT8 model alone.
""",
        table(["model", "mAP 50-95", "mAP 50", "latency", "seconds", "CPU seconds"], rows),
        measured(figures, "ultralytics", "torch", "openvino", "nncf"),
    ]


QAT_STEP = """Ratios to the FP32 network's, batches of 16, each network in a separate process, in
turns; images of 96 pixels, 32 for ResNet-20. [Cost of a QAT step](../explanation/qat-cost.md) explains them.
In such turns, on Keras 2, NVIDIA's toolkit takes 1.9 to 2.1 times the FP32 step for ResNet-50 at 96 pixels,
1.2 to 1.4 for MobileNetV2 and 1.2 to 1.3 for ResNet-20, and TFMOT 3.2 to 3.8, 1.4 and 1.3 to 1.5.
"""


def networks() -> list[str]:
    """Return the section on keras.applications."""
    text = (RESULTS / "applications.md").read_text(encoding="utf-8")
    body = text.partition("\n\n")[2].replace("\n## ", "\n### ")
    return [
        "## Networks of keras.applications and keras_hub\n",
        block("uv run python benchmarks/applications.py"),
        body,
    ]
