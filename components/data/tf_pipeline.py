"""A part of a data set as a ``tf.data`` pipeline.

Equal seeds give equal shuffling and augmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from qat_lib.errors import DataError
from qat_lib.files.npy import take_rows
from qatline.components.data.part import Augment, ImageFiles, InputForm, Mirrored, Split

AUGMENTATIONS = ("none", "shift", "flip", "flip_crop")

ORDERS_PER_EPOCH = 2
"""Shuffled orders drawn per epoch: ``model.fit`` creates a second iterator and discards it."""


def build_dataset(
    split: Split,
    preprocessing: InputForm,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    augment: Augment = "none",
    mirrored: Mirrored | None = None,
    repeat: bool = False,
    worker: tuple[int, int] = (0, 1),
) -> Any:
    """Return a ``tf.data.Dataset`` of ``(x, y)``, of a part with weights ``(x, y, weights)``.

    ``x`` is float32 ``(batch, ...)``, or several by name; ``y`` are the targets ``(batch, ...)``;
    ``weights`` are float32 ``(batch,)``.

    Args:
        split: the part to read.
        preprocessing: conversion of raw data to the model's input.
        batch_size: size of every batch except the last, which may be smaller.
        shuffle_seed: seed of the order, new in each epoch; None keeps the order.
        augment: ``none``; ``shift``: move each image by up to ``max(1, size // 8)`` pixels,
            repeating its edge; ``flip``: mirror each image with probability 0.5; ``flip_crop``:
            both; or a function of the batch and of a seed, an int64 tensor ``(2,)``, new for each
            batch.
        mirrored: function from the targets of a batch to those of its mirrored images, for ``flip``;
            None keeps the targets.
        repeat: whether to repeat the data infinitely.
        worker: index of a worker and number of workers: each receives its rows of every batch,
            identical to those for a single worker. Batches with fewer rows than workers are sent to
            each worker completely.

    Raises:
        DataError: ``augment`` is unknown, or the data is not images.
    """
    own = None if isinstance(augment, str) else augment
    if own is None and augment not in AUGMENTATIONS:
        raise DataError(
            f"augment: expected one of {', '.join(AUGMENTATIONS)}; received {augment!r}"
        )
    count, targets, shape = len(split.targets), split.targets, preprocessing.image_shape
    weights = split.weights
    names = sorted(shape) if isinstance(shape, Mapping) else None
    if own is None and augment != "none" and (isinstance(shape, Mapping) or len(shape) != 3):
        raise DataError(
            f"augment: expected none for data other than images, received {augment!r} for inputs "
            f"of shape {shape}"
        )
    shapes = [shape] if not isinstance(shape, Mapping) else [shape[name] for name in sorted(shape)]

    def read(indices: Any) -> list[Any]:
        x = preprocessing.apply(split.inputs(indices))
        inputs = [x] if names is None else [x[name] for name in names]
        own_weights = [] if weights is None else [weights[indices]]
        return [*inputs, take_rows(targets, indices), *own_weights]

    kinds = [*(tf.float32 for _ in shapes), tf.as_dtype(targets.dtype)]
    kinds += [] if weights is None else [tf.float32]

    # Pillow holds Python's lock for half of the time that a small image takes.
    files = split if isinstance(split, ImageFiles) and split.is_plain() else None

    def read_files(indices: Any) -> list[Any]:
        assert files is not None
        own_weights = [] if weights is None else [weights[indices]]
        return [files.encoded(indices), take_rows(targets, indices), *own_weights]

    def decoded(contents: Any) -> Any:
        assert files is not None
        pixels = tf.map_fn(
            lambda content: tf.io.decode_jpeg(
                content, channels=files.shape[-1], dct_method="INTEGER_ACCURATE"
            ),
            tf.ensure_shape(contents, (None,)),
            fn_output_signature=tf.TensorSpec(files.shape, tf.uint8),
            parallel_iterations=1,
        )
        return tf.numpy_function(preprocessing.apply, [pixels], tf.float32)

    def load(batch: Any) -> tuple[Any, ...]:
        rows = _rows_of(batch, *worker)[0]
        if files is None:
            found = tf.numpy_function(read, [rows], kinds)
        else:
            contents, *rest = tf.numpy_function(read_files, [rows], [tf.string, *kinds[1:]])
            found = [decoded(contents), *rest]
        inputs = [tf.ensure_shape(x, (None, *s)) for x, s in zip(found, shapes, strict=False)]
        x = inputs[0] if names is None else dict(zip(names, inputs, strict=True))
        y, *own_weights = found[len(shapes) :]
        own_weights = [tf.ensure_shape(each, (None,)) for each in own_weights]
        return x, tf.ensure_shape(y, (None, *targets.shape[1:])), *own_weights

    def load_and_augment(batch: Any, seed: Any) -> tuple[Any, ...]:
        x, y, *own_weights = load(batch)
        place = _rows_of(batch, *worker)[1]
        if augment == "flip":
            return *_flip(x, y, place, seed, mirrored or (lambda y: y)), *own_weights
        return _augment(x, place, seed, shapes[0], flip=augment == "flip_crop"), y, *own_weights

    # Shuffle indices instead of images: the shuffle buffer covers the whole part.
    order = tf.data.Dataset.range(count)
    if shuffle_seed is not None:
        order = order.shuffle(count, seed=shuffle_seed, reshuffle_each_iteration=True)
    order = order.batch(batch_size)
    seeds = tf.data.Dataset.random(seed=shuffle_seed or 0, rerandomize_each_iteration=True)
    seeds = seeds.batch(2)
    # One map for all: each further one costs up to a fifth of the time of reading arrays.
    in_order = {"num_parallel_calls": 2, "deterministic": True}
    if own is None and augment != "none":
        batches = tf.data.Dataset.zip(order, seeds).map(load_and_augment, **in_order)
    else:
        batches = order.map(load, **in_order)
    if own is not None:
        # One call at a time: random operations without a seed follow the order of the calls.
        # Unconverted: AutoGraph would wrap the function's exceptions.
        batches = tf.data.Dataset.zip(batches, seeds).map(
            tf.autograph.experimental.do_not_convert(
                lambda batch, seed: (*own(batch[0], batch[1], seed), *batch[2:])
            )
        )
    if repeat:
        batches = batches.repeat()
    return batches.prefetch(2)


def start_epoch(batches: Any) -> Any:
    """Return an iterator of a new epoch, in the order of the same epoch of ``model.fit``.

    Args:
        batches: a ``tf.data.Dataset``, or restartable batches whose iterator creates one of it.
    """
    iterator, *_ = [iter(batches) for _ in range(ORDERS_PER_EPOCH)]
    return iterator


def skip_epochs(batches: Any, epochs: int) -> None:
    """Skip the orders of completed epochs, before training resumes.

    Creating an iterator advances the generator of a shuffle.
    """
    for _ in range(epochs * ORDERS_PER_EPOCH):
        iter(batches)


def _rows_of(indices: Any, worker: int, workers: int) -> tuple[Any, Any]:
    """Return a worker's rows of a batch, and their position: first, last, and number of rows."""
    count = tf.shape(indices)[0]
    if workers == 1:
        return indices, tf.stack([0, count, count])
    first, last = count * worker // workers, count * (worker + 1) // workers
    split = count >= workers
    first, last = tf.where(split, first, 0), tf.where(split, last, count)
    return indices[first:last], tf.stack([first, last, count])


def _flip(x: Any, y: Any, place: Any, seed: Any, mirrored: Mirrored) -> tuple[Any, Any]:
    """Mirror images at random, and their targets with them."""
    first, last, count = tf.unstack(place)
    drawn = tf.random.stateless_uniform((count,), tf.cast(seed, tf.int32))[first:last] < 0.5

    def choose(ours: Any, plain: Any) -> Any:
        chosen = tf.reshape(drawn, (-1, *(1 for _ in plain.shape[1:])))
        return tf.ensure_shape(tf.where(chosen, ours, plain), plain.shape)

    return choose(tf.reverse(x, [2]), x), choose(mirrored(y), y)


def _augment(x: Any, place: Any, seed: Any, shape: tuple[int, ...], *, flip: bool) -> Any:
    """Shift each image of a batch by a separate random offset.

    With ``flip`` images are also mirrored at random. A worker draws numbers for the whole batch and
    uses those of its rows at ``place``, so that the result does not depend on the number of
    workers.
    """
    first, last, count = tf.unstack(place)
    seeds = tf.random.split(tf.cast(seed, tf.int32), num=3)
    for axis, size in ((1, shape[0]), (2, shape[1])):
        reach = max(1, size // 8)
        offset = tf.random.stateless_uniform(
            (count, 1), seeds[axis - 1], -reach, reach + 1, tf.int32
        )[first:last]
        # An index beyond the border is the border: the edge is repeated, whatever value black has
        # by now.
        source = tf.clip_by_value(tf.range(size)[None, :] + offset, 0, size - 1)
        x = tf.gather(x, source, axis=axis, batch_dims=1)
    if flip:
        mirrored = tf.random.stateless_uniform((count, 1, 1, 1), seeds[2]) < 0.5
        x = tf.where(mirrored[first:last], tf.reverse(x, axis=[2]), x)
    return tf.ensure_shape(x, (None, *shape))
