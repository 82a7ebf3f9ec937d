//! Infers how the outputs of an op depend on the symbols in its inputs, by asking the op at sample
//! sizes.

use super::dim::{Dim, SymbolSizes};
use super::node::Nodes;
use super::placeholder::placeholder;
use super::refusal::in_symbols;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Describe, Op};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A symbolic tensor: its element type and its dimensions.
pub(super) type SymbolicType = (DType, Vec<Dim>);

/// Makes placeholders for these types at sample sizes. The slot of each is its index in the list.
pub(super) fn samples(types: &[(DType, &[Dim])], sizes: &SymbolSizes) -> Result<Vec<Tensor>> {
    let sample =
        |(slot, (dtype, dims)): (usize, &(DType, &[Dim]))| placeholder(*dtype, Nodes::shape(dims, sizes)?, slot);
    types.iter().enumerate().map(sample).collect()
}

/// The output types of an op whose input tensors have these types, in the order of its parts.
/// Errors have the names of the symbols.
pub(super) fn outputs(op: &Op, types: &[(DType, &[Dim])], symbols: &[String]) -> Result<Vec<SymbolicType>> {
    let (first, second) = match SymbolSizes::SAMPLES.map(|sizes| sampled_outputs(op, types, &sizes)) {
        [Err(first), Err(second)] => return Err(in_symbols(first, &second, symbols)),
        [first, second] => (first?, second?),
    };
    let depends = || {
        let expected = "output dimensions that are products of numbers and symbols";
        Error::invalid("graph: an op", expected, "one that depends on a symbol in another way; give it a number")
    };
    if first.len() != second.len() {
        return Err(depends());
    }
    let symbolic = |((dtype, first), (_, second)): ((DType, Shape), (DType, Shape))| {
        let sizes = first.iter().zip(second.iter());
        let dims: Vec<Dim> = sizes.map(|(first, second)| Dim::of_samples([*first, *second])).collect();
        let again = Nodes::shape(&dims, &SymbolSizes::SAMPLES[1])?;
        if again == second && first.rank() == second.rank() { Ok((dtype, dims)) } else { Err(depends()) }
    };
    first.into_iter().zip(second).map(symbolic).collect()
}

fn sampled_outputs(op: &Op, types: &[(DType, &[Dim])], sizes: &SymbolSizes) -> Result<Vec<(DType, Shape)>> {
    let mut op = op.clone();
    let mut tensors = samples(types, sizes)?.into_iter();
    op.for_each_tensor_mut(&mut |tensor| {
        if let Some(sample) = tensors.next() {
            *tensor = sample;
        }
    });
    op.validate()?;
    op.outputs()
}
