"""keras_hub detectors and segmenters for ``applications.py``: several maps instead of classes.

They have the structure of their published presets, fewer blocks and channels, and random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from applications_case import STAGES, STATISTICS, Case
from applications_images import random_images
from applications_weights import randomize

KNOWN: dict[str, str] = {
    "keras_hub RetinaNet": "its feature pyramid is one layer, and Adds inside of a layer get no Q/DQ",
    "keras_hub D-FINE": "Keras cannot load the saved model: its config contains a tensor",
    "keras_hub SAM": "its prompt of masks is empty, and engines take sizes above 0",
    "keras_hub SAM3": "OpenVINO can't compile the graph, and ONNX Runtime runs it",
}
"""Reasons of the networks whose rows have problems."""

Shape = tuple[int, int, int]


def _resnet(shape: tuple[int | None, ...]) -> Any:
    import keras_hub

    return keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[2, 2, 2, 2],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block",
        image_shape=shape,
    )


def _retinanet(shape: Shape) -> Any:
    from keras_hub import models

    backbone = models.RetinaNetBackbone(
        _resnet(shape), min_level=3, max_level=5, use_p5=False, image_shape=shape
    )
    return models.RetinaNetObjectDetector(
        backbone, num_classes=3, bounding_box_format="xyxy", pre_logits_num_conv_layers=2
    )


def _dfine(shape: Shape) -> Any:
    from keras_hub import models

    encoder = models.HGNetV2Backbone(
        stem_channels=[3, 16, 16],
        stackwise_stage_filters=[
            [16, 16, 64, 1, 3, 3],
            [64, 32, 256, 1, 3, 3],
            [256, 64, 512, 1, 3, 5],
            [512, 128, 1024, 1, 3, 5],
        ],
        apply_downsample=[False, True, True, True],
        use_lightweight_conv_block=[False, False, True, True],
        depths=[1, 1, 1, 1],
        hidden_sizes=[64, 256, 512, 1024],
        embedding_size=16,
        use_learnable_affine_block=True,
        hidden_act="relu",
        image_shape=shape,
        out_features=["stage3", "stage4"],
    )
    backbone = models.DFineBackbone(
        backbone=encoder,
        decoder_in_channels=[64, 64],
        encoder_hidden_dim=64,
        num_denoising=0,
        num_labels=4,
        hidden_dim=64,
        learn_initial_query=False,
        num_queries=20,
        anchor_image_size=shape[:2],
        feat_strides=[16, 32],
        num_feature_levels=2,
        encoder_in_channels=[512, 1024],
        encode_proj_layers=[1],
        num_attention_heads=4,
        encoder_ffn_dim=128,
        num_encoder_layers=1,
        hidden_expansion=0.34,
        depth_multiplier=0.5,
        eval_idx=-1,
        num_decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=128,
        decoder_n_points=[4, 4],
        lqe_hidden_dim=32,
        num_lqe_layers=2,
        out_features=["stage3", "stage4"],
        image_shape=shape,
        seed=0,
    )
    return models.DFineObjectDetector(backbone, num_classes=4, bounding_box_format="xyxy")


def _deeplab(shape: Shape) -> Any:
    from keras_hub import models

    backbone = models.DeepLabV3Backbone(
        _resnet(shape),
        projection_filters=48,
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P5",
        upsampling_size=8,
        dilation_rates=[6, 12, 18],
        image_shape=shape,
    )
    return models.DeepLabV3ImageSegmenter(backbone, num_classes=5)


def _segformer(shape: Shape) -> Any:
    from keras_hub import models

    encoder = models.MiTBackbone(
        layerwise_depths=[1, 1, 1, 1],
        image_shape=shape,
        hidden_dims=[32, 64, 160, 256],
        num_layers=4,
        layerwise_num_heads=[1, 2, 5, 8],
        layerwise_sr_ratios=[8, 4, 2, 1],
        max_drop_path_rate=0.1,
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
    )
    backbone = models.SegFormerBackbone(encoder, projection_filters=64)
    return models.SegFormerImageSegmenter(backbone, num_classes=5)


def _basnet(shape: Shape) -> Any:
    from keras_hub import models

    encoder = _resnet((None, None, 3))
    backbone = models.BASNetBackbone(encoder, num_classes=1, image_shape=shape)
    return models.BASNetImageSegmenter(backbone)


def _sam(shape: Shape) -> Any:
    from keras_hub import layers, models

    side = shape[0]
    encoder = models.ViTDetBackbone(
        hidden_size=64,
        num_layers=2,
        intermediate_dim=128,
        num_heads=4,
        global_attention_layer_indices=[1],
        patch_size=16,
        num_output_channels=32,
        window_size=2,
        image_shape=shape,
    )
    prompts = layers.SAMPromptEncoder(
        hidden_size=32,
        image_embedding_size=(side // 16, side // 16),
        input_image_size=(side, side),
        mask_in_channels=16,
    )
    decoder = layers.SAMMaskDecoder(
        num_layers=2,
        hidden_size=32,
        intermediate_dim=64,
        num_heads=4,
        embedding_dim=32,
        num_multimask_outputs=3,
        iou_head_depth=3,
        iou_head_hidden_dim=32,
    )
    return models.SAMImageSegmenter(models.SAMBackbone(encoder, prompts, decoder))


def _sam_prompts(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return images with a point and a box each, without masks."""
    count, side = len(images), images.shape[1]
    corners = np.float32([[[side / 4, side / 4], [side / 2, side / 2]]])
    return {
        "images": images,
        "points": np.full((count, 1, 2), side / 3, np.float32),
        "labels": np.ones((count, 1), np.float32),
        "boxes": np.repeat(corners[None], count, axis=0),
        "masks": np.zeros((count, 0, side, side, 1), np.float32),
    }


