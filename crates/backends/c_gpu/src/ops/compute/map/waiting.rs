//! Maps of a graph that wait for others of the same expression: an optimiser's steps of all parameters are one launch.
//!
//! 1. A step that is a map over whole tensors waits, where kernels can be told addresses in their arguments. Its output has its place, and
//!    nothing is queued for it yet.
//! 2. The next step joins those that wait where it is a map of the same expression, whatever its length, and where none of them uses what
//!    another writes.
//! 3. Whatever else is queued comes after those that wait, and so does the end of the graph ([`Waiting::flush`]).

use panoply_core::expr::Program;
use panoply_core::op::compute::Map;
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::generate::{Access, MapForm, Reach, Together};

use super::{MapInputs, OTHER_ARGUMENT_BYTES, THREADS, UNROLLED_NODES_MAX, pass_constants};
use crate::arguments::{ARGUMENT_BYTES_MAX, Arguments};
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Maps with more elements keep the device busy by themselves.
const ELEMENTS_MAX: usize = 1 << 20;
/// Words of a map besides its inputs' addresses: its elements, and where its output goes.
const OTHER_WORDS: usize = 2;

/// The maps that wait.
#[derive(Default)]
pub(crate) struct Waiting {
    group: Option<Group>,
}

/// Maps of one expression whose inputs lie the same way.
struct Group {
    program: Program,
    output: DType,
    dtypes: Vec<DType>,
    accesses: Vec<Access>,
    width: u32,
    maps: Vec<Waits>,
}

/// One map that waits.
struct Waits {
    elements: usize,
    target: Address,
    inputs: Vec<Address>,
    /// What it writes, and what it reads: first and last byte.
    written: (u64, u64),
    read: Vec<(u64, u64)>,
}

impl Waiting {
    /// Lets a map wait, with its output; `None` where it is none that waits. Those that it does not join are queued.
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
        let map = Waits::new(elements, target.address, output, &inputs);
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

    /// Queues those that wait.
    pub(crate) fn flush(&mut self, context: &mut Context) -> Result<()> {
        self.group.take().map_or(Ok(()), |group| group.queue(context))
    }

    /// Those that wait are not wanted any more.
    pub(crate) fn forget(&mut self) {
        self.group = None;
    }
}

/// How many maps of so many inputs fit into the arguments of a launch.
fn most(inputs: usize) -> usize {
    (ARGUMENT_BYTES_MAX - OTHER_ARGUMENT_BYTES) / 8 / (inputs + OTHER_WORDS)
}

impl Waits {
    fn new(elements: usize, target: Address, output: DType, inputs: &MapInputs) -> Waits {
        let bytes =
            |first: Address, count: usize, dtype: DType| (first.0, first.0 + (count * dtype.size_bytes()) as u64);
        let read = (0..inputs.count).map(|input| {
            let count = if inputs.accesses[input] == Access::Same { 1 } else { elements };
            bytes(inputs.addresses[input], count, inputs.dtypes[input])
        });
        let read = read.collect();
        let inputs = inputs.addresses[..inputs.count].to_vec();
        Waits { elements, target, inputs, written: bytes(target, elements, output), read }
    }

    /// Whether one of the two writes what the other reads or writes.
    fn clashes(&self, other: &Waits) -> bool {
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
        let mut known = std::mem::take(&mut context.maps);
        let launched = known.find(&program, &form).and_then(|generated| {
            let arguments = pass_constants(arguments, &generated.constants, context)?;
            let mut arguments = match together {
                Together::One => arguments.u64(longest as u64),
                _ => arguments.size(maps.len()),
            };
            context.launch(&generated.kernel, launch, &mut arguments)
        });
        context.maps = known;
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_clash_where_one_writes_what_the_other_uses() {
        let map = |written: (u64, u64), read: &[(u64, u64)]| Waits {
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
