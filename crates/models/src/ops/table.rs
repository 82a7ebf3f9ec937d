//! The list of ops: the function of each op, and the operands that decide the shapes of its
//! outputs.

use std::collections::HashMap;

use panoply_core::once::OnceBox;

use super::{
    cast, conv, elementwise, gather, linear, loss, make, norm, pool, quantize, recurrent, reduce, resize, scatter,
    sequence, shape, signal,
};
use crate::error::{Error, Result};
use crate::program::{ALL_OPERANDS, Eval, OpKind};

/// The oldest version of ONNX's default domain that is implemented.
const OLDEST_VERSION: i64 = 7;

/// Ops with the same meaning in every version.
const UNCHANGED: &[&str] = &["Not"];

/// The newest known version of a domain. 0 for unknown domains.
pub(crate) fn newest_version(domain: &str) -> i64 {
    match domain {
        "" | "ai.onnx" => 28,
        "ai.onnx.ml" => 5,
        "ai.onnx.preview" | "ai.onnx.preview.training" => 1,
        _ => 0,
    }
}

/// Whether the name stands for ONNX's default domain.
pub(crate) fn is_default(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// The op with this name. Fails with the name if the op is unknown.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Result<OpKind> {
    let domain = if is_default(domain) { "" } else { domain };
    if domain.is_empty() && version < OLDEST_VERSION && !UNCHANGED.contains(&op) {
        let oldest = format!("the oldest known is {OLDEST_VERSION}");
        return Err(Error::unsupported(format!("version {version} of ai.onnx; {oldest}")));
    }
    let shown = if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") };
    known(domain, op).ok_or_else(|| Error::unsupported(format!("the op {shown}")))
}

fn known(domain: &str, op: &str) -> Option<OpKind> {
    static TABLE: OnceBox<HashMap<(&'static str, &'static str), OpKind>> = OnceBox::new();
    TABLE.get_or_make(table).get(&(domain, op)).copied()
}

fn table() -> HashMap<(&'static str, &'static str), OpKind> {
    let mut table = HashMap::new();
    for family in FAMILIES {
        for (eval, shape_operands, names) in *family {
            for name in *names {
                let (domain, name) = name.rsplit_once('.').unwrap_or(("", name));
                table.insert((domain, name), OpKind::Plain { eval: *eval, shape_operands: *shape_operands });
            }
        }
    }
    let bodies = [
        ("Constant", OpKind::Constant),
        ("If", OpKind::If),
        ("Loop", OpKind::Loop),
        ("Scan", OpKind::Scan),
        ("SequenceMap", OpKind::SequenceMap),
    ];
    table.extend(bodies.map(|(name, kind)| (("", name), kind)));
    table
}

