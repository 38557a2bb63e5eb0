"""Sections of docs/reference/measurements.md on accuracy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from tables import block, load, measured, table

PUBLISHED = Path(__file__).with_name("published.json")
"""Results of other tools, in percent, with their sources."""


def digits() -> list[str]:
    """Return the section on accuracy over seeds."""
    figures = load("digits_seeds")
    names = {
        "fp32": "FP32 Keras",
        "fp32_engine": "FP32 engine",
        "ptq_engine": "PTQ engine",
        "qat_engine": "QAT engine",
    }
    rows = [
        [
            label,
            *(f"{row[name]:.2%}" for name in names),
            f"{100 * (row['qat_engine'] - row['fp32']):+.2f} pp",
        ]
        for label, row in [
            *((f"seed {seed}", row) for seed, row in figures["seeds"].items()),
            ("mean", figures["mean"]),
        ]
    ]
    return [
        "## Does INT8 cost accuracy?\n",
        block("uv run python benchmarks/digits_seeds.py"),
        "Five whole runs of the main job with its default config, each with its own split, weights and order.\n",
        table(["digits", *names.values(), "QAT engine against FP32 Keras"], rows),
        measured(figures, "tensorflow", "keras", "openvino"),
    ]


def photographs() -> list[str]:
    """Return the section on accuracy on CIFAR-10, by framework."""
    parts = ["## And on photographs?\n"]
    for file, option in {
        "cifar_accuracy": "",
        "cifar_accuracy_torch": " --framework torch",
    }.items():
        parts += _photographs(load(file), option)
    return parts


def _photographs(figures: dict[str, Any], option: str) -> list[str]:
    names = {
        "fp32": "FP32",
        "fp32_longer": "FP32, same training as QAT",
        "ptq_signed": "PTQ, signed",
        "ptq_unsigned": "PTQ, unsigned",
        "qat_signed": "QAT, signed",
        "qat_unsigned": "QAT, unsigned",
    }
    rows = [
        [f"seed {seed}", *(f"{row[name]:.2%}" for name in names)]
        for seed, row in figures["seeds"].items()
    ]
    if len(rows) > 1:
        rows.append(["mean", *(f"{figures['mean'][name]:.2%}" for name in names)])
    return [
        block(
            f"uv run python benchmarks/cifar_accuracy.py{option} --seeds {' '.join(figures['seeds'])}"
        ),
        f"A ResNet-20 in {'PyTorch' if option else 'Keras'}, with the weights of a public repository, on 10,000 "
        "training and 2,000 test images of CIFAR-10\n"
        f"that went through JPEG: fine-tuned in FP32 ({figures['epochs']} epochs), quantized, calibrated, fine-tuned "
        f"again\n({figures['epochs']} epochs). INT8 is the accuracy of the engine. Fine-tuning is training as well, so "
        "the second column is\nFP32 after as many epochs in all. With 2,000 images the standard error of each figure "
        f"is 0.8 points. {figures.get('note', '')}".rstrip()
        + "\n",
        table(["CIFAR-10", *names.values()], rows),
        measured(figures, "tensorflow", "keras", "openvino"),
    ]


def detection() -> list[str]:
    """Return the section on the quality of a detector in INT8."""
    figures = load("detection")
    height, width = figures["size"]
    times = figures["median_ms"].values()
    ratio = sum(each["PTQ"] for each in times) / sum(each["FP32"] for each in times)
    return [
        "## Does INT8 cost a detector boxes?\n",
        block(
            "uv run --group bench python benchmarks/detection.py "
            "--json benchmarks/results/detection.json"
        ),
        f"""The detector of `examples/tasks/mobilenet_networks.py`, a MobileNetV2 with ImageNet weights and a
