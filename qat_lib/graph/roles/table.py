"""Table of operations: names and roles.

A row contains the operations with the same roles under all their names. Where the names correspond,
as for an activation function and its operator, their order is the same in each column.
"""

from __future__ import annotations

from qat_lib.graph.roles.activations import ACTIVATIONS
from qat_lib.graph.roles.operation import Operation
from qat_lib.graph.roles.operation import operation as _op

TABLE: tuple[Operation, ...] = (
    # Weights
    _op(
        "weighted, convolution",
        onnx="Conv",
        layers="Conv1D Conv2D Conv3D SeparableConv1D SeparableConv2D",
        modules="Conv1d Conv2d Conv3d",
        torch="conv1d conv2d conv3d",
    ),
    _op("weighted, convolution, depthwise", layers="DepthwiseConv1D DepthwiseConv2D"),
    _op(
        "weighted, convolution, transposed",
        onnx="ConvTranspose",
        layers="Conv1DTranspose Conv2DTranspose Conv3DTranspose",
        modules="ConvTranspose1d ConvTranspose2d ConvTranspose3d",
        torch="conv_transpose1d conv_transpose2d conv_transpose3d",
    ),
    _op("weighted", onnx="Gemm", layers="Dense", modules="Linear", torch="linear"),
    _op("weighted, product", onnx="MatMul", layers="EinsumDense"),
    _op("product", onnx="Einsum"),
    _op("product", torch="matmul bmm baddbmm addmm"),
    _op("attention", layers="MultiHeadAttention", modules="MultiheadAttention"),
    _op("integer, integer weighted", onnx="ConvInteger MatMulInteger"),
    _op("integer", onnx="QLinearConv QLinearMatMul DynamicQuantizeLinear QGemm QAttention"),
    _op("pair, sign preserving", onnx="QuantizeLinear DequantizeLinear"),
    # Identities at inference
    _op(
        "identity, unary",
        onnx="Identity",
        layers="Identity",
        tensorflow="Identity StopGradient",
        modules="Identity",
        torch="contiguous clone detach",
    ),
    _op(
        "identity",
        onnx="Dropout",
        layers="Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout "
        "GaussianNoise AlphaDropout ActivityRegularization",
        others="StochasticDepth DropConnect DropPath",
        modules="Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout",
        torch="dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
        "stochastic_depth drop_path",
    ),
    _op(
        "identity",
        layers="AugMix CutMix MixUp RandAugment RandomBrightness RandomColorDegeneration "
        "RandomColorJitter RandomContrast RandomElasticTransform RandomErasing RandomFlip "
        "RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective "
        "RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear "
        "RandomTranslation RandomZoom",
    ),
    # Moves
    _op(
        "reshape, layout, range preserving, sign preserving",
        onnx="Reshape Flatten",
        layers="Reshape Flatten",
        operators="Reshape",
        tensorflow="Reshape",
        modules="Unflatten Flatten",
        torch="reshape flatten view unflatten",
    ),
    _op(
        "reshape, layout, range preserving",
        onnx="Squeeze Unsqueeze",
        operators="Squeeze ExpandDims",
        tensorflow="Squeeze ExpandDims",
        torch="squeeze unsqueeze",
    ),
    _op(
        "layout, range preserving",
        onnx="Transpose",
        layers="Permute",
        operators="Transpose",
        tensorflow="Transpose",
        torch="permute transpose movedim swapaxes",
    ),
    _op(
        "range preserving",
        onnx="Slice",
        layers="Cropping1D Cropping2D Cropping3D",
        operators="GetItem",
        tensorflow="StridedSlice",
        torch="getitem narrow select",
    ),
    _op(
        "range preserving, axis",
        onnx="Split",
        operators="Split",
        tensorflow="Unpack",
        torch="split chunk tensor_split unbind",
    ),
    _op(
        "range preserving",
        onnx="Gather DepthToSpace SpaceToDepth",
        modules="PixelShuffle PixelUnshuffle ChannelShuffle",
        torch="pixel_shuffle pixel_unshuffle channel_shuffle",
    ),
    _op("range preserving", operators="Flip", torch="flip roll"),
    _op(
        "range preserving, growing",
        onnx="Tile",
        layers="RepeatVector",
        operators="Tile Repeat",
        torch="tile repeat_interleave repeat",
    ),
    _op("range preserving, growing", onnx="Expand", torch="expand expand_as"),
    # A Pad preserves the range only with zeros, a resize only with the nearest value: callers check
    # the attributes.
    _op(
        "range preserving, growing",
        onnx="Pad",
        layers="ZeroPadding1D ZeroPadding2D ZeroPadding3D",
        operators="Pad",
        modules="ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d "
        "ReflectionPad1d ReflectionPad2d ReflectionPad3d "
        "ReplicationPad1d ReplicationPad2d ReplicationPad3d "
        "CircularPad1d CircularPad2d CircularPad3d",
        torch="pad",
    ),
    _op(
        "range preserving, growing",
        onnx="Resize",
        layers="UpSampling1D UpSampling2D UpSampling3D Resizing",
        modules="Upsample UpsamplingNearest2d UpsamplingBilinear2d",
        torch="interpolate upsample",
    ),
    # Pools and reductions
    _op(
        "max pool, range preserving, sign preserving",
        onnx="MaxPool",
        layers="MaxPooling1D MaxPooling2D MaxPooling3D",
        modules="MaxPool1d MaxPool2d MaxPool3d",
        torch="max_pool1d max_pool2d max_pool3d",
    ),
    _op(
        "max pool, wide maximum, range preserving",
        onnx="GlobalMaxPool",
        layers="GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D",
    ),
    _op(
        "max pool, wide maximum, range preserving",
        layers="AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D",
        modules="AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d",
        torch="adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    _op(
        "average pool, sign preserving",
        onnx="AveragePool GlobalAveragePool",
        layers="AveragePooling1D AveragePooling2D AveragePooling3D "
        "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D",
        modules="AvgPool1d AvgPool2d AvgPool3d",
        torch="avg_pool1d avg_pool2d avg_pool3d",
    ),
    _op(
        "average pool",
        layers="AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D",
        modules="AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d",
        torch="adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    ),
    # A mean over axes other than the image's is not a pool: callers check the axes.
    _op("average pool, reduction", onnx="ReduceMean", torch="mean"),
    _op("reduction", onnx="ReduceSum ReduceMax ReduceMin ReduceProd ReduceL2 ReduceSumSquare"),
    # Merges and arithmetic
    _op(
        "merge, arithmetic, gate, broadcasting, pointwise, int8, sign preserving",
        onnx="Add Mul",
        layers="Add Multiply",
        operators="Add Multiply",
        torch="add mul",
    ),
    _op(
        "arithmetic, gate, broadcasting, pointwise, int8",
        onnx="Sub",
        layers="Subtract",
        operators="Subtract",
        torch="sub",
    ),
    _op(
        "arithmetic, gate, broadcasting, pointwise, int8",
        onnx="Div",
        operators="Divide TrueDivide",
        torch="div truediv",
    ),
    _op("arithmetic, unary, pointwise", onnx="Neg", operators="Negative", torch="neg"),
    _op(
        "merge, broadcasting, pointwise, int8, sign preserving",
        onnx="Max Min",
        layers="Maximum Minimum",
        operators="Maximum Minimum",
        torch="maximum minimum",
    ),
    _op(
        "merge, broadcasting, pointwise, sign preserving",
        onnx="Mean",
        layers="Average",
        operators="Average",
    ),
    _op("broadcasting, pointwise, int8", onnx="Sum"),
    _op("affine", layers="Rescaling", others="LayerScale"),
    _op("arithmetic", others="CustomScaleLayer"),
    _op(
        "merge, axis, sign preserving",
        onnx="Concat",
        layers="Concatenate",
        operators="Concatenate",
        torch="cat concat concatenate",
    ),
    _op("broadcasting, pointwise", onnx="Where"),
    _op("broadcasting, pointwise, float", onnx="Pow"),
    _op("broadcasting", onnx="Mod And Or"),
    _op("broadcasting", onnx="Equal Greater GreaterOrEqual Less LessOrEqual"),
    *ACTIVATIONS,
    # Other functions of one value
    _op("gate, unary, pointwise, float", onnx="Erf Log"),
    _op("unary, pointwise, float", onnx="Sqrt Reciprocal"),
    _op("non-negative, unary, pointwise", onnx="Abs", torch="abs"),
    _op("unary, pointwise", onnx="Cast", tensorflow="Cast"),
    _op("unary, float", onnx="Sin Cos"),
    _op("unary", onnx="Floor Ceil Round Sign Not ThresholdedRelu"),
    _op("unary", onnx="IsNaN"),
    # Normalizations
    _op(
        "pointwise, int8",
        onnx="BatchNormalization",
        layers="BatchNormalization",
        modules="BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm",
        torch="batch_norm",
    ),
    _op(
        "normalization, float",
        onnx="LayerNormalization GroupNormalization InstanceNormalization",
        layers="LayerNormalization GroupNormalization",
        modules="LayerNorm GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        torch="layer_norm group_norm instance_norm",
    ),
    _op("float", onnx="LpNormalization LRN"),
    # Shapes, constants, random numbers, control flow
    _op("shape", onnx="Shape Size", torch="size dim numel"),
    _op("growing", onnx="Range ConstantOfShape OneHot Upsample EyeLike Col2Im CenterCropPad"),
    _op("growing", onnx="BlackmanWindow HannWindow"),
    _op("random, growing", onnx="RandomNormal RandomUniform"),
    _op("random", onnx="RandomNormalLike RandomUniformLike Multinomial Bernoulli"),
    _op("control flow, loop", onnx="Loop Scan"),
    _op("control flow", onnx="If"),
)
