//! Joins waiting small maps into one dispatch.
//!
//! A dispatch has no order inside. So a map joins the waiting group only if no map of the group
//! writes its inputs, and none reads or writes its output. Everything else that is recorded
//! dispatches the group first (see [`crate::recorder`]). This suffices: a slot that is given back
//! while a map that uses it waits may be lent at once, because its next user comes after that map.
//! After an op's error, a panic or a lost device the group is still valid.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use panoply_core::Result;
use panoply_kernels::wgsl::{JOINED_HEADER_WORDS, Kernel, MapKernel, PARAMS_WORDS_MAX, WORKGROUP_SIZE};

use crate::driver::Driver;
use crate::pipelines::{Pipeline, Pipelines};

/// Words of parameters for a few maps, which the dispatch itself carries if the device can: then no
/// upload is needed.
const FEW_WORDS: usize = 32;
/// After this many maps more are expected to come at once.
const FEW_MAPS_MAX: usize = 8;

/// The start of a map's output or input: the slot of the arena, and the index of its vector of four
/// words in the whole arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaPosition {
    pub(crate) slot: u32,
    pub(crate) vector: u32,
}

/// The kernels for many maps.
pub struct BatchedMapKernels<D: Driver> {
    /// The kernel for up to `few_words` words of parameters.
    few: Rc<Pipeline<D>>,
    few_words: usize,
    /// The kernel for more, compiled when many maps are expected; `None` if that failed.
    many: OnceCell<Option<Rc<Pipeline<D>>>>,
    /// Number of maps so far.
    maps: Cell<usize>,
    /// The parameters before those of the first map: room for the header, and constants.
    header: Vec<u32>,
}

impl<D: Driver> BatchedMapKernels<D> {
    /// Compiles the kernel that the first maps need.
    pub fn new(map: &MapKernel, constants: &[u32], pipelines: &mut Pipelines<D>) -> Result<BatchedMapKernels<D>> {
        let mut header = vec![0; JOINED_HEADER_WORDS];
        header.extend(constants);
        header.resize(header.len().next_multiple_of(4), 0);
        // At least half of the words are for maps.
        let carried = pipelines.immediate_words_max() >= FEW_WORDS && header.len() <= FEW_WORDS / 2;
        let few_words = if carried { FEW_WORDS } else { PARAMS_WORDS_MAX };
        let few = compile(map, few_words, pipelines)?;
        Ok(BatchedMapKernels { few, few_words, many: OnceCell::new(), maps: Cell::new(0), header })
    }

    /// Announces a map, or that many will come: compiles the kernel for many maps if they are
    /// expected.
    pub fn prepare(&self, will_be_many: bool, map: &MapKernel, pipelines: &mut Pipelines<D>) {
        self.maps.set(self.maps.get().saturating_add(1));
        if (will_be_many || self.maps.get() > FEW_MAPS_MAX) && self.few_words < PARAMS_WORDS_MAX {
            self.many.get_or_init(|| compile(map, PARAMS_WORDS_MAX, pipelines).ok());
        }
    }

    /// The parameters before those of the first map.
    pub fn header(&self) -> &[u32] {
        &self.header
    }

    /// The most words of parameters.
    pub fn words_max(&self) -> usize {
        if let Some(Some(_)) = self.many.get() { PARAMS_WORDS_MAX } else { self.few_words }
    }

    /// The kernel for `words` words of parameters.
    pub fn pipeline(&self, words: usize) -> &Pipeline<D> {
        match self.many.get() {
            Some(Some(many)) if words > self.few_words => many,
            _ => &self.few,
        }
    }
}

fn compile<D: Driver>(map: &MapKernel, words: usize, pipelines: &mut Pipelines<D>) -> Result<Rc<Pipeline<D>>> {
    let kernel = MapKernel { joined: Some(words as u16), ..map.clone() };
    pipelines.get(&Kernel::Map(kernel), (1, 0))
}

/// A map that may wait.
pub struct DeferredMap<'a, P> {
    pub(crate) kernel: &'a Rc<P>,
    pub(crate) elements: u32,
    pub(crate) output: ArenaPosition,
    pub(crate) inputs: &'a [ArenaPosition],
    /// The kernel's parameters before those of the first map; the group fills in the first two
    /// words.
    pub(crate) header: &'a [u32],
}

/// Maps of one kernel and one size, none of which needs another.
pub struct Group<P> {
    /// `None` if no map waits.
    kernel: Option<Rc<P>>,
    elements: u32,
    maps: u32,
    /// The kernel's parameters so far.
    params: Vec<u32>,
    /// The number of this group: the first is 1.
    number: u64,
    /// For every slot, the last group that has read it and the last that has written it.
    uses: Vec<SlotUse>,
}

#[derive(Clone, Copy, Default)]
struct SlotUse {
    read: u64,
    written: u64,
}

impl<P> Group<P> {
    pub fn new() -> Group<P> {
        Group { kernel: None, elements: 0, maps: 0, params: Vec::new(), number: 1, uses: Vec::new() }
    }

    /// Whether no map waits.
    pub fn is_empty(&self) -> bool {
        self.kernel.is_none()
    }