feature pyramid, on photographs of blood cells (BCCD: 364 images, 4,888 boxes) of {height}x{width} pixels.
It is trained for {figures["epochs"]} epochs, calibrated with 32 images, and fine-tuned for
{figures["qat_epochs"]} epochs with quantizers and without. Boxes count from a score of
{figures["score_threshold"]}, by COCO's rules. The divergence is the root mean square error of the outputs
relative to FP32's. By default the output layers run in float, and the inputs of a concatenation share a range; two
rows change that. Latencies are those of batch 1 on one core, in turns: seeds 1 and 2 on a CPU with VNNI, where INT8
takes {ratio:.2f} times the time of FP32, and seed 0 on one without. Seeds: {", ".join(figures["seeds"])}.
""",
        table(
            ["engine", "mAP 50-95", "mAP 50", "divergence", "latency, VNNI", "without VNNI"],
            _quality_rows(figures, ("map", "map50"), ("median_ms", "median_ms_without_vnni")),
        ),
        measured(figures, "tensorflow", "openvino", "nncf"),
    ]


def segmentation() -> list[str]:
    """Return the section on the quality of a segmenter in INT8."""
    figures = load("segmentation")
    height, width = figures["size"]
    return [
        "## Does INT8 cost a segmenter pixels?\n",
        block(
            f"uv run --group bench python benchmarks/segmentation.py --size {height} {width} "
            f"--epochs {figures['epochs']} --qat-epochs {figures['qat_epochs']} "
            "--json benchmarks/results/segmentation.json"
        ),
        f"""The U-Net of `examples/tasks/mobilenet_networks.py` on MobileNetV2 with ImageNet weights, on street scenes
(CamVid: 367 training and 233 test images, 11 classes) of {height}x{width} pixels. Training, calibration, divergence and
latency are those of the detector above, with {figures["epochs"]} and {figures["qat_epochs"]} epochs. By default the
output layer is quantized here, and the inputs of a concatenation share a range; two rows change that.
Seeds: {", ".join(figures["seeds"])}.
""",
        table(
            ["engine", "mean IoU", "pixel accuracy", "divergence", "latency"],
            _quality_rows(figures, ("mean_iou", "pixel_accuracy"), ("median_ms",)),
        ),
        measured(figures, "tensorflow", "openvino", "nncf"),
    ]


def _quality_rows(
    figures: dict[str, Any], metrics: Sequence[str], latencies: Sequence[str]
) -> list[list[str]]:
    """Return a row for each engine with the means over the seeds."""
    seeds = figures["seeds"]
    rows = []
    for name in next(iter(seeds.values())):
        each = [rows[name] for rows in seeds.values()]
        cells = [f"{mean(row['engine'][metric] for row in each):.4f}" for metric in metrics]
        divergences = [row["divergence"] for row in each if "divergence" in row]
        cells.append(f"{mean(divergences):.4f}" if divergences else "-")
        for key in latencies:
            cells.append(f"{mean(times[name] for times in figures[key].values()):.1f} ms")
        rows.append([name, *cells])
    return rows


def recipes() -> list[str]:
    """Return the section on the gain of each part of QAT's recipe."""
    command = "uv run python benchmarks/qat_recipes.py --network {} --recipes {} --seeds {}"
    parts = ["## What is QAT's recipe worth?\n"]
    networks = {"qat_recipes": "resnet20", "qat_recipes_mobilenetv2": "mobilenetv2"}
    commands = [
        command.format("resnet20", '"labels, learned ranges"', "0 1 2 3 4 5"),
        command.format("mobilenetv2", '"labels, equalized"', "0 1 2"),
    ]
    parts.append(block("\n".join(commands)))
    parts.append(
        """Accuracy of the Keras networks on test images of CIFAR-10 that went through JPEG. FP32 was fine-tuned
on these images (2 epochs), and trained on like QAT (2 epochs); from the same weights, with
the same order, augmentation and schedule, QAT was run with each recipe. The last column is the mean
difference from FP32 with the same training, over the seeds that were measured. "Teaches" is distillation
with weight 0.5; "statistics again" re-estimates BatchNormalization, "averaged" has `ema` 0.99,
"equalized" starts from `qat_lib.equalize`, as the pipeline does around depthwise convolutions, "oscillation
frozen" has `freeze_oscillating` 0.02. W4A8 has 4-bit weights in every layer.
"""
    )
    for file, name in networks.items():
        figures = load(file)
        parts.append(figures["about"] + "\n")
        parts.append(_recipe_table(name, figures["seeds"]))
        for earlier in figures.get("earlier", []):
            parts += [earlier["about"] + "\n", _recipe_table(name, earlier["seeds"])]
        parts.append(measured(figures, "tensorflow", "keras"))
    return parts


