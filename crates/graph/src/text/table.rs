//! The table of ops whose arguments are the fields of their struct. A row names an op once: its
//! operands and outputs, its names, and the word of each field. Reading and writing both follow
//! from the row.
//!
//! An op with two outputs gives its first; `part(x, port=1)` names the second.

use panoply_core::graph::{GraphBuilder, NodeId};
use panoply_core::op::compute::{
    ArgSort, ColorConvert, ColorFormat, ComputeOp, Conv2dBackwardInput, Conv2dBackwardWeight, Gather, Resize, Scan,
    ScanKind, Softmax, Sort, SortPairs, TopK,
};
use panoply_core::op::signal::{
    Adapt, AdaptTarget, Channelize, Constellation, ConvolutionalEncode, Convolve, Convolve2, Dct, DctKind, Demodulate,
    DemodulateWave, ErasureEncode, ErasureRebuild, Fft, Fft2, FindPeaks, Fir, Frames, Hilbert, Ifft, Iir, Interleave,
    Interleaver, Istft, Ldpc, LdpcDecode, LdpcEncode, Mix, Modulate, ModulateWave, Psd, ReadSamples, ReedSolomon,
    RsDecode, RsEncode, SampleFormat, Scramble, Scrambler, SignalOp, Stft, TelemetryRate, Track, Tracker, Viterbi,
    Wave,
};
use panoply_core::{Describe, Error, Op, Operation, Result, Tensor, Value};

use super::fields::{Field, Words, needed, read};
use super::ops::Arguments;

/// Makes the readers and the writer of a table. A row is `[Struct, operands => outputs]`, then each
/// name with the initial op (`$t` are its operands), then the words and their fields: mandatory
/// fields, optional fields, and flags that are the opposite of their field.
///
/// The initial op has placeholders in the fields that `needs` names: reading fails unless they are
/// replaced.
macro_rules! ops {
    ($t:ident; $(
        [$domain:ident::$family:ident::$variant:ident, $least:literal => $outputs:literal]
        $($name:literal = $begin:expr),+;
        $(needs $($need:ident = $($need_field:ident).+),+;)?
        $(may $($may:ident = $($may_field:ident).+),+;)?
        $(unless $($unless:ident = $($unless_field:ident).+),+;)?
    )*) => {
        /// For each name the minimal number of operands and the number of outputs.
        const ROWS: &[(&str, usize, usize)] = &[$($(($name, $least, $outputs),)+)*];

        /// The op of this name before its arguments are read.
        fn begun(name: &str, $t: &[Tensor]) -> Option<Op> {
            Some(match name {
                $($($name => Op::$domain($family::$variant($begin)),)+)*
                _ => return None,
            })
        }

        /// Reads the arguments of an op.
        fn fill(op: &mut Op, arguments: &mut Arguments) -> Result<(), String> {
            match op {
                $(Op::$domain($family::$variant(_op)) => {
                    $($(_op.$($need_field).+ = needed(stringify!($need), arguments)?;)+)?
                    $($(read(&mut _op.$($may_field).+, stringify!($may), arguments)?;)+)?
                    $($(if let Some(is_not) = bool::take(stringify!($unless), arguments)? {
                        _op.$($unless_field).+ = !is_not;
                    })+)?
                })*
                _ => {}
            }
            Ok(())
        }

        /// The arguments of an op as text. `None` if the table does not have it.
        pub(super) fn arguments_of(op: &Op) -> Option<String> {
            let mut _words = Words::default();
            match op {
                $(Op::$domain($family::$variant(_op)) => {
                    $($(_op.$($need_field).+.say(stringify!($need), &mut _words);)+)?
                    $($(_op.$($may_field).+.say(stringify!($may), &mut _words);)+)?
                    $($((!_op.$($unless_field).+).say(stringify!($unless), &mut _words);)+)?
                })*
                _ => return None,
            }
            Some(_words.0)
        }
    };
}

