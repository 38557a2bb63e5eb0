"""The table of operations: under which names each one is known, and what roles it has.

A line holds the operations with the same roles under all their names; where they stand in one
order, as an activation function and its operator do, it is the same in each column.
"""

from __future__ import annotations

from qat_lib.graph.roles.operation import Operation
from qat_lib.graph.roles.operation import operation as _op

TABLE: tuple[Operation, ...] = (
    # Weights
    _op(
        "weighted, convolution",
        onnx="Conv",
        layers="Conv1D Conv2D Conv3D SeparableConv1D SeparableConv2D",
    ),
    _op("weighted, convolution, depthwise", layers="DepthwiseConv1D DepthwiseConv2D"),
    _op(
        "weighted, convolution, transposed",
        onnx="ConvTranspose",
        layers="Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    ),
    _op("weighted", onnx="Gemm", layers="Dense"),
    _op("weighted, product", onnx="MatMul", layers="EinsumDense"),
    _op("product", onnx="Einsum"),
    _op("attention", layers="MultiHeadAttention"),
    _op("integer, integer weighted", onnx="ConvInteger MatMulInteger"),
    _op("integer", onnx="QLinearConv QLinearMatMul DynamicQuantizeLinear QGemm QAttention"),
    _op("pair, sign preserving", onnx="QuantizeLinear DequantizeLinear"),
    # The identity at inference
    _op("identity, unary", onnx="Identity", layers="Identity", tensorflow="Identity StopGradient"),
    _op(
        "identity",
        onnx="Dropout",
        layers="Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout "
        "GaussianNoise AlphaDropout ActivityRegularization",
        others="StochasticDepth DropConnect",
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
    ),
    _op(
        "reshape, layout, range preserving",
        onnx="Squeeze Unsqueeze",
        operators="Squeeze ExpandDims",
        tensorflow="Squeeze ExpandDims",
    ),
    _op(
        "layout, range preserving",
        onnx="Transpose",
        layers="Permute",
        operators="Transpose",
        tensorflow="Transpose",
    ),
    _op(
        "range preserving",
        onnx="Slice",
        layers="Cropping1D Cropping2D Cropping3D",
        operators="GetItem",
        tensorflow="StridedSlice",
    ),
    _op("range preserving, axis", onnx="Split", tensorflow="Unpack"),
    _op("range preserving", onnx="Gather DepthToSpace SpaceToDepth"),
    _op("range preserving", operators="Flip"),
    _op(
        "range preserving, growing",
        onnx="Tile",
        layers="RepeatVector",
        operators="Tile Repeat",
    ),
    _op("range preserving, growing", onnx="Expand"),
    # A Pad preserves the range with zeros, a resize with the nearest value: whoever asks looks.
    _op(
        "range preserving, growing",
        onnx="Pad",
        layers="ZeroPadding1D ZeroPadding2D ZeroPadding3D",
        operators="Pad",
    ),
    _op(
        "range preserving, growing",
        onnx="Resize",
        layers="UpSampling1D UpSampling2D UpSampling3D Resizing",
    ),
    # Pools and reductions
    _op(
        "max pool, range preserving, sign preserving",
        onnx="MaxPool",
        layers="MaxPooling1D MaxPooling2D MaxPooling3D",
    ),
    _op(
        "max pool, wide maximum, range preserving",
        onnx="GlobalMaxPool",
        layers="GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D",
    ),
    _op(
        "max pool, wide maximum, range preserving",
        layers="AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D",
    ),
    _op(
        "average pool, sign preserving",
        onnx="AveragePool GlobalAveragePool",
        layers="AveragePooling1D AveragePooling2D AveragePooling3D "
        "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D",
    ),
    _op(
        "average pool",
        layers="AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D",
    ),
    _op("average pool, reduction", onnx="ReduceMean"),
    _op("reduction", onnx="ReduceSum ReduceMax ReduceMin ReduceProd ReduceL2 ReduceSumSquare"),
    # Merges and arithmetic
    _op(
        "merge, arithmetic, gate, broadcasting, pointwise, int8, sign preserving",
        onnx="Add Mul",
        layers="Add Multiply",
        operators="Add Multiply",
    ),
    _op(
        "arithmetic, gate, broadcasting, pointwise, int8",
        onnx="Sub",
        layers="Subtract",
        operators="Subtract",
    ),
    _op(
        "arithmetic, gate, broadcasting, pointwise, int8",
        onnx="Div",
        operators="Divide TrueDivide",
    ),
    _op("arithmetic, unary, pointwise", onnx="Neg", operators="Negative"),
    _op(
        "merge, broadcasting, pointwise, int8, sign preserving",
        onnx="Max Min",
        layers="Maximum Minimum",
        operators="Maximum Minimum",
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
    ),
    _op("broadcasting, pointwise", onnx="Where"),
    _op("broadcasting, pointwise, float", onnx="Pow"),
    _op("broadcasting", onnx="Mod And Or"),
    _op("broadcasting, predicate", onnx="Equal Greater GreaterOrEqual Less LessOrEqual"),
    # Activation functions. Keras's relu6 is a Clip in ONNX, its silu a Mul and a Sigmoid, its mish
    # a Mul, a Tanh and a Softplus; whether a Mish node fuses into a kernel is not known.
    _op(
        "activation, activation layer, epilogue, after add, gate, rectifier, non-negative, "
        "unary, pointwise",
        onnx="Relu",
        layers="ReLU",
        operators="Relu",
        functions="relu",
    ),
    _op("epilogue, after add, gate, rectifier, unary, pointwise, int8", onnx="Clip"),
    _op(
        "activation, epilogue, after add, non-negative",
        operators="Relu6",
        functions="relu6",
    ),
    _op(
        "activation, activation layer, epilogue, after add, unary, pointwise, int8",
        onnx="LeakyRelu",
        layers="LeakyReLU",
        operators="LeakyRelu",
        functions="leaky_relu",
    ),
    _op("activation layer, broadcasting, pointwise, int8", onnx="PRelu", layers="PReLU"),
    _op("activation layer", layers="Activation"),
    _op(
        "activation, activation layer, epilogue, unary, pointwise, float",
        onnx="Elu",
        layers="ELU",
        operators="Elu",
        functions="elu",
    ),
    _op(
        "activation, epilogue, gated, unary, pointwise, float",
        onnx="Gelu",
        operators="Gelu",
        functions="gelu",
    ),
    _op("activation, epilogue, gated", operators="Silu Mish", functions="silu mish"),
    _op("unary, pointwise, float", onnx="Mish Selu Celu Softsign"),
    _op(
        "activation, epilogue, unary, pointwise, float",
        onnx="HardSwish",
        operators="HardSilu",
        functions="hard_silu",
    ),
    _op(
        "activation, gate, non-negative, unary, pointwise, float",
        onnx="Sigmoid HardSigmoid Softplus",
        operators="Sigmoid HardSigmoid Softplus",
        functions="sigmoid hard_sigmoid softplus",
    ),
    _op(
        "activation, gate, unary, pointwise, float",
        onnx="Tanh",
        operators="Tanh",
        functions="tanh",
    ),
    _op(
        "gate, non-negative, unary, pointwise, float",
        onnx="Exp",
        operators="Exp",
        functions="exponential",
    ),
    _op(
        "non-negative, axis, float",
        onnx="Softmax",
        layers="Softmax",
        operators="Softmax",
        functions="softmax",
    ),
    _op("axis, float", onnx="LogSoftmax"),
    _op("axis", onnx="Hardmax"),
    # Other functions of one value
    _op("gate, unary, pointwise, float", onnx="Erf Log"),
    _op("unary, pointwise, float", onnx="Sqrt Reciprocal"),
    _op("non-negative, unary, pointwise", onnx="Abs"),
    _op("unary, pointwise", onnx="Cast", tensorflow="Cast"),
    _op("unary, float", onnx="Sin Cos"),
    _op("unary", onnx="Floor Ceil Round Sign Not ThresholdedRelu"),
    _op("unary, predicate", onnx="IsNaN"),
    # Normalizations
    _op("pointwise, int8", onnx="BatchNormalization", layers="BatchNormalization"),
    _op(
        "normalization, float",
        onnx="LayerNormalization GroupNormalization InstanceNormalization",
        layers="LayerNormalization GroupNormalization",
    ),
    _op("float", onnx="LpNormalization LRN"),
    # Shapes, constants, random numbers, control flow
    _op("shape", onnx="Shape Size"),
    _op("growing", onnx="Range ConstantOfShape OneHot Upsample EyeLike Col2Im CenterCropPad"),
    _op("growing", onnx="BlackmanWindow HannWindow"),
    _op("random, growing", onnx="RandomNormal RandomUniform"),
    _op("random", onnx="RandomNormalLike RandomUniformLike Multinomial Bernoulli"),
    _op("control flow, loop", onnx="Loop Scan"),
    _op("control flow", onnx="If"),
)