def _recipe_table(network: str, seeds: dict[str, dict[str, float]]) -> str:
    """Return a row for each recipe, a column for each seed."""
    names: dict[str, None] = {}
    for row in seeds.values():
        names.update(dict.fromkeys(row))
    rows = []
    for name in names:
        cells, differences = [], []
        for row in seeds.values():
            cells.append(f"{row[name]:.2%}" if name in row else "-")
            if name in row:
                differences.append(100 * (row[name] - row["FP32, as long"]))
        rows.append([name, *cells, f"{sum(differences) / len(differences):+.2f} pp"])
    return table(
        [network, *(f"seed {seed}" for seed in seeds), "against FP32, same training"], rows
    )


def records() -> list[str]:
    """Return the section with published INT8 results of other tools beside ours."""
    cifar, mobile = (load(name)["mean"] for name in ("cifar_accuracy", "qat_recipes_mobilenetv2"))
    boxes = load("detection")
    rows = []
    for sign in ("signed", "unsigned"):
        shares = (cifar[name] for name in ("fp32_longer", f"ptq_{sign}", f"qat_{sign}"))
        what = [f"ResNet-20, {sign}", "CIFAR-10, top-1", "CPU, OpenVINO"]
        rows.append(["qatline", *what, *_change(*(100 * share for share in shares))])
        again = "statistics again"
        names = (f"FP32, as long, {again}", f"PTQ, {sign}", f"labels, equalized, {again}, {sign}")
        what = [f"MobileNetV2, {sign}", "CIFAR-10 at 96 pixels, top-1", "simulation"]
        rows.append(["qatline", *what, *_change(*(100 * mobile[name] for name in names))])
    means = []
    for name in ("FP32, as long as QAT", "PTQ", "QAT"):
        found = [seed[name]["engine"][boxes["metric"]] for seed in boxes["seeds"].values()]
        means.append(100 * sum(found) / len(found))
    what = ["MobileNetV2 with a feature pyramid", "BCCD, mAP 50-95", "CPU, OpenVINO"]
    rows.append(["qatline", *what, *_change(*means)])
    for row in json.loads(PUBLISHED.read_text(encoding="utf-8")):
        where = [f"[{row['tool']}]({row['source']})", row["network"], row["data"], row["run on"]]
        rows.append([*where, *_change(row["FP32"], row.get("PTQ"), row["QAT"])])
    return [
        "## Where do others stand?\n",
        f"""INT8 results that other tools publish, as of November 2026, and our own from the sections
above. They aren't a ranking: networks, data and hardware differ.

- Our FP32 is a control with the same further training as QAT. The others compare with the network before QAT, so
  their difference includes the gain of further training.
- Our data sets are small: 2,000 test images of CIFAR-10 (standard error 0.8 to 1 points), and BCCD's test images.
  These are means over seeds 0, 1 and 2; seeds of the detector: {", ".join(boxes["seeds"])}.
- *Simulation* is fake quantization in the framework. YOLOv7's PTQ is TensorRT's own entropy calibration.
- Embedl publishes a [MobileViT-small](https://huggingface.co/embedl/mobilevit-small-quantized) within 3.30 points of
  FP32 on ImageNet. For QAT with Ultralytics or ModelOpt on convolutional networks no table of results was found.
""",
        table(["tool", "network", "data", "run on", "FP32", "PTQ", "QAT", "QAT - FP32"], rows),
    ]


def _change(fp32: float, ptq: float | None, qat: float) -> list[str]:
    """Return the cells of three percentages and the change by QAT."""
    return [f"{fp32:.2f}", "-" if ptq is None else f"{ptq:.2f}", f"{qat:.2f}", f"{qat - fp32:+.2f}"]


NETWORKS = {
    "MobileNetV2": "ptq_agreement",
    "EfficientNet-Lite0": "ptq_agreement_efficientnet_lite0",
    "ResNet-20": "ptq_agreement_resnet20",
    "ResNet-20, SiLU": "ptq_agreement_resnet20_silu",
}
"""Result files of the comparison without training, by network."""