type Family = &'static [(Eval, u32, &'static [&'static str])];

const FAMILIES: &[Family] = &[ELEMENTWISE, SHAPES, GATHERING, ROWS, WINDOWS, QUANTISED, SEQUENCES, SIGNALS];

const ELEMENTWISE: Family = &[
    (
        elementwise::unary,
        0,
        &[
            "Abs",
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "BitwiseNot",
            "Ceil",
            "Celu",
            "Cos",
            "Cosh",
            "Elu",
            "Erf",
            "Exp",
            "Floor",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Log",
            "Mish",
            "Neg",
            "Reciprocal",
            "Relu",
            "Round",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
            "Sqrt",
            "Swish",
            "Tan",
            "Tanh",
            "ThresholdedRelu",
        ],
    ),
    (elementwise::identity, 0, &["Identity"]),
    (elementwise::not, 0, &["Not"]),
    (elementwise::float_class, 0, &["IsInf", "IsNaN"]),
    (
        elementwise::arithmetic,
        0,
        &[
            "Add",
            "BitShift",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
            "Div",
            "Max",
            "Mean",
            "Min",
            "Mod",
            "Mul",
            "PRelu",
            "Sub",
            "Sum",
        ],
    ),
    (elementwise::pow, 0, &["Pow"]),
    (elementwise::compare, 0, &["And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"]),
    (elementwise::select, 0, &["Where"]),
    (elementwise::clip, 0, &["Clip"]),
    (cast::cast, 0, &["Cast", "CastLike"]),
    (cast::bit_cast, 0, &["BitCast"]),
];

const SHAPES: Family = &[
    (shape::shape, 0, &["Shape"]),
    (shape::size, 0, &["Size"]),
    (shape::reshape, 0b10, &["Reshape"]),
    (shape::flatten, 0, &["Flatten"]),
    (shape::squeeze, 0b10, &["Squeeze"]),
    (shape::unsqueeze, 0b10, &["Unsqueeze"]),
    (shape::transpose, 0, &["Transpose"]),
    (shape::expand, 0b10, &["Expand"]),
    (shape::tile, 0b10, &["Tile"]),
    (shape::slice, 0b11110, &["Slice"]),
    (shape::split, 0b10, &["Split"]),
    (shape::concat, 0, &["Concat"]),
    (shape::depth_space, 0, &["DepthToSpace", "SpaceToDepth"]),
    (make::constant_of_shape, 0b1, &["ConstantOfShape"]),
    (make::range, 0b111, &["Range"]),
    (make::eye_like, 0, &["EyeLike"]),
    (make::trilu, 0, &["Trilu"]),
    (make::one_hot, 0b10, &["OneHot"]),
    (make::pad, 0b1010, &["Pad"]),
    (make::center_crop_pad, 0b10, &["CenterCropPad"]),
    (make::reverse_sequence, 0, &["ReverseSequence"]),
];

const GATHERING: Family = &[
    (gather::gather, 0, &["Gather"]),
    (gather::gather_elements, 0, &["GatherElements"]),
    (gather::gather_nd, 0, &["GatherND"]),
    (scatter::scatter_elements, 0, &["Scatter", "ScatterElements"]),
    (scatter::scatter_nd, 0, &["ScatterND"]),
    (scatter::tensor_scatter, 0, &["TensorScatter"]),
    (gather::compress, ALL_OPERANDS, &["Compress"]),
    (gather::non_zero, ALL_OPERANDS, &["NonZero"]),
    (gather::unique, ALL_OPERANDS, &["Unique"]),
];

const ROWS: Family = &[
    (
        reduce::reduce,
        0b10,
        &[
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
        ],
    ),
    (reduce::arg, 0, &["ArgMax", "ArgMin"]),
    (reduce::cumulate, 0, &["CumProd", "CumSum"]),
    (reduce::top_k, 0b10, &["TopK"]),
    (reduce::softmax, 0, &["Hardmax", "LogSoftmax", "Softmax"]),
    (norm::batch, 0, &["BatchNormalization"]),
    (norm::layer, 0, &["LayerNormalization", "RMSNormalization"]),
    (norm::groups, 0, &["GroupNormalization", "InstanceNormalization"]),
    (norm::mean_variance, 0, &["MeanVarianceNormalization"]),
    (norm::lp, 0, &["LpNormalization"]),
    (norm::local_response, 0, &["LRN"]),
    (norm::dropout, 0, &["Dropout"]),
    (linear::matmul, 0, &["MatMul"]),
    (linear::gemm, 0, &["Gemm"]),
    (linear::einsum, 0, &["Einsum"]),
    (linear::determinant, 0, &["Det"]),
];

const WINDOWS: Family = &[
    (conv::conv, 0, &["Conv"]),
    (conv::conv_transpose, 0, &["ConvTranspose"]),
    (conv::conv_integer, 0, &["ConvInteger"]),
    (conv::qlinear_conv, 0, &["QLinearConv"]),
    (conv::col2im, 0b110, &["Col2Im"]),
    (pool::max, 0, &["MaxPool"]),
    (pool::average, 0, &["AveragePool"]),
    (pool::lp, 0, &["LpPool"]),
    (pool::global, 0, &["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"]),
    (pool::max_unpool, 0b100, &["MaxUnpool"]),
    (pool::roi_align, 0, &["RoiAlign"]),
    (resize::resize, 0b1110, &["Resize", "Upsample"]),
    (recurrent::recurrent, 0, &["GRU", "LSTM", "RNN"]),
];

const QUANTISED: Family = &[
    (quantize::quantize, 0, &["QuantizeLinear"]),
    (quantize::dequantize, 0, &["DequantizeLinear"]),
    (quantize::quantize_dynamically, 0, &["DynamicQuantizeLinear"]),
    (quantize::matmul_integer, 0, &["MatMulInteger"]),
    (quantize::qlinear_matmul, 0, &["QLinearMatMul"]),
    (loss::loss, 0, &["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]),
];

const SEQUENCES: Family = &[
    (sequence::construct, ALL_OPERANDS, &["SequenceConstruct"]),
    (sequence::empty, ALL_OPERANDS, &["SequenceEmpty"]),
    (sequence::at, ALL_OPERANDS, &["SequenceAt"]),
    (sequence::length, ALL_OPERANDS, &["SequenceLength"]),
    (sequence::insert, ALL_OPERANDS, &["SequenceInsert"]),
    (sequence::erase, ALL_OPERANDS, &["SequenceErase"]),
    (sequence::split, ALL_OPERANDS, &["SplitToSequence"]),
    (sequence::concat, ALL_OPERANDS, &["ConcatFromSequence"]),
    (sequence::optional, ALL_OPERANDS, &["Optional"]),
    (sequence::optional_has, ALL_OPERANDS, &["OptionalHasElement"]),
    (sequence::optional_get, ALL_OPERANDS, &["OptionalGetElement"]),
];

const SIGNALS: Family = &[
    (signal::window, 0b1, &["BlackmanWindow", "HammingWindow", "HannWindow"]),
    (signal::dft, 0b110, &["DFT"]),
    (signal::stft, 0b1010, &["STFT"]),
    (signal::mel_weights, 0b11111, &["MelWeightMatrix"]),
];