def _sam3(shape: Shape) -> Any:
    from keras_hub import layers, models

    small = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 64, "num_heads": 2}
    return models.SAM3PromptableConceptBackbone(
        vision_encoder=layers.SAM3VisionEncoder(
            image_shape=shape,
            patch_size=14,
            fpn_hidden_dim=32,
            fpn_scale_factors=[4.0, 2.0, 1.0, 0.5],
            pretrain_image_shape=(56, 56, 3),
            window_size=2,
            global_attn_indexes=[1],
            **{**small, "num_layers": 2},
        ),
        text_encoder=layers.SAM3TextEncoder(vocabulary_size=200, embedding_dim=32, **small),
        geometry_encoder=layers.SAM3GeometryEncoder(roi_size=7, **small),
        detr_encoder=layers.SAM3DetrEncoder(**small),
        detr_decoder=layers.SAM3DetrDecoder(
            # The boxes of all layers but the last are used.
            **{**small, "num_layers": 2},
            image_shape=shape,
            patch_size=14,
            num_queries=20,
        ),
        mask_decoder=layers.SAM3MaskDecoder(num_upsampling_stages=3, hidden_dim=32, num_heads=2),
    )


def _sam3_prompts(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return images with eight tokens and a box each."""
    count = len(images)
    return {
        "pixel_values": images,
        "token_ids": np.random.default_rng(0).integers(1, 200, (count, 8)).astype(np.int32),
        "padding_mask": np.ones((count, 8), bool),
        "boxes": np.full((count, 1, 5), 0.4, np.float32),
        "box_labels": np.ones((count, 1), np.int32),
    }


MAPS: dict[str, Callable[..., Any]] = {
    "keras_hub RetinaNet": _retinanet,
    "keras_hub D-FINE": _dfine,
    "keras_hub DeepLabV3": _deeplab,
    "keras_hub SegFormer": _segformer,
    "keras_hub BASNet": _basnet,
    "keras_hub SAM": _sam,
    "keras_hub SAM3": _sam3,
}
SIZES = {"keras_hub RetinaNet": 128, "keras_hub SAM3": 56}
"""Sides of images other than 64 pixels."""
SAMPLES = {**dict.fromkeys(MAPS, 8), "keras_hub SAM3": 2}
"""Numbers of images. SAM3's encoder takes as many as it has tokens of prompts: a box's and its own."""
PROMPTS = {"keras_hub SAM": _sam_prompts, "keras_hub SAM3": _sam3_prompts}
DETECTORS = ("keras_hub RetinaNet", "keras_hub D-FINE")


class MapCase(Case):
    """A network with maps, boxes or masks as outputs; its output layers are not fitted."""

    name = ""
    stages: Sequence[str] = (*STAGES, "engine")

    def build(self) -> dict[str, Any]:
        """Build the network with random weights that are worth quantizing."""
        import keras

        keras.utils.set_random_seed(0)
        self.model = self.make((self.size, self.size, 3))
        prompts = PROMPTS.get(self.name, lambda images: images)
        images = random_images(max(self.samples, STATISTICS), self.size, -1.0, 1.0)
        self.images, self.photographs = prompts(images[: self.samples]), None
        randomize(self.model, prompts(images[:STATISTICS]))
        return {
            "layers": len(self.model.layers),
            "parameters": self.model.count_params(),
            "pixels": self.size,
        }

    def export_float(self) -> dict[str, Any]:
        """Export the original, and compare with Keras."""
        from qat_lib import check_parity, export_onnx

        report = export_onnx(self.model, self.folder / "float.onnx")
        parity = check_parity(self.model, report.path, self.images, batch_size=self.samples)
        report.path.unlink()
        found = {"passed": parity.passed, "largest_difference": parity.largest_difference}
        return {"float_bytes": report.bytes, "float_parity": found}

    def plan(self) -> dict[str, Any]:
        """Plan with TensorRTQDQCase, float output layers in detectors."""
        return self.planned(float_outputs=self.name in DETECTORS)

    def calibrate(self) -> dict[str, Any]:
        """Calibrate on the images."""
        from qat_lib import calibrate

        calibrate(self.quantized, self.images, method="max", batch_size=self.samples)
        self.expected = self.answers(self.model)
        self.quantized_output = self.answers(self.quantized)
        changed = not np.array_equal(self.quantized_output, self.expected)
        return {"quantization_changes_output": changed}

    def answers(self, model: Any) -> np.ndarray:
        """Return all outputs in one row for each sample."""
        import keras

        found = keras.tree.flatten(model(self.images, training=False))
        rows = [np.asarray(each).reshape(self.samples, -1) for each in found]
        return np.concatenate(rows, axis=1)

    def parity(self) -> dict[str, Any]:
        """Compare ONNX Runtime with Keras, and Keras with itself for moved images."""
        import applications_figures as figures
        import keras

        from qat_lib import check_parity

        path = self.folder / "model.onnx"
        report = check_parity(self.quantized, path, self.images, batch_size=self.samples)
        still, images = self.answers(self.quantized), self.images
        self.images = keras.tree.map_structure(
            lambda x: x * np.float32(1 + figures.MOVED) if x.dtype == np.float32 else x, images
        )
        moved, self.images = self.answers(self.quantized), images
        return {
            "parity": {
                "random": {
                    "passed": report.passed,
                    "samples": report.samples,
                    "labels_equal": None,
                    "ties": 0,
                    "largest_difference": report.largest_difference,
                    "mean_difference": report.mean_difference,
                    "magnitude": report.magnitude,
                    "difference_of_keras_alone": float(np.abs(moved - still).max()),
                }
            }
        }

    def train(self) -> dict[str, Any]:
        """Run one training step on the mean square of all outputs."""
        import applications_figures as figures
        import keras
        import tensorflow as tf

        def loss(outputs: Any) -> Any:
            return tf.add_n([tf.reduce_mean(tf.square(x)) for x in keras.tree.flatten(outputs)])

        return figures.training_step(self.quantized, self.images, loss)

    def engine(self) -> dict[str, Any]:
        """Build an engine in OpenVINO, which compares it with ONNX Runtime."""
        from qat_lib.engines import BuildSpec, ShapeProfile, build_engine

        prompts = self.images if isinstance(self.images, dict) else {}
        shapes = {
            name: ShapeProfile(minimum=x.shape, optimum=x.shape, maximum=x.shape)
            for name, x in prompts.items()
        }
        spec = BuildSpec(backend="openvino", shapes=shapes)
        built = build_engine(self.folder / "model.onnx", spec, output=self.folder / "model.engine")
        return {"engine_layers": len(built.layers)}


def map_case(name: str) -> type[MapCase]:
    """Return the case of one network."""
    return type("MapCase", (MapCase,), {"name": name})
