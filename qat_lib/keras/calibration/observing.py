"""Observation of the tensors of a Keras model during calibration, traced or eager."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.calibration import Histograms, SeenTensor, needs_data
from qat_lib.calibrators.collecting import collecting
from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.calibrators.sampling import PER_SAMPLE
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import run_eagerly
from qat_lib.support.foreign_errors import describe_error


class Histogram(MagnitudeHistogram):
    """Histogram of the magnitudes of TensorFlow tensors and arrays."""

    def _count(
        self, tensor: Any, bins: int, gains: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if isinstance(tensor, np.ndarray):
            return super()._count(tensor, bins, gains)
        magnitude = tf.abs(tf.cast(tensor, tf.float32))
        limits = [0.0, self.upper]
        counted = tf.histogram_fixed_width(magnitude, limits, nbins=bins, dtype=tf.int32)
        counts = np.asarray(counted.numpy().astype(np.int64))
        if gains is None:
            return counts, None
        index = tf.histogram_fixed_width_bins(magnitude, limits, nbins=bins)
        spread = tf.broadcast_to(tf.constant(gains, tf.float64), magnitude.shape)
        costs = tf.math.bincount(
            tf.reshape(index, [-1]), weights=tf.reshape(spread, [-1]), minlength=bins
        )
        return counts, np.asarray(costs.numpy())


logger = logging.getLogger("qat_lib")


class TensorHistograms(Histograms):
    """Histograms of TensorFlow tensors."""

    histogram = Histogram

    def as_array(self, tensor: Any) -> np.ndarray | None:
        """Return an eager tensor as an array, without a copy on a CPU; None on a GPU."""
        return None if "GPU" in tensor.device else np.asarray(tf.cast(tensor, tf.float32))

    def channel_axis(self, rank: int) -> int:
        """Return the last axis."""
        return rank - 1

    def measure(self, quantizer: TensorQuantizer, tensor: Any) -> SeenTensor:
        """Return the magnitudes and statistics of a tensor, computed on the GPU."""
        magnitude = quantizer.magnitude(tensor)
        return SeenTensor(
            magnitude=magnitude,
            largest=float(tf.reduce_max(magnitude)),
            negative=bool(tf.reduce_min(tensor) < 0),
        )


class _Tap:
    """Collector for traced calls: adds an op per tensor that updates its histogram at run time."""

    def __init__(self, histograms: TensorHistograms) -> None:
        self.histograms = histograms

    def observe(self, quantizer: Any, tensor: Any) -> None:
        if needs_data(quantizer):
            count = partial(self.histograms.count, quantizer)
            tf.numpy_function(count, [tf.cast(tensor, tf.float32)], [])


class ModelCalls:
    """Calls a model on batches, as a graph for many batches, else eagerly.

    A graph runs faster, but tracing takes time. Batches with other shapes than the first, such as a
    smaller last batch, run eagerly, as do models that can't be traced.
    """

    def __init__(self, model: Any, histograms: TensorHistograms) -> None:
        self.model = model
        self.histograms = histograms
        self._shapes: Any = None
        self._traced: Callable[[Any], Any] | None = None

    def __call__(self, batch: Any) -> None:
        """Run the model on a batch, and update the histograms."""
        run = self._graph_for(batch)
        if run is None:
            run_eagerly(self.model, batch)
        else:
            run(keras.tree.map_structure(tf.convert_to_tensor, batch))

    def _graph_for(self, batch: Any) -> Callable[[Any], Any] | None:
        """Return a graph function for a batch; None if it must run eagerly."""
        tensors = keras.tree.flatten(batch)
        is_short = self.histograms.budget != PER_SAMPLE
        if is_short or not all(isinstance(x, np.ndarray | tf.Tensor) for x in tensors):
            return None
        shapes = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch)
        # Trace once, for the shapes of the first batch.
        if self._shapes is None:
            self._shapes, self._traced = shapes, self._trace(shapes)
        return self._traced if shapes == self._shapes else None

    def _trace(self, shapes: Any) -> Callable[[Any], Any] | None:
        # Eager histograms are computed on the GPU; numpy_function would copy each tensor to the
        # CPU.
        if tf.config.list_logical_devices("GPU"):
            return None

        def call(batch: Any) -> None:
            with collecting(_Tap(self.histograms)):
                self.model(batch, training=False)

        traced: Any = tf.function(call, autograph=False)
        try:
            traced.get_concrete_function(shapes)
        # An eager-only layer may raise anything; an error that also occurs eagerly is raised there.
        except Exception as error:  # noqa: BLE001
            logger.debug("Calibration runs eagerly: %s", describe_error(error))
            return None
        return cast("Callable[[Any], Any]", traced)
