"""Cost of a QAT step against the FP32 step of the same model.

Each model trains in a process of its own; the processes take turns, round by round, so that a busy
machine slows both. A ratio is that of two neighbouring turns; medians and quartiles over the rounds
are shown. Besides: peak memory, seconds of the first step (tracing included), inference as it is
and with the weights quantized once (``qat_lib.folded_weights``), and the floor: the bytes that
quantizers must read and write in a step, over those of the FP32 layers (Keras only).

With ``--framework torch``, PyTorch's own tools take part: ``fx`` is ``torch.ao.quantization``'s graph
mode, ``pt2e`` is torchao's export mode. torchao is no dependency; ``--packages`` names a folder
with it::

    pip install --target /tmp/packages --no-deps torchao
    uv run python benchmarks/qat_step.py --framework torch --packages /tmp/packages
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORKS = {"resnet20": 32, "mobilenetv2": 96, "resnet50": 96}
"""Side of the images in pixels by network."""

KINDS = ("fp32", "frozen", "ema", "learned")
"""The FP32 model, and the quantized one by the policy of its activation ranges."""

OTHERS = ("fx", "pt2e")
"""Fake quantization by PyTorch's own tools."""


def main() -> None:
    """Measure the chosen networks and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", default="keras", choices=("keras", "torch"))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--policies", nargs="+", choices=KINDS[1:] + OTHERS)
    parser.add_argument("--packages", help="Folder of further packages, for torchao.")
    parser.add_argument(
        "--device",
        default="cpu",
        help="PyTorch's device. On cuda, step_cpu and memory are those of the host.",
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--steps",
        type=int,
        default=4,
        help="Steps in a turn, and a quarter of its calls in inference. Default: 4.",
    )
    parser.add_argument(
        "--starts", type=int, default=1, help="Processes of a kind, for the first step. Default: 1."
    )
    parser.add_argument("--xla", action="store_true", help="Compile the whole step with XLA.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    is_torch = arguments.framework == "torch"
    arguments.networks = arguments.networks or list(NETWORKS)[: 2 if is_torch else 3]
    if not arguments.policies:
        others = () if not is_torch else OTHERS if arguments.packages else OTHERS[:1]
        arguments.policies = [*KINDS[1:], *others]
    rows = []
    for network in arguments.networks:
        for row in compare(network, arguments):
            rows.append(row)
            sys.stdout.write(f"{_line(row)}\n")
            sys.stdout.flush()
    if arguments.json:
        import record

        sizes = {"batch_size": arguments.batch_size, "device": arguments.device}
        record.write(arguments.json, {**sizes, "rows": rows})


class Turns:
    """A process that trains one model and times its steps on request."""

    def __init__(self, network: str, kind: str, arguments: argparse.Namespace) -> None:
        task = {
            "network": network,
            "kind": kind,
            "framework": arguments.framework,
            "packages": arguments.packages,
            "batch_size": arguments.batch_size,
            "device": arguments.device,
            "xla": arguments.xla,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.first_step = self._answer()

    def take(self, what: str, steps: int) -> dict[str, float]:
        """Return wall and CPU seconds of ``steps`` steps of ``train``, ``infer`` or ``fold``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {steps}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> float:
        """End the process; return its peak memory in MiB."""
        peak = self.take("end", 0)["peak_mib"]
        self._process.wait()
        return peak

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("The training process ended early.")
        answer: dict[str, float] = json.loads(line)
        return answer


