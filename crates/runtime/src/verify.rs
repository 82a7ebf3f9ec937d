//! Which ops are run a second time on another device, and when two answers count as equal.
//!
//! An engine's answer may have the right shape and wrong numbers. With [`Verify`], a share of the
//! ops of every device is run again elsewhere, and the answers are compared. These rules say how
//! close they must be:
//!
//! | ops | floating point | integers and bytes |
//! | --- | --- | --- |
//! | copies: transposes, gathers, sorts, interleaving | equal | equal |
//! | element by element: maps | each within the tolerance of its own size | equal |
//! | sums: products, convolutions, norms, transforms, filters, graphs | each within the tolerance of the tensor's largest element | equal |
//! | decisions: demodulation, tracking, decoders of soft values | as sums, except 1 % of the elements | as equal, except 1 % |
//! | hashes, ciphers, codes, checksums | | equal, compared in constant time |
//!
//! The tolerance is 1e-9 for `f64`, 2e-3 for `f32` and complex numbers, 4e-2 for `f16`, for
//! products that may be rounded to ten bits and for numbers that become bytes, and 1e-1 for `bf16`.
//! This is several times the legitimate difference between devices, so that a sound device is not
//! blamed. The coarsest of all types involved counts: those of the inputs, of the outputs, of an
//! expression's casts, and of all nodes of a graph. NaN equals NaN, and infinities must agree in
//! sign.
//!
//! Terms that cancel out keep their rounding errors. So answers that differ by more than the
//! tolerance are compared again with a bound of these errors, which is relative to the sum of the
//! magnitudes of all terms. If a graph has no such bound (it divides by what it computes, or holds
//! an op without a rule), or one as large as half of its largest element, the comparison is
//! skipped, and the report gives this reason: its device is not blamed.
//!
//! A map or a graph counts as a decision too if floating-point numbers in it are rounded, compared,
//! used for selection, or converted to integers or indices: a number close to a boundary may end up
//! on either side. Of sixteen elements or more, one may always differ.
//!
//! For `TopK` and `SortPairs` the keys are compared, for `Search` the distances and for graphs the
//! floating-point outputs, but not the indices beside them: equal keys may be in any order. Ops
//! that do not give the same answer twice, or are not repeatable, are not compared: `ArgSort`,
//! `FindPeaks`, compression, signatures, sessions and streams, transfers, ops that name device
//! objects, a caller's own kernels, and extension ops. Graphs that no device runs whole, which are
//! cut into parts, are not compared either.

use std::time::Duration;

use panoply_core::op::compute::ComputeOp;
use panoply_core::op::crypto::CryptoOp;
use panoply_core::op::signal::SignalOp;
use panoply_core::{Describe, Domain, Op};

mod agreement;
mod bounds;

pub(crate) use agreement::difference;

/// The share of the ops that is run a second time, on another device.
///
/// The answer of a chosen op is held back until it was compared. If the two answers differ and one
/// is the processor's, that one is trusted; otherwise a third device decides, and the majority is
/// trusted. The caller gets the right answer if its fallback policy lets the op run elsewhere, and
/// an error otherwise. [`Report::verification`](panoply_core::Report) holds the result.
///
/// After a wrong answer of a device, all its next answers are compared, until one is right. From
/// the second wrong answer in a row on, each counts as `every` failures, because it stands for the
/// answers that were not compared. A single wrong answer counts as one failure, because a number
/// close to a boundary may end up on either side on sound devices. If two devices disagree and no
/// third can decide, the op fails, and each of the two is charged one failure.
///
/// A comparison is not begun if it is expected to take longer than an answer is held back, or
/// longer than half of an op's time limit on the device, because an op that was begun runs to its
/// end. It is not begun either on a device that has spent its share of time on comparisons.
///
/// Ops that ran on the processor are not compared. An op that requires a device is run again on
/// other devices all the same, but never on devices that its caller forbids. Ops that probe a
/// device after failures are always compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    /// Compare one in this many ops of each device, beginning with its first. Zero: only ops that
    /// ask for it with [`RunOptions::verify_every`](crate::RunOptions::verify_every).
    pub every: u32,
    /// The longest time that an answer is held back; after that it is handed out uncompared. More
    /// than 0 s.
    pub wait_max: Duration,
    /// The largest percentage of its time that a device may spend on comparing the answers of
    /// others, in addition to one second at the beginning.
    pub time_percent_max: u32,
    /// The domains whose ops are compared; empty means all. Ops that ask for it are compared in any
    /// case.
    pub domains: Vec<Domain>,
}

