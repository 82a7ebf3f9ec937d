//! The outputs of an op, known before it runs: the element types and shapes of its tensors, in the
//! order of the parts of its value. Also checks whether an engine's answer fits the op.

use super::compute::{ComputeOp, Kernel};
use super::crypto::answer;
use super::graph::GraphOp;
use super::signal::{SignalOp, Tracker};
use super::{Op, Value};
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{Part, PartRef};
use crate::shape::Shape;
use crate::tensor::{Location, Tensor};

/// Number of parts of a wrong answer that its error message shows.
const PARTS_TOLD_MAX: usize = 4;

/// The types of an op's output.
enum Types<'a> {
    One(DType, Shape),
    Two([(DType, Shape); 2]),
    Kernel(&'a Kernel),
    /// Tensors of the same types as these.
    Like(&'a [Tensor]),
}

impl Types<'_> {
    fn to_vec(&self) -> Vec<(DType, Shape)> {
        match self {
            Types::One(dtype, shape) => vec![(*dtype, *shape)],
            Types::Two(both) => both.to_vec(),
            Types::Kernel(kernel) => kernel.output_types().collect(),
            Types::Like(tensors) => tensors.iter().map(type_of).collect(),
        }
    }

    /// Whether a value has these types. Allocates nothing.
    fn fit(&self, value: &Value) -> bool {
        match (self, value) {
            (Types::One(dtype, shape), Value::Tensor(tensor)) => type_of(tensor) == (*dtype, *shape),
            (Types::Two(both), Value::Pair(first, second)) => [type_of(first), type_of(second)] == *both,
            (Types::Kernel(kernel), Value::List(parts)) => are(parts, kernel.output_types()),
            (Types::Like(tensors), Value::List(parts)) => are(parts, tensors.iter().map(type_of)),
            _ => false,
        }
    }
}

fn type_of(tensor: &Tensor) -> (DType, Shape) {
    (tensor.dtype(), *tensor.shape())
}

fn are(parts: &[Part], types: impl Iterator<Item = (DType, Shape)>) -> bool {
    let got = parts.iter().map(|part| part.as_ref().tensor().map(type_of));
    got.eq(types.map(Some))
}

impl Op {
    /// The element types and shapes of the op's output tensors. Fails if the inputs are invalid,
    /// and for ops whose output is not tensors.
    pub fn outputs(&self) -> Result<Vec<(DType, Shape)>> {
        self.types().map(|types| types.to_vec())
    }

    /// The answer to an op whose outputs are all tensors without elements. `None` if there is
    /// something to compute or to check. Engines ask for it before they start: a kernel may
    /// otherwise loop over 2^40 rows of length zero.
    ///
    /// The engine handles an op with integer inputs, since indices and symbols are checked one by
    /// one, and a caller's own kernel, whose closure may do more than fill its outputs.
    pub fn empty_answer(&self) -> Option<Value> {
        if !matches!(self, Op::Compute(_) | Op::Signal(_)) || matches!(self, Op::Compute(ComputeOp::Kernel(_))) {
            return None;
        }
        let (mut has_empty, mut has_integers) = (false, false);
        self.for_each_tensor(&mut |tensor| {
            has_empty |= tensor.elements() == 0;
            has_integers |= tensor.elements() > 0 && tensor.dtype().is_integer();
        });
        if !has_empty || has_integers {
            return None;
        }
        let empty = |(dtype, shape): &(DType, Shape)| match shape.elements() {
            0 => Tensor::zeros(*dtype, *shape).ok(),
            _ => None,
        };
        match self.answer_types()? {
            Types::One(dtype, shape) => empty(&(dtype, shape)).map(Value::Tensor),
            Types::Two([first, second]) => Some(Value::Pair(empty(&first)?, empty(&second)?)),
            Types::Kernel(_) | Types::Like(_) => None,
        }
    }