def compare(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each policy."""
    starts = [first_steps(network, arguments) for _ in range(arguments.starts - 1)]
    workers = {kind: Turns(network, kind, arguments) for kind in ("fp32", *arguments.policies)}
    ratios: dict[str, dict[str, list[float]]] = {
        kind: {"wall": [], "cpu": [], "infer": [], "fold": []} for kind in arguments.policies
    }
    # The CPU doesn't compute the steps of a GPU.
    clock = "cpu" if arguments.device == "cpu" else "wall"
    for _ in range(arguments.rounds):
        train = {kind: each.take("train", arguments.steps) for kind, each in workers.items()}
        infer = {kind: each.take("infer", arguments.steps) for kind, each in workers.items()}
        fold = {kind: workers[kind].take("fold", arguments.steps) for kind in ratios}
        for kind, found in ratios.items():
            found["wall"].append(train[kind]["wall"] / train["fp32"]["wall"])
            found["cpu"].append(train[kind]["cpu"] / train["fp32"]["cpu"])
            found["infer"].append(infer[kind][clock] / infer["fp32"][clock])
            found["fold"].append(fold[kind][clock] / infer["fp32"][clock])
    peaks = {kind: each.end() for kind, each in workers.items()}
    base = workers["fp32"].first_step
    starts.append({kind: each.first_step["cpu"] for kind, each in workers.items()})
    rows = []
    for kind, found in ratios.items():
        first = workers[kind].first_step
        rows.append(
            {
                "network": network,
                "policy": kind,
                "step": quartiles(found["wall"]),
                "step_cpu": quartiles(found["cpu"]),
                "inference_cpu": quartiles(found["infer"]),
                "folded_inference_cpu": quartiles(found["fold"]),
                "memory": peaks[kind] / peaks["fp32"],
                "memory_over_idle": (peaks[kind] - first["idle_mib"])
                / (peaks["fp32"] - base["idle_mib"]),
                "first_step": statistics.median(each[kind] / each["fp32"] for each in starts),
                "first_step_seconds": statistics.median(each[kind] for each in starts),
            }
        )
        if "layer_mib" in base:
            rows[-1] |= {
                "floor": first["quantizer_mib"] / base["layer_mib"],
                "quantizer_mib": round(first["quantizer_mib"], 1),
                "layer_mib": round(base["layer_mib"], 1),
            }
    return rows


def first_steps(network: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the CPU seconds of each kind's first step, each in a new process."""
    seconds = {}
    for kind in ("fp32", *arguments.policies):
        process = Turns(network, kind, arguments)
        seconds[kind] = process.first_step["cpu"]
        process.end()
    return seconds


def quartiles(values: list[float]) -> list[float]:
    """Return lower quartile, median and upper quartile."""
    if len(values) == 1:
        return values * 3
    return [round(value, 4) for value in statistics.quantiles(values, n=4, method="inclusive")]


def _line(row: dict[str, Any]) -> str:
    low, median, high = row["step"]
    return (
        f"{row['network']:<12} {row['policy']:<8} step {median:.2f} ({low:.2f}-{high:.2f}), "
        f"CPU {row['step_cpu'][1]:.2f}, inference {row['inference_cpu'][1]:.2f} "
        f"({row['folded_inference_cpu'][1]:.2f} folded), memory "
        f"{row['memory']:.2f} ({row['memory_over_idle']:.2f} over idle), first step "
        f"{row['first_step']:.2f} ({row['first_step_seconds']:.1f} CPU s), floor "
        f"{row.get('floor', float('nan')):.2f}"
    )


def work(task: dict[str, Any]) -> None:
    """Train in this process; one line of JSON for each request."""
    import resource
    import time

    if task["packages"]:
        sys.path.append(task["packages"])
    make = torch_worker if task["framework"] == "torch" else keras_worker
    worker = make(task)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    idle = peak()

    def steps(what: str, count: int) -> dict[str, float]:
        if what == "train":
            return timed(worker.train, count)
        # Shorter than a step, so that waking up would count: one untimed, then more of them.
        worker.infer()
        return timed(worker.infer, 4 * count)

    def timed(step: Callable[[], Any], count: int) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"wall": wall, "cpu": cpu}

    first = steps("train", 1) | {"idle_mib": idle} | worker.traffic()
    steps("infer", 1)
    steps("train", 2)
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        if what == "fold":
            with worker.folded():
                answer = steps(what, int(count))
        else:
            answer = {"peak_mib": peak()} if what == "end" else steps(what, int(count))
        print(json.dumps(answer), flush=True)
        if what == "end":
            return


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A model of one framework: a training step and inference on a batch."""

    train: Callable[[], Any]
    infer: Callable[[], Any]
    folded: Callable[[], AbstractContextManager[Any]]
    traffic: Callable[[], dict[str, float]]


def keras_worker(task: dict[str, Any]) -> Worker:
    """Return the Keras model of a task."""
    import keras
    import numpy as np
    import tensorflow as tf

    import qat_lib

    side, batch = NETWORKS[task["network"]], task["batch_size"]
    model = build(task["network"], side)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, side, side, 3)).astype("float32")
    y = rng.integers(0, 10, batch)
    if task["kind"] != "fp32":
        model = quantized(model, task["kind"], x)
    model.compile(
        keras.optimizers.SGD(1e-4, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=task["xla"],
    )
    model.make_train_function()
    images = tf.constant(x)
    infer = tf.function(lambda batch: model(batch, training=False), jit_compile=task["xla"])
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat().prefetch(2))
    return Worker(
        train=lambda: model.train_function(data),
        infer=lambda: infer(images),
        folded=lambda: qat_lib.folded_weights(model),
        traffic=lambda: moved_mib(model, batch),
    )


def torch_worker(task: dict[str, Any]) -> Worker:
    """Return the PyTorch model of a task."""
    import torch

    from qat_lib.torch import folded_weights

    torch.manual_seed(0)
    torch.set_num_threads(1)  # waiting threads of a busy machine would spin and count
    side, batch = NETWORKS[task["network"]], task["batch_size"]
    device = torch.device(task["device"])
    x = torch.randn(batch, 3, side, side).to(device)
    y = torch.randint(0, 10, (batch,)).to(device)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    model, modes = torch_model(task["network"], task["kind"], x)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def train() -> None:
        modes(True)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        wait()

    def infer() -> None:
        modes(False)
        with torch.no_grad():
            model(x)
        wait()

    ours = task["kind"] in KINDS[1:]
    return Worker(
        train=train,
        infer=infer,
        folded=lambda: folded_weights(model) if ours else contextlib.nullcontext(),
        traffic=dict,
    )


def torch_model(network: str, kind: str, x: Any) -> tuple[Any, Callable[[bool], Any]]:
    """Return an untrained model for ten classes, and its switch between training and inference."""
    import torch

    from qat_lib.torch import apply_plan, calibrate, plan_quantization
    from qat_lib.torch.models import mobilenet_v2, resnet20_cifar10

    model = resnet20_cifar10() if network == "resnet20" else mobilenet_v2(classes=10)
    model.to(x.device)
    if kind == "fx":
        from torch.ao.quantization import get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_qat_fx

        model = prepare_qat_fx(model.train(), get_default_qat_qconfig_mapping("x86"), (x,))
    elif kind == "pt2e":
        from torchao.quantization.pt2e import (
            move_exported_model_to_eval,
            move_exported_model_to_train,
        )
        from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=True))
        model = prepare_qat_pt2e(torch.export.export(model.train(), (x,)).module(), quantizer)
        # An exported graph has its mode in its operators; ``train()`` doesn't reach them.
        return (
            model,
            lambda training: (
                move_exported_model_to_train(model)
                if training
                else move_exported_model_to_eval(model)
            ),
        )
    elif kind != "fp32":
        plan = plan_quantization(model, "full", None, "auto")
        model = apply_plan(model, plan.with_range_policy(kind))
        if kind != "ema":
            calibrate(model, x, method="max")
    return model, model.train


def moved_mib(model: Any, batch: int) -> dict[str, float]:
    """Return the least traffic of a step with memory, of the layers and of the quantizers.

    A tensor is written and read, its gradient as well, and it is read once more for that: five
    times four bytes an element. A quantizer reads and writes in the forward pass and reads two
    tensors and writes one in the backward pass: five times. A weight is read twice, its gradient
    written and read, its momentum and itself updated: seven times; its quantizer reads it for the
    range, reads and writes it for the values: three times.
    """
    import math

    from qat_lib import TensorQuantizer

    moved = {"layer_mib": 0.0, "quantizer_mib": 0.0}
    for layer in model.layers:
        kind = "quantizer_mib" if isinstance(layer, TensorQuantizer) else "layer_mib"
        for node in layer._inbound_nodes:
            for output in node.output_tensors:
                moved[kind] += 5 * 4 * batch * math.prod(output.shape[1:]) / 2**20
        for quantizer in getattr(layer, "weight_quantizers", ()):
            moved["quantizer_mib"] += 3 * 4 * quantizer.weight.value.shape.num_elements() / 2**20
    moved["layer_mib"] += 7 * 4 * model.count_params() / 2**20
    return moved


def build(network: str, side: int) -> Any:
    """Build an untrained network for ten classes, which gives logits."""
    import keras

    from qat_lib.models import mobilenetv2_imagenet, resnet20_cifar10

    if network == "resnet20":
        return resnet20_cifar10()
    if network == "mobilenetv2":
        return mobilenetv2_imagenet(input_shape=(side, side, 3), classes=10)
    return keras.applications.ResNet50(
        weights=None, input_shape=(side, side, 3), classes=10, classifier_activation=None
    )


def quantized(model: Any, policy: str, x: Any) -> Any:
    """Quantize with the library's placement; calibrate unless the ranges follow the data."""
    import qat_lib

    plan = qat_lib.plan_quantization(model, "full", None, [qat_lib.TensorRTQDQCase()])
    made = qat_lib.apply_plan(model, plan.with_range_policy(policy))
    if policy != "ema":
        qat_lib.calibrate(made, x, method="max")
    return made


if __name__ == "__main__":
    main()
