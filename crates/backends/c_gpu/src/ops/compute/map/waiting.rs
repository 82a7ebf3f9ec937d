//! Deferred maps of a graph: maps of the same expression are collected into one launch, such as an
//! optimiser's steps of all parameters.
//!
//! 1. A step that is a map over whole tensors is deferred, if kernels can take addresses from their
//!    arguments. Its output has memory, but nothing is queued for it yet.
//! 2. The next step joins the deferred maps if it is a map of the same expression, of any length,
//!    and if no map uses another's output.
//! 3. Before any other work is queued, and at the end of the graph, the deferred maps are queued
//!    ([`DeferredMaps::flush`]).

use panoply_core::expr::Program;
use panoply_core::op::compute::Map;
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::generate::{Access, MapForm, Reach, Together};

use super::{MapInputs, Maps, OTHER_ARGUMENT_BYTES, THREADS, UNROLLED_NODES_MAX, pass_constants};
use crate::arguments::{ARGUMENT_BYTES_MAX, Arguments};
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Maximum elements of a deferred map. Larger maps occupy the device alone.
const ELEMENTS_MAX: usize = 1 << 20;
/// Words of a map in addition to its inputs' addresses: the number of elements, and the output's
/// address.
const OTHER_WORDS: usize = 2;

/// The deferred maps.
#[derive(Default)]
pub(crate) struct DeferredMaps {
    group: Option<Group>,
}

/// Maps of one expression, with the same input layouts.
struct Group {
    program: Program,
    output: DType,
    dtypes: Vec<DType>,
    accesses: Vec<Access>,
    width: u32,
    maps: Vec<DeferredMap>,
}

/// One deferred map.
struct DeferredMap {
    elements: usize,
    target: Address,
    inputs: Vec<Address>,
    /// The byte ranges that it writes and reads: first byte, and end.
    written: (u64, u64),
    read: Vec<(u64, u64)>,
}

impl DeferredMaps {
    /// Defers a map and returns its output; `None` if the map cannot be deferred. Queues the
    /// deferred maps that it cannot join.
    pub(crate) fn take(&mut self, op: &Map, context: &mut Context) -> Result<Option<Value>> {
        let (program, output, shape) = (op.program()?, op.output_dtype()?, op.output_shape()?);
        let elements = shape.elements();
        let waits = context.driver.properties().pointers
            && (1..=ELEMENTS_MAX).contains(&elements)
            && program.nodes().len() <= UNROLLED_NODES_MAX
            && op.inputs().all(|input| context.owns(input));
        if !waits {
            return Ok(None);
        }
        let mut inputs = MapInputs::new(&shape);
        for input in op.inputs() {
            inputs.push(&context.view(input)?, input.dtype());
        }
        inputs.axes.collapse(inputs.count);
        let (reach, width) = inputs.classify(output, program.nodes().len());
        if !matches!(reach, Reach::Flat { .. }) {
            return Ok(None);
        }
        let target = context.output(output, shape)?;
        let map = DeferredMap::new(elements, target.address, output, &inputs);
        let joins = |group: &Group| {
            group.maps.len() < most(inputs.count)
                && (group.output, group.width) == (output, width)
                && group.dtypes == inputs.dtypes[..inputs.count]
                && group.accesses == inputs.accesses[..inputs.count]
                && group.program == *program
                && !group.maps.iter().any(|other| other.clashes(&map))
        };
        match &mut self.group {
            Some(group) if joins(group) => group.maps.push(map),
            _ => {
                self.flush(context)?;
                self.group = Some(Group {
                    program: program.clone(),
                    output,
                    dtypes: inputs.dtypes[..inputs.count].to_vec(),
                    accesses: inputs.accesses[..inputs.count].to_vec(),
                    width,
                    maps: vec![map],
                });
            }
        }
        Ok(Some(Value::Tensor(target.into_tensor())))
    }

    /// Queues the deferred maps.
    pub(crate) fn flush(&mut self, context: &mut Context) -> Result<()> {
        self.group.take().map_or(Ok(()), |group| group.queue(context))
    }

