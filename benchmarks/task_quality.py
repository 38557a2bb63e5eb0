"""Quality of FP32, PTQ and QAT on real data, for ``detection.py`` and ``segmentation.py``.

For each seed the FP32 network is trained, and trained on for as many epochs as QAT: that is the
control. The trained network is quantized with each variant of ``PtqRecipe`` and by NNCF; QAT starts
from the default variant. The task's own evaluator measures the Keras network, its ONNX file in ONNX
Runtime without optimizations, and its engine in OpenVINO. Divergence is the relative root mean
square error of the outputs, compared with the engine of the same FP32 network. Engines answer in
turns for the latency. Trained networks and finished rows are kept in ``--work``, so that the command
can be stopped and started again, or repeated with ``ONEDNN_MAX_CPU_ISA=AVX2`` on a CPU with VNNI.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import openvino
import ptq_agreement
import record
from applications_images import SHARED

import qat_lib
from qat_lib.engines import BuildSpec, build_engine, cpu_kind, load_engine
from qat_lib.engines.onnxruntime import reference_session
from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split, numpy_batches
from qatline.components.settings import (
    DataSettings,
    PreprocessingSettings,
    QATSettings,
    TaskSettings,
    TrainingSettings,
)
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress
from qatline.components.tasks import joined, open_task
from qatline.components.training import fitting

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "tasks"))

WEIGHTS = SHARED / "mobilenetv2_imagenet.npz"
PREPROCESSING = PreprocessingSettings(
    mean=ptq_agreement.MEAN.tolist(), std=ptq_agreement.SPREAD.tolist()
)
BATCH = 8
FP32 = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
INT8 = {**FP32, "SNIPPETS_MODE": "DISABLE"}
"""Options of OpenVINO as in ``build_engine``; without snippets, residual Adds fuse."""

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to quantize: float or quantized output layers, tied or untied Concatenates."""

    float_outputs: bool
    tied: bool = True


@dataclass(frozen=True, kw_only=True)
class Study:
    """A data set with its network, task and variants.

    Attributes:
        data: settings of the data, without the size of the images.
        build: builds the network from input shape, number of classes and weights.
        task: settings of the task.
        metric: the metric that is printed.
        variants: variants by name, the default one first.
        augment: augmentation of all trainings.
        learning_rate: of the FP32 training; QAT and the control take a tenth.
    """

    data: Mapping[str, Any]
    build: Callable[..., Any]
    task: TaskSettings
    metric: str
    variants: Mapping[str, Variant]
    augment: str
    learning_rate: float = 1e-3
    about: Mapping[str, Any] = field(default_factory=dict)