def agreement() -> list[str]:
    """Return the comparison of INT8 without training with other tools."""
    found = {network: load(name) for network, name in NETWORKS.items()}
    figures = found["MobileNetV2"]
    rows = []
    for name, row in figures["rows"].items():
        others = [each["rows"][name] for each in found.values()]
        cells = [f"{100 * other['kl']:.2f} ({other['agreement']:.1f}%)" for other in others]
        rows.append([name, *cells, f"{row['cpu_seconds']:.0f}"])
    return [
        "## How close is INT8 without training?\n",
        block(
            "uv run --group bench python benchmarks/ptq_agreement.py "
            "--json benchmarks/results/ptq_agreement.json\n"
            "uv run --group bench python benchmarks/ptq_agreement.py --network efficientnet_lite0\n"
            "uv run --group bench python benchmarks/ptq_agreement.py --network resnet20 --images 2000\n"
            "uv run --group bench python benchmarks/ptq_agreement.py --network resnet20_silu --images 2000"
        ),
        f"""Trained networks, calibrated on {figures["calibration"]} images and compared with FP32 on others: the mean
Kullback-Leibler divergence from FP32's probabilities, times 100, and the share of images with FP32's label. The first
row of each sign is the default of command line and pipeline. TensorRT runs signed integers; NNCF and ONNX Runtime
quantize for CPUs here. ONNX Runtime's models run in ONNX Runtime, all others in OpenVINO.

MobileNetV2 and EfficientNet-Lite0 (from the Python Package Index; no default was developed with it) have ImageNet
weights. Half of their {figures["images"]} images are photographs of CIFAR-10 enlarged to 224 pixels, which leave the
networks unsure, half are crops of the two photographs that scikit-learn brings (of both there are crops in either set).
ResNet-20 has CIFAR-10 weights and {found["ResNet-20"]["images"]:,} images of 32 pixels; its form with SiLU for ReLU was
trained on CIFAR-10 images from these weights first, to 86 % accuracy.
""",
        table(["KL divergence x 100", *NETWORKS, "CPU seconds, MobileNetV2"], rows),
        measured(figures, "tensorflow", "openvino", "nncf", "onnxruntime"),
    ]


def tensorrt() -> list[str]:
    """Return the section on TensorRT engines."""
    figures = load("tensorrt_engines")
    names = {
        "fp32": "FP32",
        "fp16": "FP16",
        "modelopt": "INT8, ModelOpt",
        "qatline": "INT8, qatline",
    }
    networks = {
        "resnet20": "ResNet-20",
        "efficientnet_lite0": "EfficientNet-Lite0",
        "mobilenetv2": "MobileNetV2",
    }
    rows = []
    for network, engines in figures["networks"].items():
        for key, name in names.items():
            row = engines[key]
            latency = [each["compute"]["p50"] for each in row["latency"]]
            rows.append(
                [
                    networks[network],
                    name,
                    *(f"{each:.3f} ms" for each in latency),
                    f"{row['bytes'] / 1e6:.1f} MB",
                    f"{100 * row['kl']:.2f}",
                    f"{row['agreement']:.1f}%",
                ]
            )
    found = figures["networks"]["resnet20"]["qatline"]
    layers = found["precision_of_layers"]
    int8 = f"{layers['int8_layers']} of the {layers['weighted_layers']} layers"
    right = {what: _hits(found["prediction"], what) for what in ("precision", "output", "add")}
    exact = [
        f"{networks[network]} {100 * tools['qatline']['kl']:.2f} ({100 * tools['modelopt']['kl']:.2f})"
        for network, tools in figures["exact"].items()
    ]
    checks = [
        row["check"]["passed"] for each in figures["networks"].values() for row in each.values()
    ]
    where = f"TensorRT {figures['tensorrt']} on an {figures['device']['name']}"
    return [
        "## TensorRT on a GPU\n",
        block(
            "uv run python benchmarks/tensorrt_engines.py prepare FOLDER --modelopt PYTHON\n"
            "python benchmarks/tensorrt_engines.py measure FOLDER "
            "--json benchmarks/results/tensorrt_engines.json"
        ),
        f"""Engines of {where}: median time on the GPU without copies,
and the distance from FP32 in ONNX Runtime on images that the calibration did not see (ResNet-20: 1,000 photographs of
CIFAR-10; EfficientNet-Lite0: 200 images as in the section above). ModelOpt is NVIDIA's quantizer for ONNX files, with
its defaults and the same 200 calibration images. Floating-point layers of INT8 engines run in FP16.
{sum(checks)} of {len(checks)} engines passed the comparison with ONNX Runtime. Each latency was
measured for half a second (ResNet-20) or a second.

TensorRT runs {int8} of qatline's ResNet-20 in INT8. `analyze` had predicted the precision of
{right["precision"]}, the output type of {right["output"]} and {right["add"]} fused Adds. The
other two layers write FP16, because their shortcut pads channels, which TensorRT 8.6 does in FP16.

The same files in exact arithmetic (ONNX Runtime without optimizations), KL x 100, ModelOpt's in brackets:
{"; ".join(exact)}. Engines of MobileNetV2 were not measured.
""",
        table(["network", "engine", "batch 1", "batch 32", "size", "KL x 100", "same label"], rows),
        f"Measured {figures['measured']['day']}.\n",
    ]


