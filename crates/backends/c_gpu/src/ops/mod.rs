//! Translates ops to launches: one folder per domain, one file per op. Each op brings its inputs to
//! the device, allocates its output, and queues the computation. No code here waits for the device.

use panoply_core::backend::FirstGuess;
use panoply_core::op::signal::SignalOp;
use panoply_core::{DType, DeviceInfo, Error, Op, Result, Support, Tensor, Value};

use crate::context::Context;
use crate::driver::Stream;

pub mod compute;
pub(crate) mod crypto;
pub(crate) mod graph;
mod messages;
pub mod signal;
pub(crate) mod together;

panoply_core::domain_modules! {
    Compute in compute;
    Crypto in crypto;
    Signal in signal;
    Graph in graph;
}

/// The stream on which an op's work begins. An op that begins with a copy to the host consists of
/// nothing else.
pub(crate) fn first_stream(op: &Op, context: &Context) -> Stream {
    match op {
        Op::Compute(op) => compute::first_stream(op, context),
        _ => Stream::Compute,
    }
}

/// Queues one op.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    by_domain!(op => run(op, context), Err(Support::unknown(op).refusal(op)))
}

/// Whether devices of the C dialect support this op.
pub fn supports(op: &Op) -> Support {
    if let Err(error) = check_axes(op) {
        return Support::No(error.to_string());
    }
    by_domain!(op => supports(op), Support::unknown(op))
}

/// Whether this device of the C dialect supports the op, including the memory that a graph needs.
pub fn supports_on(device: &DeviceInfo, op: &Op) -> Support {
    match (supports(op), op) {
        (Support::Yes, Op::Graph(graph)) => graph::fits(graph, device),
        (answer, _) => answer,
    }
}

/// Whether a kernel of the op computes in f64 although its tensors do not have that type.
pub fn computes_in_f64(op: &Op) -> bool {
    match op {
        Op::Signal(SignalOp::Iir(_)) => true,
        Op::Signal(SignalOp::FindPeaks(op)) => op.input.dtype() == DType::Complex64,
        _ => false,
    }
}

/// The estimate for an op while no similar op has run on the device.
pub fn first_guess(device: &DeviceInfo, op: &Op) -> FirstGuess {
    match op {
        Op::Crypto(_) => crypto::first_guess(op, device),
        _ => FirstGuess::of(device),
    }
}

/// Kernels number positions along an axis with 32 bits, but with 64 bits if they number contiguous
/// elements for any axes.
fn check_axes(op: &Op) -> Result<()> {
    let goes_over_elements = matches!(op, Op::Compute(op) if compute::goes_over_elements(op));
    let mut checked = Ok(());
    op.for_each_tensor(&mut |tensor| {
        if !(goes_over_elements && tensor.is_contiguous())
            && let Some(got) = longest_axis(tensor).filter(|axis| *axis > u32::MAX as usize)
        {
            checked = Err(Error::OutOfBounds { what: "the axis of a tensor", limit: u32::MAX as usize, got });
        }
    });
    checked
}

/// The longest axis of a tensor; `None` if the tensor has no elements.
fn longest_axis(tensor: &Tensor) -> Option<usize> {
    if tensor.elements() == 0 { None } else { tensor.shape().iter().copied().max() }
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_there;
    use panoply_core::op::compute::{Map, Reduce, Scan, ScanKind, Softmax, Transfer, Transpose};
    use panoply_core::op::crypto::{AeadAlgorithm, Hash, HashAlgorithm, Key, Messages, Seal};
    use panoply_core::{Backend, Bytes, Describe, OpenOptions, Operation};

    use super::*;
    use crate::GpuBackend;

    #[test]
    fn messages_of_the_host_are_left_to_the_host_at_first() {
        let backend = match crate::EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let device = backend.discover().unwrap().remove(0);
        let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[1; 32]).unwrap();
        let host = Seal::new(&key, [2; 12], vec![3; 1 << 16]).into_op().unwrap();
        let cpu = FirstGuess { overhead_ns: 2_000.0, work_unit_ns: 0.5 };
        let at = |guess: FirstGuess| guess.overhead_ns + guess.work_unit_ns * 65_536.0;
        assert!(at(first_guess(&device, &host)) > at(cpu));
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let message = Transfer::to_device(&Tensor::zeros(DType::U8, [1 << 20]).unwrap(), device.id).into_op().unwrap();
        let message = run_there(&mut engine, message).unwrap().into_tensor().unwrap();
        let resident = Seal::new(&key, [2; 12], Bytes::from_tensor(&message).unwrap()).into_op().unwrap();
        assert!(at(first_guess(&device, &resident)) < at(first_guess(&device, &host)));
    }

    /// One thread processes a whole message, so one long message takes long, and a too long message
    /// is refused.
    #[test]
    fn long_messages_that_one_thread_has_are_left_to_others() {
        let backend = match crate::EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let device = backend.discover().unwrap().remove(0);
        let of = |count: usize, len: usize| {
            let all = Bytes::from_vec(vec![0; count * len]);
            Hash::new(HashAlgorithm::Sha256, Messages::split(all, len).unwrap()).into_op().unwrap()
        };
        let many = first_guess(&device, &of(4096, 1 << 10)).overhead_ns;
        let one = first_guess(&device, &of(1, 4 << 20)).overhead_ns;
        assert!(one > 100.0 * many, "{one} {many}");
        assert_eq!(supports(&of(2, 64 << 20)), Support::Yes);
        assert!(matches!(supports(&of(1, (64 << 20) + 1)), Support::No(_)));
    }

    #[test]
    fn axes_beyond_32_bits_are_refused_before_anything_runs() {
        let one = Tensor::zeros(DType::F32, [1, 1]).unwrap();
        let most = one.broadcast_to([2, u32::MAX as usize]).unwrap();
        let over = one.broadcast_to([2, u32::MAX as usize + 1]).unwrap();
        let ops = |x: &Tensor| {
            [
                Map::neg(x).into_op(),
                Softmax::new(x).into_op(),
                Transpose::new(x).into_op(),
                Reduce::sum(x).into_op(),
                Scan::new(x, ScanKind::Sum).into_op(),
            ]
            .map(Result::unwrap)
        };
        for op in ops(&most) {
            assert_eq!(supports(&op), Support::Yes, "{}", op.name());
        }
        for op in ops(&over) {
            let Support::No(reason) = supports(&op) else { panic!("{} is not refused", op.name()) };
            assert!(reason.contains("at most 4294967295, got 4294967296"), "{reason}");
        }
        // No kernel iterates over an axis of a tensor without elements.
        let none = Tensor::zeros(DType::F32, [0, 1]).unwrap().broadcast_to([0, u32::MAX as usize + 1]).unwrap();
        assert_eq!(supports(&Map::neg(&none).into_op().unwrap()), Support::Yes);
    }
}