class Trial:
    """The networks of one seed.

    Args:
        study: data and network.
        arguments: of the command line.
        seed: seed of initialization, order and augmentation.
    """

    def __init__(self, study: Study, arguments: argparse.Namespace, seed: int) -> None:
        self.study, self._arguments, self._seed = study, arguments, seed
        height, width = arguments.size
        self._work = arguments.work / f"{height}x{width}"
        self.folder = self._work / f"{seed}_{arguments.epochs}_{arguments.qat_epochs}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows_file = self.folder / f"rows_{cpu_kind()}.json"

    @cached_property
    def data(self) -> Path:
        """Folder of the prepared data."""
        folder = self._work / "data"
        if not (folder / Dataset.INFO).is_file():
            folder.mkdir(exist_ok=True)
            options = {"image_size": self._arguments.size, "preprocessing": PREPROCESSING}
            settings = DataSettings(calibration_samples=32, **options, **self.study.data)
            task = self.study.task
            prepare_data_step(folder, data=settings, seed=0, progress=NullProgress(), task=task)
        return folder

    @cached_property
    def task(self) -> Any:
        """The task of the data."""
        return open_task(Dataset(self.data).info())

    @cached_property
    def calibration(self) -> np.ndarray:
        """Inputs to calibrate with."""
        return np.asarray(load_split(self.data, "calibration")[0])

    def test(self) -> Iterator[np.ndarray]:
        """Yield the batches of the test inputs."""
        return (x for x, _ in numpy_batches(self.data, "test", BATCH))

    def baseline(self) -> Any:
        """Return the trained FP32 network."""
        epochs, rate = self._arguments.epochs, self.study.learning_rate
        schedule = TrainingSettings(
            epochs=epochs, batch_size=BATCH, learning_rate=rate, augment=self.study.augment
        )
        return self._kept("baseline", lambda: self._fit(self._new(), schedule))

    def control(self) -> Any:
        """Return the FP32 network that was trained on for as long as QAT."""
        return self._kept("control", lambda: self._fit(self.baseline(), self._qat))

    def trained(self) -> Any:
        """Return the network after QAT."""
        variant = next(iter(self.study.variants.values()))
        return self._kept("qat", lambda: self._fit(self.quantized(variant), self._qat))

    def quantized(self, variant: Variant) -> Any:
        """Return the quantized and calibrated FP32 network."""
        case = qat_lib.TensorRTQDQCase(float_outputs=variant.float_outputs)
        recipe = qat_lib.PtqRecipe(backend="openvino", cases=[case], batch_size=BATCH)
        network = recipe.prepare(self.baseline(), self.calibration).model
        plan = recipe.plan(network)
        if not variant.tied:
            plan = untied(plan)
        quantized = recipe.apply(network, plan)
        recipe.finish(quantized, self.calibration)
        return quantized

    @property
    def _qat(self) -> QATSettings:
        return QATSettings(
            epochs=self._arguments.qat_epochs,
            batch_size=BATCH,
            learning_rate=self.study.learning_rate / 10,
            augment=self.study.augment,
            distillation=0.0,
        )

    def _new(self) -> Any:
        classes = len(self.task.data.classes)
        return self.study.build((*self._arguments.size, 3), classes, weights=WEIGHTS)

    def _fit(self, model: Any, schedule: TrainingSettings | QATSettings) -> Any:
        fitting.make_deterministic(self._seed)
        fitting.fit(model, self.data, schedule, seed=self._seed, progress=NullProgress())
        return model

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.folder / f"{name}.keras"
        if not path.exists():
            keras.utils.set_random_seed(self._seed)
            started = time.process_time()
            make().save(path)
            print(f"{path}: {time.process_time() - started:.0f} CPU s", flush=True)
        return qat_lib.load_model(path)

    # Measurements

    def metrics(self, outputs: Iterable[Outputs]) -> dict[str, float]:
        """Return the task's metrics of the outputs on the test part."""
        found, (_, targets) = [], load_split(self.data, "test", raw=True)
        for index, batch in enumerate(outputs):
            values = batch if len(batch) > 1 else next(iter(batch.values()))
            found.append(self.task.measure(values, targets[index * BATCH : (index + 1) * BATCH]))
        summary: dict[str, float] = self.task.summarize(joined(found))
        return summary

    def measure(self, model: Any, name: str, reference: list[Outputs] | None) -> dict[str, Any]:
        """Return the metrics of a model, its ONNX file and its engine, and its divergence."""
        onnx = self.file(name)
        qat_lib.export_onnx(model, onnx, target="openvino")
        engine = onnx.with_suffix(".engine")
        artifact = build_engine(onnx, BuildSpec(backend="openvino"), output=engine)
        names = list(model.output_names)
        session = reference_session(onnx)
        image = session.get_inputs()[0].name
        outputs = [output.name for output in session.get_outputs()]
        row: dict[str, Any] = {
            "keras": self.metrics(
                _named(each, names) for each in fitting.predict(model, self.test())
            ),
            "onnx": self.metrics(
                dict(zip(outputs, session.run(None, {image: x}), strict=True)) for x in self.test()
            ),
        }
        with load_engine(engine) as loaded:
            found = [loaded.infer(x) for x in self.test()]
        precision = artifact.manifest.precision
        row |= {"engine": self.metrics(found), "precision": str(precision), "file": str(onnx)}
        return row if reference is None else row | {"divergence": divergence(found, reference)}

    def measure_variant(
        self, variant: Variant, name: str, reference: list[Outputs]
    ) -> dict[str, Any]:
        """Return the metrics and divergence of a variant without training."""
        return self.measure(self.quantized(variant), name, reference)

    def measure_nncf(self, accurate: bool, reference: list[Outputs]) -> dict[str, Any]:
        """Return the metrics and divergence of NNCF's quantization of the FP32 network."""
        path = self.file("nncf accurate" if accurate else "nncf").with_suffix(".xml")
        model = ptq_agreement.nncf_model(self.file("FP32"), self.calibration, accurate)
        openvino.save_model(model, path, compress_to_fp16=False)
        found = list(answers(path, INT8, self.test()))
        row = {"engine": self.metrics(found), "divergence": divergence(found, reference)}
        return row | {"file": str(path)}

    def file(self, name: str) -> Path:
        """Return the ONNX file of a row."""
        return self.folder / f"{name.replace(' ', '_').replace(',', '')}_{cpu_kind()}.onnx"

    def rows(self, without: list[str]) -> dict[str, dict[str, Any]]:
        """Return all rows of the seed; finished ones are read from the folder."""
        rows: dict[str, dict[str, Any]] = {}
        if self.rows_file.is_file():
            rows = json.loads(self.rows_file.read_text())

        def add(name: str, make: Callable[[], dict[str, Any]]) -> None:
            if name not in rows:
                rows[name] = make()
                self.rows_file.write_text(json.dumps(rows, indent=1))
            values = {where: rows[name].get(where, {}) for where in ("keras", "onnx", "engine")}
            shown = [f"{where} {v[self.study.metric]:.4f}" for where, v in values.items() if v]
            if "divergence" in rows[name]:
                shown.append(f"divergence {rows[name]['divergence']:.4f}")
            print(f"seed {self._seed}  {name:36s} {'  '.join(shown)}", flush=True)

        add("FP32", lambda: self.measure(self.baseline(), "FP32", None))
        reference = list(answers(self.file("FP32"), FP32, self.test()))
        for name, variant in self.study.variants.items():
            row = f"PTQ, {name}" if name else "PTQ"
            add(row, partial(self.measure_variant, variant, row, reference))
        if "nncf" not in without:
            for row, accurate in (("NNCF", False), ("NNCF, accurate bias correction", True)):
                add(row, partial(self.measure_nncf, accurate, reference))
        if "qat" not in without:
            add("FP32, as long as QAT", lambda: self.measure(self.control(), "control", None))
            add("QAT", lambda: self.measure(self.trained(), "QAT", None))
        return rows


