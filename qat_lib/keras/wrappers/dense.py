"""Wrappers of Dense and Embedding."""

from __future__ import annotations

from keras import layers

from qat_lib.keras.wrappers.weighted import weighted

DenseQuantizeWrapper = weighted(layers.Dense)
EmbeddingQuantizeWrapper = weighted(layers.Embedding, default=False, embeddings=None)