    /// Checks that this is an answer to the op from an engine of this device: tensors of the right
    /// number, element types and shapes, all of them on the host, on this device, or on a device
    /// that holds a part of the op. A wrong answer is [`Error::DeviceFault`]. Of an extension op's
    /// answer only the locations are checked, and the op itself is not called.
    pub fn check_answer(&self, value: &Value, device: DeviceId) -> Result<()> {
        if let Some(types) = self.answer_types()
            && !types.fit(value)
        {
            return Err(self.wrong_answer(value, device, &format!("expected {}", told(types.to_vec()))));
        }
        if let Op::Crypto(op) = self
            && !answer::fits(op, value)
        {
            return Err(self.wrong_answer(value, device, "expected one answer for each message"));
        }
        let astray = |part: &PartRef<'_>| match part.location() {
            Location::Host => false,
            at => at != Location::Device(device) && !self.has_part_at(at),
        };
        if let Some(part) = value.parts().find(astray) {
            let at = part.location();
            return Err(self.wrong_answer(value, device, &format!("one part is on {at}, where the op has none")));
        }
        Ok(())
    }

    /// The output types of the op, also for ops that cannot be nodes of graphs. `None` if only the
    /// op's author knows.
    fn answer_types(&self) -> Option<Types<'_>> {
        let one = |dtype, shape: Result<Shape>| Some(Types::One(dtype, shape.ok()?));
        match self {
            Op::Compute(ComputeOp::Normalize(op)) => one(op.output, Ok(op.output_shape())),
            Op::Compute(ComputeOp::Search(op)) => {
                let shape = op.output_shape().ok()?;
                Some(Types::Two([(DType::U32, shape), (DType::F32, shape)]))
            }
            Op::Compute(ComputeOp::Transfer(op)) => one(op.input.dtype(), Ok(*op.input.shape())),
            Op::Graph(GraphOp::RunGraph(op)) => Some(Types::Like(&op.instance().ok()?.outputs)),
            Op::Crypto(_) | Op::Extension(_) => None,
            Op::Compute(_) | Op::Signal(_) => self.types().ok(),
        }
    }

    fn has_part_at(&self, place: Location) -> bool {
        let mut found = false;
        if matches!(self, Op::Extension(_)) {
            return false;
        }
        self.for_each_part(&mut |part| found |= part.location() == place);
        found
    }

    #[cold]
    fn wrong_answer(&self, value: &Value, device: DeviceId, expected: &str) -> Error {
        let parts: Vec<String> = value.parts().take(PARTS_TOLD_MAX).map(|part| format!("{part:?}")).collect();
        let got = format!("{} parts ({})", value.parts().count(), parts.join(", "));
        let name = if matches!(self, Op::Extension(_)) { "an op of its own" } else { self.name() };
        Error::DeviceFault { device, reason: format!("it answered {name} with {got}; {expected}") }
    }

    fn types(&self) -> Result<Types<'_>> {
        match self {
            Op::Compute(op) => self.compute_types(op),
            Op::Signal(op) => self.signal_types(op),
            Op::Crypto(_) | Op::Graph(_) | Op::Extension(_) => self.without_outputs(),
        }
    }

    fn compute_types<'a>(&self, op: &'a ComputeOp) -> Result<Types<'a>> {
        let one = |dtype, shape| Ok(Types::One(dtype, shape));
        match op {
            ComputeOp::ArgSort(op) => one(DType::U32, op.output_shape()),
            ComputeOp::Attention(op) => one(op.q.dtype(), op.output_shape()?),
            ComputeOp::ColorConvert(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::Conv2d(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::Conv2dBackwardInput(op) => one(op.gradient.dtype(), op.output_shape()?),
            ComputeOp::Conv2dBackwardWeight(op) => one(op.gradient.dtype(), op.output_shape()?),
            ComputeOp::Gather(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::Kernel(op) => Ok(Types::Kernel(op)),
            ComputeOp::LayerNorm(op) => one(op.input.dtype(), op.output_shape()),
            ComputeOp::Map(op) => one(op.output_dtype()?, op.output_shape()?),
            ComputeOp::MatMul(op) => one(op.output_dtype(), op.output_shape()?),
            ComputeOp::Pool2d(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::Reduce(op) => one(op.output_dtype(), op.output_shape()?),
            ComputeOp::Resize(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::RowMap(op) => one(op.output_dtype()?, op.output_shape()?),
            ComputeOp::Scan(op) => one(op.input.dtype(), op.output_shape()),
            ComputeOp::Softmax(op) => one(op.input.dtype(), op.output_shape()),
            ComputeOp::Sort(op) => one(op.input.dtype(), op.output_shape()),
            ComputeOp::SortPairs(op) => Ok(Types::Two([type_of(&op.keys), type_of(&op.values)])),
            ComputeOp::TopK(op) => {
                let shape = op.output_shape()?;
                Ok(Types::Two([(op.input.dtype(), shape), (DType::U32, shape)]))
            }
            ComputeOp::Transpose(op) => one(op.input.dtype(), op.output_shape()?),
            ComputeOp::Normalize(_) | ComputeOp::Search(_) | ComputeOp::Transfer(_) => self.without_outputs(),
        }
    }

    fn signal_types<'a>(&self, op: &'a SignalOp) -> Result<Types<'a>> {
        let one = |dtype, shape| Ok(Types::One(dtype, shape));
        match op {
            SignalOp::Adapt(op) => {
                let (signal, weights) = op.output_shapes()?;
                Ok(Types::Two([(DType::Complex64, signal), (DType::Complex64, weights)]))
            }
            SignalOp::Channelize(op) => one(DType::Complex64, op.output_shape()?),
            SignalOp::ConvolutionalEncode(op) => one(DType::U8, op.output_shape()?),
            SignalOp::Convolve(op) => one(op.input.dtype(), op.output_shape()?),
            SignalOp::Convolve2(op) => one(op.input.dtype(), op.output_shape()?),
            SignalOp::Dct(op) => one(DType::F32, *op.input.shape()),
            SignalOp::DemodulateWave(op) => one(op.wave.message_dtype(), op.output_shape()?),
            SignalOp::Demodulate(op) => op.output_type().map(|(dtype, shape)| Types::One(dtype, shape)),
            SignalOp::ErasureEncode(op) => one(DType::U8, op.output_shape()?),
            SignalOp::ErasureRebuild(op) => one(DType::U8, op.output_shape()?),
            SignalOp::Fft(op) => one(op.output_dtype(), op.output_shape()?),
            SignalOp::Fft2(op) => one(DType::Complex64, op.output_shape()?),
            SignalOp::FindPeaks(op) => {
                let shape = op.output_shape()?;
                Ok(Types::Two([(DType::F32, shape), (DType::I32, shape)]))
            }
            SignalOp::Fir(op) => one(op.input.dtype(), op.output_shape()?),
            SignalOp::Hilbert(op) => one(DType::Complex64, *op.input.shape()),
            SignalOp::Ifft(op) => one(op.output_dtype(), op.output_shape()?),
            SignalOp::Iir(op) => one(op.input.dtype(), *op.input.shape()),
            SignalOp::Interleave(op) => Ok(Types::One(op.input.dtype(), *op.input.shape())),
            SignalOp::Istft(op) => one(op.output_dtype(), op.output_shape()?),
            SignalOp::LdpcDecode(op) => {
                let (data, counts) = op.output_shapes()?;
                Ok(Types::Two([(DType::U8, data), (DType::I32, counts)]))
            }
            SignalOp::LdpcEncode(op) => one(DType::U8, op.output_shape()?),
            SignalOp::Mix(op) => one(DType::Complex64, *op.input.shape()),
            SignalOp::Modulate(op) => one(DType::Complex64, *op.input.shape()),
            SignalOp::ModulateWave(op) => one(DType::Complex64, op.output_shape()?),
            SignalOp::Psd(op) => one(DType::F32, op.output_shape()?),
            SignalOp::ReadSamples(op) => op.output_type().map(|(dtype, shape)| Types::One(dtype, shape)),
            SignalOp::RsDecode(op) => {
                let (data, counts) = op.output_shapes()?;
                Ok(Types::Two([(DType::U8, data), (DType::I32, counts)]))
            }
            SignalOp::RsEncode(op) => one(DType::U8, op.output_shape()?),
            SignalOp::Scramble(op) => one(DType::U8, *op.input.shape()),
            SignalOp::Stft(op) => one(DType::Complex64, op.output_shape()?),
            // The number of symbols of a signal depends on its contents.
            SignalOp::Track(op) if !matches!(op.tracker, Tracker::Timing { .. }) => {
                one(DType::Complex64, *op.input.shape())
            }
            SignalOp::Track(_) => self.without_outputs(),
            SignalOp::Viterbi(op) => one(DType::U8, op.output_shape()?),
            SignalOp::Crc(_) | SignalOp::StartFilter(_) | SignalOp::StreamFilter(_) => self.without_outputs(),
        }
    }

    fn without_outputs<'a>(&self) -> Result<Types<'a>> {
        let reason = "the shapes of its outputs are not known before it runs".to_owned();
        Err(Error::Unsupported { op: self.name(), reason })
    }
}

/// The types as text.
fn told(types: Vec<(DType, Shape)>) -> String {
    let each: Vec<String> =
        types.iter().take(PARTS_TOLD_MAX).map(|(dtype, shape)| format!("{dtype} {shape:?}")).collect();
    format!("{} tensors ({})", types.len(), each.join(", "))
}