    /// Whether a map can wait with this group. Parameters take at most `words_max` words.
    pub fn takes(&self, map: &DeferredMap<'_, P>, words_max: usize) -> bool {
        let Some(own) = &self.kernel else { return true };
        let uses = |place: &ArenaPosition| self.uses.get(place.slot as usize).copied().unwrap_or_default();
        let target = uses(&map.output);
        Rc::ptr_eq(own, map.kernel)
            && self.elements == map.elements
            && self.params.len() + 1 + map.inputs.len() <= words_max
            && target.read != self.number
            && target.written != self.number
            && map.inputs.iter().all(|input| uses(input).written != self.number)
    }

    /// Adds a map that the group [takes](Group::takes).
    pub fn push(&mut self, map: &DeferredMap<'_, P>) {
        if self.kernel.is_none() {
            self.kernel = Some(Rc::clone(map.kernel));
            (self.elements, self.maps) = (map.elements, 0);
            self.params.clear();
            self.params.extend_from_slice(map.header);
        }
        self.maps += 1;
        self.params.push(map.output.vector);
        self.used(map.output).written = self.number;
        for input in map.inputs {
            self.params.push(input.vector);
            self.used(*input).read = self.number;
        }
    }

    fn used(&mut self, place: ArenaPosition) -> &mut SlotUse {
        let slot = place.slot as usize;
        if slot >= self.uses.len() {
            self.uses.resize((slot + 1).next_power_of_two(), SlotUse::default());
        }
        &mut self.uses[slot]
    }

    /// Ends the group. Returns its kernel, the parameters and the number of workgroups if any map
    /// waits.
    pub fn end(&mut self) -> Option<(Rc<P>, Vec<u32>, u64)> {
        let kernel = self.kernel.take()?;
        self.number += 1;
        let mut params = std::mem::take(&mut self.params);
        params[..2].copy_from_slice(&[self.elements, self.maps]);
        let invocations = u64::from(self.elements.div_ceil(4)) * u64::from(self.maps);
        Some((kernel, params, invocations.div_ceil(u64::from(WORKGROUP_SIZE))))
    }

    /// Takes back the memory of the last group's parameters.
    pub fn reuse(&mut self, params: Vec<u32>) {
        self.params = params;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS_MAX: usize = 64;

    fn at(slot: u32) -> ArenaPosition {
        ArenaPosition { slot, vector: slot * 256 }
    }

    fn map<'a>(kernel: &'a Rc<()>, elements: u32, output: u32, inputs: &'a [ArenaPosition; 2]) -> DeferredMap<'a, ()> {
        DeferredMap { kernel, elements, output: at(output), inputs, header: &[0; JOINED_HEADER_WORDS] }
    }

    fn group_of(maps: &[(u32, [u32; 2])]) -> (Group<()>, Rc<()>) {
        let (mut group, kernel) = (Group::new(), Rc::new(()));
        for (output, inputs) in maps {
            let inputs = inputs.map(at);
            let map = map(&kernel, 64, *output, &inputs);
            assert!(group.takes(&map, WORDS_MAX));
            group.push(&map);
        }
        (group, kernel)
    }

    #[test]
    fn maps_that_need_each_other_are_not_joined() {
        let (mut group, kernel) = group_of(&[(2, [0, 1]), (3, [0, 1]), (4, [1, 1])]);
        let takes = |group: &Group<()>, output, inputs: [u32; 2]| {
            group.takes(&map(&kernel, 64, output, &inputs.map(at)), WORDS_MAX)
        };
        assert!(takes(&group, 5, [0, 1]));
        assert!(!takes(&group, 5, [0, 3]), "reads what one writes");
        assert!(!takes(&group, 1, [5, 6]), "writes what one reads");
        assert!(!takes(&group, 4, [5, 6]), "writes what one writes");
        let inputs = [at(0), at(1)];
        assert!(!group.takes(&map(&kernel, 60, 5, &inputs), WORDS_MAX), "another size");
        assert!(!group.takes(&map(&Rc::new(()), 64, 5, &inputs), WORDS_MAX), "another kernel");
        // In the next group all uses of the last one are over.
        assert!(group.end().is_some() && group.is_empty() && group.end().is_none());
        group.push(&map(&kernel, 64, 3, &[at(3), at(4)]));
        assert!(takes(&group, 1, [2, 4]));
        assert!(!takes(&group, 1, [2, 3]));
    }

    #[test]
    fn a_full_group_takes_no_more() {
        let (mut group, kernel) = (Group::new(), Rc::new(()));
        let (mut maps, inputs) = (0, [at(0), at(1)]);
        while group.takes(&map(&kernel, 6, 2 + maps, &inputs), WORDS_MAX) {
            group.push(&map(&kernel, 6, 2 + maps, &inputs));
            maps += 1;
        }
        let (_, params, groups) = group.end().unwrap();
        assert_eq!((maps, params.len(), groups), (20, WORDS_MAX, 1));
        assert_eq!(params[..10], [6, 20, 0, 0, 512, 0, 256, 768, 0, 256]);
    }
}