impl Default for Verify {
    fn default() -> Verify {
        Verify { every: 100, wait_max: Duration::from_secs(1), time_percent_max: 20, domains: Vec::new() }
    }
}

impl Verify {
    /// Compares one in `every` ops.
    pub fn every(every: u32) -> Verify {
        Verify { every, ..Verify::default() }
    }

    /// Compares only the ops that ask for it, for example those of one server.
    pub fn where_asked() -> Verify {
        Verify::every(0)
    }

    /// Whether ops like this one are compared at all.
    pub(crate) fn wants(&self, op: &Op, asked: bool) -> bool {
        (asked || self.domains.is_empty() || self.domains.contains(&op.domain())) && Rule::of(op).is_some()
    }
}

/// How two answers to one op are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Every element is equal.
    Exact,
    /// Each element is within the tolerance of its own size.
    Elements,
    /// Each element is within the tolerance of the largest element.
    Sums,
    /// As `Rule::Sums`, but integers are not compared: they are indices.
    SumsAndPlaces,
    /// As `Rule::Exact` for the first output. The other outputs, which are indices or values that
    /// belong to the keys, are not compared.
    ExactKeys,
    /// As `Rule::Sums`, except for a few elements.
    Decisions,
}

impl Rule {
    /// The rule for an op. `None` if the op is not compared.
    fn of(op: &Op) -> Option<Rule> {
        let rule = match op {
            Op::Extension(_) => return None,
            Op::Compute(op) => of_compute(op)?,
            Op::Crypto(op) => match op {
                CryptoOp::Compress(_) | CryptoOp::Sign(_) => return None,
                _ => Rule::Exact,
            },
            Op::Signal(op) => of_signal(op)?,
            Op::Graph(_) => Rule::SumsAndPlaces,
        };
        let mut plain = op.is_repeatable();
        op.for_each_part(&mut |part| plain &= part.object().is_none());
        plain.then_some(rule)
    }
}

fn of_compute(op: &ComputeOp) -> Option<Rule> {
    Some(match op {
        ComputeOp::Kernel(_) | ComputeOp::Transfer(_) | ComputeOp::ArgSort(_) => return None,
        ComputeOp::Transpose(_) | ComputeOp::Gather(_) | ComputeOp::Sort(_) => Rule::Exact,
        ComputeOp::SortPairs(_) | ComputeOp::TopK(_) => Rule::ExactKeys,
        ComputeOp::Search(_) => Rule::SumsAndPlaces,
        ComputeOp::Map(_) => Rule::Elements,
        ComputeOp::ColorConvert(_) | ComputeOp::Resize(_) | ComputeOp::Normalize(_) => Rule::Decisions,
        _ => Rule::Sums,
    })
}

fn of_signal(op: &SignalOp) -> Option<Rule> {
    Some(match op {
        SignalOp::StartFilter(_) | SignalOp::StreamFilter(_) => return None,
        SignalOp::Interleave(_)
        | SignalOp::Scramble(_)
        | SignalOp::ConvolutionalEncode(_)
        | SignalOp::Crc(_)
        | SignalOp::ErasureEncode(_)
        | SignalOp::ErasureRebuild(_)
        | SignalOp::RsEncode(_)
        | SignalOp::RsDecode(_)
        | SignalOp::LdpcEncode(_) => Rule::Exact,
        SignalOp::FindPeaks(_) => return None,
        SignalOp::Adapt(_)
        | SignalOp::Demodulate(_)
        | SignalOp::DemodulateWave(_)
        | SignalOp::LdpcDecode(_)
        | SignalOp::ReadSamples(_)
        | SignalOp::Track(_)
        | SignalOp::Viterbi(_) => Rule::Decisions,
        _ => Rule::Sums,
    })
}
