"""Workers of a distributed training: connection, collective operations, responsibilities.

The contract, on one machine and on a cluster:

* A training step (``train_baseline``, ``finetune_qat``) with ``TF_CONFIG`` for N workers in its
  environment participates as the given worker, independent of ``training.workers``::

      TF_CONFIG={"cluster": {"worker": ["host0:2222", "host1:2222"]},
                 "task": {"type": "worker", "index": 1}}

  Each worker needs the same arguments (settings, seed, inputs), a host name that the others can
  reach, and a free port as given by its entry. The workers wait for each other at the start.
* Without ``TF_CONFIG``, a step with ``workers`` above 1 is worker 0 and starts the others on this
  machine, on loopback.
* Only worker 0 uses the step store, publishes the output, tracks, and reports progress. The others
  write into temporary folders, remove them, and exit with code 0.
* If a worker dies, all others end with a non-zero exit code, worker 0 with one error event that
  describes the cause. After a restart of all workers, the step resumes from its last checkpoint.
* Only worker 0 reads and writes checkpoints. They are stored in ``<step>/<key of the execution>``
  below ``QATLINE_CHECKPOINTS`` (``qatline.components.store.checkpoint_folder``), or without it in
  the step store. On a cluster the folder must outlive the pod of worker 0.
* The global batch equals that of a single worker: ``batch_size`` does not depend on N.

``tf.distribute.MultiWorkerMirroredStrategy`` connects the processes, detects dead ones, and
computes sums over them. Each worker has separate variables, which remain equal because all apply
the same sums: Keras 3 cannot train variables mirrored by the strategy.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from qat_lib.errors import StepError
from qat_lib.files.state_file import read_state, write_state
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE, read_worker_config

# Names of TensorFlow's errors after the loss of a worker.
_LOST = (
    *("UnavailableError", "AbortedError", "CancelledError", "InternalError"),
    *("FailedPreconditionError", "DeadlineExceededError"),
)


class Workers:
    """Workers of a training, as seen by one of them.

    Args:
        index: index of this worker; worker 0 writes.
        count: number of workers.
        strategy: a ``tf.distribute.Strategy`` over the workers; None for a single one.
    """

    def __init__(self, index: int = 0, count: int = 1, strategy: Any = None) -> None:
        self.index, self.count, self._strategy = index, count, strategy

    @property
    def alone(self) -> bool:
        """Whether there is a single worker."""
        return self.count == 1

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the context required by ``total`` and ``maximum``."""
        return function(*arguments) if self.alone else self._strategy.run(function, arguments)

    def total(self, tensors: Any) -> Any:
        """Return the sums of tensors over the workers: one tensor, or a list."""
        if self.alone:
            return tensors
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def maximum(self, tensor: Any) -> Any:
        """Return the element-wise maximum over the workers."""
        import tensorflow as tf

        # Strategies support sums but no maxima: sum a matrix with one row per worker, else zeros.
        own = tf.reshape(tf.one_hot(self.index, self.count), (-1, *[1] * len(tensor.shape)))
        rows = self.total(tf.where(own > 0, tensor[None], tf.zeros_like(tensor)[None]))
        return tf.reduce_max(rows, axis=0)

    def shares(self, rows: Any, whole: Any) -> tuple[Any, Any]:
        """Return this worker's shares of a batch: of its mean, and of its rows.

        Args:
            rows: number of rows of this worker, an int32 scalar.
            whole: number of rows of the global batch. A batch with fewer rows than workers is
                processed completely by each worker.
        """
        import tensorflow as tf

        split, part = whole >= self.count, tf.cast(rows, tf.float32) / tf.cast(whole, tf.float32)
        return tf.where(split, part, 1.0 / self.count), tf.where(split, part, 1.0)

    def share(self, state: Any) -> Any:
        """Return worker 0's state on each worker; ``state_file`` lists the supported types."""
        if self.alone:
            return state
        stream = io.BytesIO()
        if self.index == 0:
            write_state(stream, state)
        content = stream.getvalue()
        (size,) = self._added(np.array([len(content)], np.int32))
        # Broadcast as a sum of int32 values, in which all other workers contribute zeros.
        padded = np.zeros(-(-int(size) // 4) * 4, np.uint8)
        padded[: len(content)] = np.frombuffer(content, np.uint8)
        received = self._added(padded.view(np.int32)).view(np.uint8)[: int(size)]
        return state if self.index == 0 else read_state(io.BytesIO(received.tobytes()))

    def _added(self, array: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        # Without the identity, the argument of the traced function has no device.
        run = tf.function(lambda x: self._strategy.run(lambda: self.total(tf.identity(x))))
        added: np.ndarray = run(tf.constant(array)).numpy()
        return added


def current_workers() -> Workers:
    """Return the workers configured by ``TF_CONFIG``; the first call connects them.

    The first call must precede any other use of TensorFlow.

    Raises:
        StepError: TensorFlow is already initialized, or the variable is wrong.
    """
    return _connected(os.environ.get(TF_CONFIG_VARIABLE, ""))


# TensorFlow creates the strategy's server once per process.
@functools.cache
def _connected(_config: str) -> Workers:
    config = read_worker_config()
    if config is None or len(config.hosts) == 1:
        return Workers()
    import tensorflow as tf

    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise StepError(
            f"worker {config.index} of {len(config.hosts)} can't connect: {error}. Workers need a "
            "process in which TensorFlow has not run yet."
        ) from error
    return Workers(config.index, len(config.hosts), strategy)


@contextmanager
def lost_workers_named() -> Iterator[None]:
    """Replace TensorFlow's errors after the loss of a worker by an explanation.

    Raises:
        StepError: another worker ended.
    """
    try:
        yield
    except Exception as error:
        if not current_workers().alone and type(error).__name__ in _LOST:
            raise StepError(
                "another worker of this training ended, or can't be reached any more, so this one "
                "ended too. Look for its error, then start all of them again: training goes on "
                "from the last checkpoint."
            ) from error
        raise


def synchronized_batch_norms(layers: Sequence[Any], workers: Workers) -> Any:
    """Synchronize BatchNormalization over the global batch; no-op for one worker."""
    return _synchronized([] if workers.alone else layers)


@contextmanager
def _synchronized(layers: Sequence[Any]) -> Iterator[None]:
    before = [(layer, layer.synchronized) for layer in layers]
    for layer in layers:
        layer.synchronized = True
    try:
        yield
    finally:
        for layer, was in before:
            layer.synchronized = was