ops! { t;
    [Compute::ComputeOp::ArgSort, 1 => 1] "argsort" = ArgSort::new(&t[0]);
        may axis = axis, descending = descending;
    [Compute::ComputeOp::ColorConvert, 1 => 1]
        "color_convert" = ColorConvert::new(&t[0], ColorFormat::Rgb, ColorFormat::Rgb);
        needs from = from, to = to;
        may standard = standard, range = range;
    [Compute::ComputeOp::Conv2dBackwardInput, 2 => 1]
        "conv2d_backward_input" = Conv2dBackwardInput::new(&t[0], &t[1], [0; 2]);
        needs size = input_size;
        may stride = options.stride, padding = options.padding, dilation = options.dilation, groups = options.groups;
    [Compute::ComputeOp::Conv2dBackwardWeight, 2 => 1]
        "conv2d_backward_weight" = Conv2dBackwardWeight::new(&t[0], &t[1], [0; 2]);
        needs size = kernel;
        may stride = options.stride, padding = options.padding, dilation = options.dilation, groups = options.groups;
    [Compute::ComputeOp::Gather, 2 => 1] "gather" = Gather::new(&t[0], &t[1], 0);
        may axis = axis, along = elementwise;
    [Compute::ComputeOp::Resize, 1 => 1] "resize" = Resize::new(&t[0], 0, 0);
        needs height = height, width = width;
        may layout = layout, by = mode;
    [Compute::ComputeOp::Scan, 1 => 1] "scan" = Scan::new(&t[0], ScanKind::Sum);
        may by = kind, axis = axis, reversed = reversed, exclusive = excludes_own;
    [Compute::ComputeOp::Softmax, 1 => 1] "softmax" = Softmax::new(&t[0]);
        may axis = axis, log = is_log;
    [Compute::ComputeOp::Sort, 1 => 1] "sort" = Sort::new(&t[0]);
        may axis = axis, descending = descending, stable = is_stable;
    [Compute::ComputeOp::SortPairs, 2 => 2] "sort_pairs" = SortPairs::new(&t[0], &t[1]);
        may axis = axis, descending = descending;
    [Compute::ComputeOp::TopK, 1 => 2] "topk" = TopK::new(&t[0], 0);
        needs k = k;
        may axis = axis;
        unless smallest = largest;

    [Signal::SignalOp::Adapt, 2 => 2] "adapt" = Adapt::new(&t[0], target(t), &t[1], 0.0);
        needs step = step;
        may target = target, normalized = normalized;
    [Signal::SignalOp::Channelize, 2 => 1] "channelize" = Channelize::new(&t[0], &t[1], 0);
        needs channels = channels;
    [Signal::SignalOp::ConvolutionalEncode, 1 => 1] "convolutional_encode" = ConvolutionalEncode::new(&t[0], 0);
        needs bits = bits;
        may ending = ending, polynomials = code.polynomials, sent = code.puncture;
    [Signal::SignalOp::Convolve, 2 => 1]
        "convolve" = Convolve::new(&t[0], &t[1]), "correlate" = Convolve::correlation(&t[0], &t[1]);
        may extent = extent;
    [Signal::SignalOp::Convolve2, 2 => 1]
        "convolve2" = Convolve2::new(&t[0], &t[1]), "correlate2" = Convolve2::correlation(&t[0], &t[1]);
        may extent = extent;
    [Signal::SignalOp::Dct, 1 => 1] "dct" = Dct::new(DctKind::Two, &t[0]);
        may by = kind, orthonormal = orthonormal;
    [Signal::SignalOp::Demodulate, 1 => 1] "demodulate" = Demodulate::hard(Constellation::Bpsk, &t[0]);
        needs points = constellation;
        may noise = decision;
    [Signal::SignalOp::DemodulateWave, 1 => 1] "demodulate_wave" = DemodulateWave::new(WAVE, &t[0]);
        needs by = wave;
    [Signal::SignalOp::ErasureEncode, 1 => 1] "erasure_encode" = ErasureEncode::new(&t[0], 0);
        needs parity = parity;
    [Signal::SignalOp::ErasureRebuild, 1 => 1] "erasure_rebuild" = ErasureRebuild::new(&t[0], 0, Vec::new());
        needs data = data, missing = missing;
    [Signal::SignalOp::Fft, 1 => 1] "fft" = Fft::new(&t[0]);
        may axis = axis, pairs = pairs;
    [Signal::SignalOp::Fft2, 1 => 1] "fft2" = Fft2::new(&t[0]), "ifft2" = Fft2::inverse(&t[0]);
    [Signal::SignalOp::FindPeaks, 1 => 2] "find_peaks" = FindPeaks::new(&t[0], 0);
        needs count = count;
        may distance = distance, at_least = at_least, planes = planes;
    [Signal::SignalOp::Fir, 2 => 1] "fir" = Fir::new(&t[0], &t[1]);
        may up = up, down = down;
    [Signal::SignalOp::Hilbert, 1 => 1] "hilbert" = Hilbert::new(&t[0]);
    [Signal::SignalOp::Ifft, 1 => 1] "ifft" = Ifft::new(&t[0]);
        may axis = axis, real = real_len;
    [Signal::SignalOp::Iir, 1 => 1] "iir" = Iir::new(&t[0], Vec::new());
        needs sections = sections;
    [Signal::SignalOp::Interleave, 1 => 1]
        "interleave" = Interleave::new(Interleaver::Block { rows: 0, columns: 0 }, &t[0]);
        needs rows = interleaver;
        may inverse = inverse;
    [Signal::SignalOp::Istft, 2 => 1] "istft" = Istft::new(&t[0], &Frames::new(&t[1], 0), 0);
        needs hop = frames.hop, len = len;
        may transform = frames.transform, centered = frames.centered, real = real;
    [Signal::SignalOp::LdpcDecode, 1 => 2] "ldpc_decode" = LdpcDecode::new(LDPC, &t[0]);
        needs code = code;
        may iterations = iterations;
    [Signal::SignalOp::LdpcEncode, 1 => 1] "ldpc_encode" = LdpcEncode::new(LDPC, &t[0]);
        needs code = code;
    [Signal::SignalOp::Mix, 1 => 1] "mix" = Mix::new(&t[0], 0.0);
        needs frequency = frequency;
        may phase = phase;
    [Signal::SignalOp::Modulate, 1 => 1] "modulate" = Modulate::new(Constellation::Bpsk, &t[0]);
        needs points = constellation;
    [Signal::SignalOp::ModulateWave, 1 => 1] "modulate_wave" = ModulateWave::new(WAVE, &t[0]);
        needs by = wave;
    [Signal::SignalOp::Psd, 2 => 1] "psd" = Psd::new(&t[0], &Frames::new(&t[1], 0));
        needs hop = frames.hop;
        may transform = frames.transform, centered = frames.centered, scale = scale;
        unless keep_mean = detrend;
    [Signal::SignalOp::ReadSamples, 1 => 1] "read_samples" = ReadSamples::new(SampleFormat::U8, &t[0]);
        needs format = format;
        may complex = complex;
    [Signal::SignalOp::RsDecode, 1 => 2] "rs_decode" = RsDecode::new(ReedSolomon::new(0, 0), &t[0]);
        needs data = code.data, parity = code.parity;
        may polynomial = code.polynomial, first_root = code.first_root, root_step = code.root_step, erased = erased;
    [Signal::SignalOp::RsEncode, 1 => 1] "rs_encode" = RsEncode::new(ReedSolomon::new(0, 0), &t[0]);
        needs data = code.data, parity = code.parity;
        may polynomial = code.polynomial, first_root = code.first_root, root_step = code.root_step;
    [Signal::SignalOp::Scramble, 1 => 1]
        "scramble" = Scramble::new(Scrambler::Additive { polynomial: 0, seed: 0 }, &t[0]);
        needs by = scrambler;
        may inverse = inverse;
    [Signal::SignalOp::Stft, 2 => 1] "stft" = Stft::new(&t[0], &Frames::new(&t[1], 0));
        needs hop = frames.hop;
        may transform = frames.transform, centered = frames.centered;
    [Signal::SignalOp::Track, 1 => 1] "track" = Track::new(TRACKER, &t[0]);
        needs by = tracker;
    [Signal::SignalOp::Viterbi, 1 => 1] "viterbi" = Viterbi::new(&t[0], 0);
        needs bits = bits;
        may ending = ending, polynomials = code.polynomials, sent = code.puncture;
}