    /// Drops the deferred maps without queueing them.
    pub(crate) fn forget(&mut self) {
        self.group = None;
    }
}

/// Maximum number of maps with `inputs` inputs whose addresses fit the arguments of a launch.
fn most(inputs: usize) -> usize {
    (ARGUMENT_BYTES_MAX - OTHER_ARGUMENT_BYTES) / 8 / (inputs + OTHER_WORDS)
}

impl DeferredMap {
    fn new(elements: usize, target: Address, output: DType, inputs: &MapInputs) -> DeferredMap {
        let bytes =
            |first: Address, count: usize, dtype: DType| (first.0, first.0 + (count * dtype.size_bytes()) as u64);
        let read = (0..inputs.count).map(|input| {
            let count = if inputs.accesses[input] == Access::Same { 1 } else { elements };
            bytes(inputs.addresses[input], count, inputs.dtypes[input])
        });
        let read = read.collect();
        let inputs = inputs.addresses[..inputs.count].to_vec();
        DeferredMap { elements, target, inputs, written: bytes(target, elements, output), read }
    }

    /// Whether one of the two maps writes what the other reads or writes.
    fn clashes(&self, other: &DeferredMap) -> bool {
        let meet = |a: &(u64, u64), b: &(u64, u64)| a.0 < b.1 && b.0 < a.1;
        meet(&self.written, &other.written)
            || self.read.iter().any(|read| meet(read, &other.written))
            || other.read.iter().any(|read| meet(read, &self.written))
    }
}

impl Group {
    fn queue(self, context: &mut Context) -> Result<()> {
        let Group { program, dtypes, accesses, width, maps, .. } = self;
        let rows = most(dtypes.len());
        let together = if maps.len() == 1 { Together::One } else { Together::Listed(rows as u32) };
        let arguments = match maps.as_slice() {
            [only] => only.inputs.iter().fold(Arguments::new().address(only.target), |all, one| all.address(*one)),
            _ => {
                let mut words = Vec::with_capacity(rows * (dtypes.len() + OTHER_WORDS));
                for map in &maps {
                    words.extend([map.elements as u64, map.target.0]);
                    words.extend(map.inputs.iter().map(|input| input.0));
                }
                words.resize(rows * (dtypes.len() + OTHER_WORDS), 0);
                Arguments::new().structure(&words)
            }
        };
        let longest = maps.iter().map(|map| map.elements).max().unwrap_or(0);
        let launch = Launch::grid([longest.div_ceil(THREADS * width as usize), maps.len(), 1], THREADS);
        let reach = Reach::Flat { vectors: 1 };
        let form = MapForm { dtypes: &dtypes, accesses: &accesses, reach, width, together };
        context.with_state(|known: &mut Maps, context| {
            let generated = known.find(&program, &form)?;
            let arguments = pass_constants(arguments, &generated.constants, context)?;
            let mut arguments = match together {
                Together::One => arguments.u64(longest as u64),
                _ => arguments.size(maps.len()),
            };
            context.launch(&generated.kernel, launch, &mut arguments)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_clash_where_one_writes_what_the_other_uses() {
        let map = |written: (u64, u64), read: &[(u64, u64)]| DeferredMap {
            elements: 1,
            target: Address(written.0),
            inputs: Vec::new(),
            written,
            read: read.to_vec(),
        };
        let first = map((256, 320), &[(0, 64), (512, 516)]);
        assert!(!first.clashes(&map((320, 384), &[(0, 64)])), "both may read the same");
        assert!(first.clashes(&map((316, 384), &[(0, 64)])), "both write");
        assert!(first.clashes(&map((320, 384), &[(319, 320)])), "the second reads what the first writes");
        assert!(first.clashes(&map((514, 515), &[])), "the second writes what the first reads");
    }

    #[test]
    fn lists_fit_into_the_arguments() {
        for inputs in 1..=16 {
            assert!(most(inputs) >= 2);
            assert!(most(inputs) * (inputs + OTHER_WORDS) * 8 + OTHER_ARGUMENT_BYTES <= ARGUMENT_BYTES_MAX);
        }
    }
}
