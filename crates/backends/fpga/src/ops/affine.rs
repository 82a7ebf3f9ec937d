//! Affine: `y = 2x + 1`, the op of the smallest core. The op is an extension and not one of
//! Panoply's own, as an op for a custom core would be.

use panoply_core::{DType, Describe, Error, Op, Operation, PartMut, PartRef, Result, Shape, Tensor, Value};

use super::{CardWork, CorePass, Packet};
use crate::map::{BEAT_BYTES, CoreKind};

/// Size of a packet: large enough that the header's cost is negligible.
const PACKET_BYTES: usize = 64 << 10;

/// `y = 2x + 1` for each i32, with wrap-around.
#[derive(Clone, Debug)]
pub struct Affine {
    /// The input integers.
    pub input: Tensor,
}

impl Affine {
    /// Doubles each integer and adds one.
    pub fn new(input: &Tensor) -> Affine {
        Affine { input: input.clone() }
    }
}

impl Describe for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn validate(&self) -> Result<()> {
        match self.input.dtype() {
            DType::I32 => Ok(()),
            got => Err(Error::DTypeMismatch { what: "affine", expected: DType::I32, got }),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }
}

impl Operation for Affine {
    type Output = Tensor;

    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }

    fn output(value: Value) -> Result<Tensor> {
        value.into_tensor()
    }
}

struct AffineWork {
    input: Option<Vec<u8>>,
    output: Vec<i32>,
    len: usize,
    shape: Shape,
}

pub(super) fn work(op: &Affine) -> Result<Box<dyn CardWork>> {
    let values = op.input.to_vec::<i32>()?;
    let mut input: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    input.resize(input.len().next_multiple_of(BEAT_BYTES), 0);
    Ok(Box::new(AffineWork { input: Some(input), output: Vec::new(), len: values.len(), shape: *op.input.shape() }))
}

impl CardWork for AffineWork {
    fn pass(&mut self, _number: usize) -> Option<CorePass> {
        let input = self.input.take()?;
        let packet = |bytes: &[u8]| Packet { payload: bytes.into(), answer_bytes: bytes.len() };
        let packets = input.chunks(PACKET_BYTES).map(packet).collect();
        Some(CorePass { core: CoreKind::Affine, registers: Vec::new(), packets })
    }

    fn take(&mut self, _pass: usize, _packet: usize, answer: &[u8]) {
        self.output.extend(answer.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)));
    }

    fn value(mut self: Box<Self>) -> Result<Value> {
        self.output.truncate(self.len);
        Tensor::from_vec(self.output, self.shape).map(Value::Tensor)
    }
}