/// Placeholders for mandatory fields.
const WAVE: Wave = Wave::Am { depth: 0.0 };
const LDPC: Ldpc = Ldpc::Telemetry { data: 0, rate: TelemetryRate::Half };
const TRACKER: Tracker = Tracker::Carrier { phases: 0, bandwidth: 0.0 };

/// The default target of an adaptive filter: its third operand, or a constant modulus.
fn target(t: &[Tensor]) -> AdaptTarget {
    t.get(2).map_or(AdaptTarget::Modulus(1.0), |signal| AdaptTarget::Signal(signal.clone()))
}

/// Every name of the table.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, ..)| *name)
}

/// A parsed op, for the recorder.
struct ParsedOp(Result<Op>);

impl Operation for ParsedOp {
    type Output = Value;

    fn into_op(self) -> Result<Op> {
        let op = self.0?;
        op.validate()?;
        Ok(op)
    }

    fn output(value: Value) -> Result<Value> {
        Ok(value)
    }
}

/// Adds the op of this name: its first output, and the second if it has two. `None` if the table
/// has no such op.
pub(super) fn build(
    g: &mut GraphBuilder,
    name: &str,
    operands: &[NodeId],
    arguments: &mut Arguments,
) -> Option<Result<(NodeId, Option<NodeId>), String>> {
    let (_, least, outputs) = *ROWS.iter().find(|(known, ..)| *known == name)?;
    if operands.len() < least {
        return Some(Err(format!("{name} has {least} operands, got {}", operands.len())));
    }
    let mut fault = None;
    let make = |tensors: &[Tensor]| {
        ParsedOp(made(name, tensors, arguments).map_err(|reason| {
            fault = Some(reason);
            Error::invalid("graph: text of an op", "its arguments", "others")
        }))
    };
    let nodes = match outputs {
        2 => g.op_pair(operands, make).map(|(first, second)| (first, Some(second))),
        _ => g.op(operands, make).map(|node| (node, None)),
    };
    Some(match fault {
        Some(reason) => Err(reason),
        None => nodes.map_err(|error| error.to_string()),
    })
}

/// The op of this name over these tensors. Each of them must be a part of the op.
fn made(name: &str, tensors: &[Tensor], arguments: &mut Arguments) -> Result<Op, String> {
    let mut op = begun(name, tensors).ok_or_else(|| format!("there is no op `{name}`"))?;
    fill(&mut op, arguments)?;
    let mut parts = 0;
    op.for_each_tensor(&mut |_| parts += 1);
    match parts == tensors.len() {
        true => Ok(op),
        false => Err(format!("{name} with these arguments has {parts} operands, got {}", tensors.len())),
    }
}