def _hits(scores: dict[str, Any], what: str) -> str:
    """Return the share of right predictions as a count."""
    total = scores["scored"][what]
    return f"{scores[f'{what}_score'] * total:.0f} of {total}"


def without_vnni() -> list[str]:
    """Return the section on CPUs without VNNI."""
    figures = load("without_vnni")
    head = [
        *("same label", "KL divergence", "OpenVINO, VNNI: KL", "speed"),
        *("without VNNI: same label", "KL", "speed", "ONNX Runtime: KL", "speed"),
    ]
    sections = [
        "## INT8 on CPUs without VNNI\n",
        block(
            "uv run --group bench python benchmarks/without_vnni.py "
            "--json benchmarks/results/without_vnni.json"
        ),
        """x86 CPUs without VNNI and AMX add pairs of 8-bit products in 16 bits, with saturation. Ways around it,
quantized without training and compared with FP32. *Room for pairs* is the plan for such CPUs (`--cpu avx2`), with the
first layer in float if it reads an image; *8 bits* is the plan for others. The first two columns are exact
arithmetic: ONNX Runtime without optimizations. OpenVINO runs the files as they are; `build_engine` would run the
layers that can overflow in float32. Speed is the processor time of FP32 over that of INT8 in the same backend, with
one image and one thread. The CPU without VNNI is emulated (`ONEDNN_MAX_CPU_ISA=AVX2`). ONNX Runtime does not obey that
variable and ran with VNNI. Empty cells were not measured.
""",
    ]
    for name, network in figures["networks"].items():
        rows = []
        for way, row in network["rows"].items():
            if way != "FP32":
                rows.append([way, *_with_and_without(row)])
        images = f"{network['images']} images, calibrated on {network['calibration']}"
        sections += [f"{name}, {images}:\n", table(["way", *head], rows)]
    return [*sections, measured(figures, "tensorflow", "openvino", "nncf", "onnxruntime")]


def _with_and_without(row: dict[str, Any]) -> list[str]:
    cells = []
    for place, keys in (
        ("exact", ("agreement", "kl")),
        ("vnni", ("kl", "speed")),
        ("avx2", ("agreement", "kl", "speed")),
        ("onnxruntime", ("kl", "speed")),
    ):
        forms = {"agreement": "{:.1f}%", "kl": "{:.4f}", "speed": "{:.2f}"}
        found = row.get(place)
        cells += ["" if found is None else forms[key].format(found[key]) for key in keys]
    return cells


