"""Several processes that train one model: how they find each other, and who writes.

The contract, on one machine and on a cluster:

* A training step (``train_baseline``, ``finetune_qat``) whose environment has ``TF_CONFIG`` with N
  workers takes part as that worker, whatever ``training.workers`` says::

      TF_CONFIG={"cluster": {"worker": ["host0:2222", "host1:2222"]},
                 "task": {"type": "worker", "index": 1}}

  Each worker needs the same arguments (settings, seed, inputs), a host name that the others can
  reach, and the port of its own entry free. They wait for each other at the start.
* Without ``TF_CONFIG`` a step with ``workers`` above 1 is worker 0 itself, and starts the others on
  this machine, on loopback.
* Worker 0 alone looks into the step store, publishes the output, tracks, and reports progress. The
  others write into temporary folders only, remove them, and exit with code 0.
* A worker that dies ends all others: each exits with a code other than 0, worker 0 with one error
  event that names what happened. Started again, all of them, the step goes on from its last
  checkpoint.
* Worker 0 alone reads and writes checkpoints. They lie in the folder that ``QATLINE_CHECKPOINTS``
  names (``qatline.components.store.checkpoint_folder``), below it in ``<step>/<key of the execution>``;
  without it, in the step store. On a cluster the folder must outlive the pod of worker 0.
* A global batch is what one worker would have had: ``batch_size`` does not change with N.

``tf.distribute.MultiWorkerMirroredStrategy`` connects the processes, notices dead ones, and adds up
over them. Each has variables of its own, which stay equal because each applies the same sums: Keras
3 can't train variables that the strategy mirrors.
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
from qatline.components.support.state_file import read_state, write_state
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE, read_worker_config

_LOST = (
    *("UnavailableError", "AbortedError", "CancelledError", "InternalError"),
    *("FailedPreconditionError", "DeadlineExceededError"),
)
"""TensorFlow's errors by name: those of a worker that is gone."""


class Workers:
    """The workers of a training, as one of them sees them.

    Args:
        index: of this one; 0 writes.
        count: of all.
        strategy: a ``tf.distribute.Strategy`` over them; None for one alone.
    """

    def __init__(self, index: int = 0, count: int = 1, strategy: Any = None) -> None:
        self.index, self.count, self._strategy = index, count, strategy

    @property
    def alone(self) -> bool:
        """Whether there is one only."""
        return self.count == 1

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in which ``total`` and ``maximum`` may be called."""
        return function(*arguments) if self.alone else self._strategy.run(function, arguments)

    def total(self, tensors: Any) -> Any:
        """Return the sums of tensors over the workers: one tensor, or a list."""
        if self.alone:
            return tensors
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def maximum(self, tensor: Any) -> Any:
        """Return the largest of the workers' values, element by element."""
        import tensorflow as tf

        # Each worker's values in a row of their own: strategies have sums, and no maxima.
        own = tf.reshape(tf.one_hot(self.index, self.count), (-1, *[1] * len(tensor.shape)))
        rows = self.total(tf.where(own > 0, tensor[None], tf.zeros_like(tensor)[None]))
        return tf.reduce_max(rows, axis=0)

    def shares(self, rows: Any, whole: Any) -> tuple[Any, Any]:
        """Return this worker's shares of a batch: of its mean, and of its rows.

        Args:
            rows: that this worker has, an int32 scalar.
            whole: rows of the global batch. One of fewer rows than workers is at each of them.
        """
        import tensorflow as tf

        split, part = whole >= self.count, tf.cast(rows, tf.float32) / tf.cast(whole, tf.float32)
        return tf.where(split, part, 1.0 / self.count), tf.where(split, part, 1.0)

    def share(self, state: Any) -> Any:
        """Return worker 0's state, on each worker; see ``state_file`` for what it may hold."""
        if self.alone:
            return state
        stream = io.BytesIO()
        if self.index == 0:
            write_state(stream, state)
        content = stream.getvalue()
        (size,) = self._added(np.array([len(content)], np.int32))
        padded = np.zeros(-(-int(size) // 4) * 4, np.uint8)
        padded[: len(content)] = np.frombuffer(content, np.uint8)
        received = self._added(padded.view(np.int32)).view(np.uint8)[: int(size)]
        return state if self.index == 0 else read_state(io.BytesIO(received.tobytes()))

    def _added(self, array: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        # The identity has a device, which a function's argument has not.
        run = tf.function(lambda x: self._strategy.run(lambda: self.total(tf.identity(x))))
        added: np.ndarray = run(tf.constant(array)).numpy()
        return added


def current_workers() -> Workers:
    """Return the workers that ``TF_CONFIG`` names; it connects them at the first call.

    That must come before anything else of TensorFlow.

    Raises:
        StepError: TensorFlow runs already, or the variable is wrong.
    """
    return _connected(os.environ.get(TF_CONFIG_VARIABLE, ""))


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
    """Say what an error of TensorFlow means that comes from a worker's end.

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
    """Let BatchNormalization see the global batch within the block; nothing for one worker."""
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