def untied(plan: qat_lib.QuantizationPlan) -> qat_lib.QuantizationPlan:
    """Return a plan without tied ranges: each tensor of a group gets a quantizer of its own."""
    entries = []
    for entry in plan.quantizers:
        if entry.group is not None:
            name = f"{entry.tensor.partition(':')[0]}_own_quantizer"
            entry = replace(entry, group=None, name=name)
        entries.append(entry)
    return replace(plan, quantizers=tuple(entries))


def answers(
    path: Path, options: Mapping[str, str], data: Iterable[np.ndarray]
) -> Iterator[Outputs]:
    """Yield the outputs of a file in OpenVINO."""
    engine = openvino.Core().compile_model(path, "CPU", dict(options))
    names = [output.get_any_name() for output in engine.outputs]
    for x in data:
        yield dict(zip(names, engine(x).values(), strict=True))


def divergence(outputs: list[Outputs], reference: list[Outputs]) -> float:
    """Return the root mean square error relative to the reference's, mean over the outputs."""
    found = []
    for name in reference[0]:
        ours, theirs = (np.concatenate([x[name] for x in each]) for each in (outputs, reference))
        found.append(float(np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean())))
    return mean(found)


def latencies(rows: Mapping[str, Mapping[str, Any]], shape: tuple[int, ...], turns: int) -> Any:
    """Return the median milliseconds of one image in OpenVINO, by row; the rows take turns."""
    engines: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    for name, row in rows.items():
        options = FP32 if name.startswith("FP32") else INT8
        model = openvino.Core().read_model(row["file"])
        model.reshape({model.inputs[0]: [1, *shape]})
        engine = openvino.Core().compile_model(
            model, "CPU", {**options, "INFERENCE_NUM_THREADS": 1}
        )
        engines[name], times[name] = engine.create_infer_request(), []
    x, draw = np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32), random.Random(0)
    for turn in range(turns + 3):
        for name in draw.sample([*engines], len(engines)):
            started = time.perf_counter()
            engines[name].infer({0: x})
            if turn >= 3:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: median(values) for name, values in times.items()}


def _named(outputs: Any, names: list[str]) -> Outputs:
    return dict(outputs) if isinstance(outputs, Mapping) else {names[0]: outputs}


def run(
    make: Callable[[argparse.Namespace], Study], about: str, folder: str, **defaults: Any
) -> int:
    """Measure a study by the command line's arguments.

    Args:
        make: makes the study from the arguments.
        about: description of the command.
        folder: name of the data set's folder in the shared data.
        defaults: default values of the arguments ``size``, ``epochs`` and ``qat_epochs``.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=defaults["epochs"])
    parser.add_argument("--qat-epochs", type=int, default=defaults["qat_epochs"])
    parser.add_argument("--size", type=int, nargs=2, default=defaults["size"], help="height, width")
    parser.add_argument("--turns", type=int, default=40, help="requests of the latency; 0: none")
    parser.add_argument("--without", nargs="*", default=[], choices=["nncf", "qat"])
    parser.add_argument("--work", type=Path, default=Path("runs") / folder)
    parser.add_argument("--score", type=float, default=0.01, help="lowest score of a box")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    for path in (SHARED / folder, WEIGHTS):
        if not path.exists():
            print(f"Skipped: there is no {path.name} in {path.parent}.", file=sys.stderr)
            return 3
    study, seeds, medians = make(arguments), {}, {}
    for seed in arguments.seeds:
        rows = Trial(study, arguments, seed).rows(arguments.without)
        if arguments.turns:
            medians[seed] = latencies(rows, (*arguments.size, 3), arguments.turns)
        for row in rows.values():
            row.pop("file", None)
        seeds[seed] = rows
    means = {}
    for name in seeds[arguments.seeds[0]]:
        means[name] = mean(rows[name]["engine"][study.metric] for rows in seeds.values())
        times = [each[name] for each in medians.values()]
        shown = f"{mean(times):8.2f} ms" if times else ""
        print(f"{name:40s} engine {study.metric} {means[name]:.4f} {shown}")
    if arguments.json:
        settings = {name: getattr(arguments, name) for name in ("size", "epochs", "qat_epochs")}
        figures = {"cpu": cpu_kind(), **settings, **study.about, "metric": study.metric}
        figures |= {"seeds": seeds, "median_ms": medians, "mean": means}
        record.write(arguments.json, figures)
    return 0