def few_bits() -> list[str]:
    """Return the section on 4-bit weights without training."""
    figures = load("few_bits")
    names = {"nearest": "to nearest, biases corrected", "adaround": "`adaround`"}
    rows = []
    for name, row in figures["rows"].items():
        agrees, seconds = f"{row['agreement']:.1f}%", f"{row['cpu_seconds']:.0f}"
        rows.append([names[name], agrees, f"{row['kl']:.4f}", seconds, str(row["samples"])])
    return [
        "## And with 4-bit weights?\n",
        block("uv run --group bench python benchmarks/few_bits.py"),
        f"The same MobileNetV2, equalized, with 4-bit weights but in the first and the last layer, which have 8, and\n"
        f"8-bit unsigned activations, on {figures['images']} of the images. In Keras; no engine here runs 4-bit "
        "convolutions.\n",
        table(["weights rounded", "same label", "KL divergence", "CPU seconds", "on images"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def calibration() -> list[str]:
    """Return the section on the cost of calibration."""
    figures = load("calibration_cost")
    rows = []
    for name, row in figures["networks"].items():
        cells = [f"{row['calibrate']['cpu_seconds']:.1f}"]
        for way in ("forward", "predict_anew", "predict"):
            cells.append(f"{row[way]['cpu_seconds']:.1f} ({row[way]['ratio']:.2f})")
        rows.append([f"{name}, {row['pixels']} pixels", *cells])
    head = ["CPU seconds", "`calibrate`", "calls of the model", "`predict`, new graph"]
    return [
        "## What does calibration cost?\n",
        block("uv run --group bench python benchmarks/calibration_cost.py"),
        f"{figures['images']} images in batches of {figures['batch']}, medians of {figures['turns']} turns. "
        "The others pass the same\nimages through the float model; in brackets what `calibrate` costs "
        "against each. `calibrate` makes a new graph each\ntime, as the first `predict` of a model does.\n",
        table([*head, "`predict`, graph at hand"], rows),
        measured(figures, "tensorflow", "keras"),
    ]


def _points(row: dict[str, float]) -> str:
    """Return the accuracy against FP32 with its standard error, as far as they were noted."""
    if "points" not in row:
        return "-"
    error = f" ± {row['points_error']:.2f}" if "points_error" in row else ""
    return f"{row['points']:+.2f}{error}"


def ranges() -> list[str]:
    """Return the section on range methods."""
    figures = load("calibrators")
    parts = []
    for name, network in figures["networks"].items():
        is_labelled = "fp32_accuracy" in network
        head = ["KL, first half", "KL, second half", "KL against 99.99", "same label"]
        rows = []
        for sign in ("unsigned", "signed", "4-bit weights"):
            for method, row in network.get(sign, {}).items():
                cells = [f"{row['kl_first_half']:.4f}", f"{row['kl_second_half']:.4f}"]
                cells.append(f"{row['difference']:+.4f} ± {row['difference_error']:.4f}")
                cells.append(f"{row['agreement']:.1f}%")
                if is_labelled:
                    cells.append(_points(row))
                rows.append([f"{sign}, {method}", *cells])
        if is_labelled:
            head.append(f"points against FP32 ({network['fp32_accuracy']:.1f}%)")
        parts.append(
            f"{name}: calibrated on {network['calibration']} images, compared on "
            f"{network['images']} others.\n"
        )
        parts.append(table(["range method", *head], rows))
    return [
        "## Which range method?\n",
        block("uv run --group bench python benchmarks/calibrators.py --few-bits"),
        CALIBRATORS,
        *parts,
        measured(figures, "tensorflow", "keras"),
    ]


CALIBRATORS = """Equalized where that is the default, with corrected biases, in Keras. KL is the mean divergence from
FP32's class probabilities; "±" is the standard error of the paired difference from the percentile of 99.99. The images
are cut in two halves: a method that was chosen on one can be judged on the other. The MobileNetV2 for CIFAR-10 was
fine-tuned there at 96 pixels, as in `qat_recipes.py`, twice: the signed rows of the first stand against its own
reference, of which the KL is 0.0102. 4-bit weights have unsigned activations, and 8 bits in the first
and the last layer. All rows were copied from printed tables of four decimals. `auto`, the default, is ahead of the
percentile in all six comparisons; the gain is above two standard errors on ResNet-20, and on MobileNetV2 for CIFAR-10
where signed. `mse` alone gains nothing in two of the six.

An earlier `auto` tried five ranges of each tensor on 8 samples, by the error of the layers that read it.
Within the errors that gained as much (ResNet-20: -0.0018 unsigned, -0.0004 signed; MobileNetV2, ImageNet: -0.0039,
-0.0022), and a calibration on 200 images cost 1.5 times that by a percentile.
"""


def _searches(rows: list[list[str]], figures: dict[str, Any]) -> list[str]:
    count = figures["search"][0]["placements"]
    return [
        f"`search` on a small network with two planted channels, not equalized, against all {count} placements:\n",
        table(["largest drop", "fewest in float", "found", "placements tried", "drop"], rows),
    ]


def diagnosis() -> list[str]:
    """Return the section on diagnosis and search."""
    figures = load("diagnose")
    rows = []
    for name, row in figures["networks"].items():
        hits = sum(row["planted"].values())
        counts = [f"{hits} of {len(row['planted'])}", str(row["layers"]), str(row["samples"])]
        rows.append([name, *counts, f"{row['cpu_seconds']:.0f}"])
    searches = []
    for row in figures.get("search", ()):
        counts = [str(row[key]) for key in ("fewest", "found", "tried")]
        searches.append([f"{row['max_drop']:.0%}", *counts, f"{row['drop']:.2%}"])
    return [
        "## Does a diagnosis find the bad layer?\n",
        block("uv run --group bench python benchmarks/diagnose.py"),
        f"A channel is made {figures['factor']:.0f} times as large and divided out where it is read: planted faults "
        "that `diagnose`\nnames first, with layer, channel and cause; and the CPU seconds of a whole diagnosis of the "
        f"network as it came,\nwith quantization and calibration on {figures['calibration']} images.\n",
        table(["network", "named first", "layers", "samples", "CPU seconds"], rows),
        *(_searches(searches, figures) if searches else ()),
        measured(figures, "tensorflow", "keras"),
    ]


def faults() -> list[str]:
    """Return the section on planted faults, by kind of CPU."""
    files = {
        "with VNNI": load("engine_faults"),
        "without VNNI": load("engine_faults_without_vnni"),
    }
    rows = []
    for kind, figures in files.items():
        names = dict.fromkeys(row["network"] for row in figures["rows"])
        for name in names:
            planted = [row for row in figures["rows"] if row["network"] == name]
            rows.append([f"{name}, CPU {kind}", *_caught(planted)])
        rows.append([f"all, CPU {kind}", *_caught(figures["rows"])])
    command = "uv run --group bench python benchmarks/engine_faults.py digits resnet20 mobilenetv2"
    return [
        "## Which wrong engines are refused?\n",
        block(f"{command}\nONEDNN_MAX_CPU_ISA=AVX2 {command}"),
        FAULTS,
        table(["network", "faults", "refused", "costly", "costly and accepted"], rows),
        measured(files["with VNNI"], "openvino", "onnxruntime", "tensorflow"),
    ]


def _caught(rows: list[dict[str, Any]]) -> list[str]:
    faults = [row for row in rows if row["fault"] != "honest"]
    passed = [row for row in faults if not row["build"] and not row["check"]]
    costly = [[row for row in part if row["change"] < -COSTLY] for part in (faults, passed)]
    counts = (len(faults), len(faults) - len(passed), *map(len, costly))
    return list(map(str, counts))


COSTLY = 0.5
FAULTS = """Faults between an ONNX file and its OpenVINO engine, as a backend that computes wrongly makes
them: in the weights of eight layers (scale times 1.2, a channel of median norm zeroed or swapped with the
next, noise of up to 20 steps), all biases zero, ReLUs removed, zero points moved by 3, scales of
activations times 1.2. An engine is refused if `build-engine` does so, or `check-engine` with real inputs.
A fault is costly if it takes more than half a point of accuracy on these inputs. All unchanged engines
were accepted.

The accuracy of MobileNetV2 is agreement with FP32's labels on 200 images, of which `check-engine` gets 96. Rounding
alone changes some of these labels, so a fault that is accepted is costly if it takes half a point in the mean over 16
dithered copies of the images.
"""
