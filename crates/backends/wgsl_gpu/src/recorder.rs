//! From dispatches to command buffers.
//!
//! All ops of a batch go into one list of commands. Each dispatch carries its parameters if they
//! are few and the device can; otherwise they are gathered on the host and uploaded once per
//! submission, and a dispatch refers to its own by an offset. Bindings are cached by the blocks
//! that they bind, which a warm pool lends again and again.
//!
//! Small maps that follow each other become one dispatch: they wait in a [`Group`] until it takes
//! no more, or until anything else is recorded. Every access to the commands records the waiting
//! maps first.

use std::rc::Rc;

use hashbrown::HashMap;
use panoply_core::{Error, Result};

use crate::arena::Arena;
use crate::belt::StagingBelt;
use crate::driver::{BoundRange, BufferOffset, Commands, Driver, Fence, Params};
use crate::joined::{BatchedMapKernels, DeferredMap, Group};
use crate::operand::Operand;
use crate::pipelines::Pipeline;

/// Bytes that a kernel may read its parameters from.
pub const PARAMS_BYTES: u64 = 4096;
/// Bytes of parameters in one submission; when they are used up the commands so far are submitted.
pub const PARAMS_BYTES_MAX: usize = 1 << 20;
/// The most bindings that are kept. They keep their blocks alive, so their number is bounded.
const BINDINGS_MAX: usize = 16_384;
/// The most workgroups along one dimension, on every device.
const GROUPS_MAX: u64 = 65_535;

/// Number of written blocks, then every bound buffer with the start of its window.
type BindKey = Vec<(u64, usize)>;

/// Commands under construction.
pub struct Recorder<D: Driver> {
    driver: Rc<D>,
    commands: D::Commands,
    /// Whether anything is recorded.
    has_commands: bool,
    params: Vec<u8>,
    params_step: usize,
    bindings: HashMap<BindKey, Rc<D::Bindings>>,
    /// The key of the last dispatch's bindings, whose memory is reused.
    key: BindKey,
    /// Maps that wait.
    waiting: Group<BatchedMapKernels<D>>,
    /// The arena of these maps, bound as a whole.
    arena: Option<(u64, Rc<D::Bindings>)>,
    /// Number of dispatches so far.
    pub dispatches: u64,
    binding_bytes_max: u64,
}

impl<D: Driver> Recorder<D> {
    pub(crate) fn new(driver: &Rc<D>, params_step: usize, binding_bytes_max: u64) -> Recorder<D> {
        Recorder {
            driver: Rc::clone(driver),
            commands: driver.commands(),
            has_commands: false,
            params: Vec::new(),
            params_step: params_step.max(16),
            bindings: HashMap::new(),
            key: BindKey::new(),
            waiting: Group::new(),
            arena: None,
            dispatches: 0,
            binding_bytes_max,
        }
    }

    /// Whether the parameters of the next dispatch, and of the waiting maps, have no room left:
    /// submit first.
    pub(crate) fn is_full(&self) -> bool {
        let coming = if self.waiting.is_empty() { 1 } else { 2 };
        self.params.len() + coming * PARAMS_BYTES as usize > PARAMS_BYTES_MAX
    }

    /// Lets a map wait for others, after the maps that must come before it.
    pub(crate) fn join(&mut self, arena: &Arena<D>, map: &DeferredMap<'_, BatchedMapKernels<D>>) {
        if self.arena.as_ref().is_none_or(|(bound, _)| *bound != arena.id) {
            // The waiting maps lie in the arena that was bound before.
            self.flush();
            let entire = BoundRange { buffer: &arena.buffer, offset: 0, bytes: arena.bytes() };
            let bindings = self.driver.bindings(&map.kernel.pipeline(0).compiled, &[entire]);
            self.arena = Some((arena.id, Rc::new(bindings)));
        }
        if !self.waiting.takes(map, map.kernel.words_max()) {
            self.flush();
        }
        self.waiting.push(map);
    }

    /// Records the waiting maps.
    fn flush(&mut self) {
        let Some((kernel, mut params, groups)) = self.waiting.end() else { return };
        let pipeline = kernel.pipeline(params.len());
        // A dispatch must get all words that it carries.
        params.resize(pipeline.immediates.unwrap_or(0).max(params.len()), 0);
        if let Some((_, arena)) = self.arena.clone() {
            self.record(pipeline, &arena, &params, [groups as u32, 1, 1]);
        }
        self.waiting.reuse(params);
    }

    /// The commands, for copies.
    pub(crate) fn commands(&mut self) -> &mut D::Commands {
        self.flush();
        self.has_commands = true;
        &mut self.commands
    }

    /// Times everything that is recorded from here on, if the device can.
    pub(crate) fn start_timing(&mut self) {
        self.flush();
        self.commands.start_timing();
    }

    /// Ends the timing, with the stamps in this memory. Returns their size in bytes.
    pub(crate) fn end_timing(&mut self, stamps: &D::Staging) -> Option<usize> {
        self.flush();
        self.commands.end_timing(stamps)
    }

    /// Nanoseconds per tick of a time stamp.
    pub(crate) fn stamp_nanoseconds(&self) -> f64 {
        self.commands.stamp_nanoseconds()
    }

    /// Records a dispatch over `groups` workgroups.
    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline<D>,
        writes: &[&Operand<D>],
        reads: &[&Operand<D>],
        params: &[u32],
        groups: u64,
    ) -> Result<()> {
        self.flush();
        let (x, y) = folded(groups)?;
        self.key.clear();
        self.key.push((writes.len() as u64, 0));
        let bound = |operand: &&Operand<D>| (operand.block().buffer_id(), operand.window_in_buffer());
        self.key.extend(writes.iter().chain(reads).map(bound));
        let bindings = match self.bindings.get(&self.key) {
            Some(bindings) => Rc::clone(bindings),
            None => {
                let made = Rc::new(self.bind(pipeline, writes.iter().chain(reads).copied()));
                // Bindings keep their buffers alive, and host memory must be released with its
                // tensor, so those are not cached.
                if !writes.iter().chain(reads).any(|operand| operand.block().is_host()) {
                    if self.bindings.len() >= BINDINGS_MAX {
                        self.bindings.clear();
                    }
                    self.bindings.insert(self.key.clone(), Rc::clone(&made));
                }
                made
            }
        };
        self.record(pipeline, &bindings, params, [x, y, 1]);
        Ok(())
    }

    /// Records a dispatch of a kernel that sees exactly these ranges of memory.
    pub(crate) fn dispatch_exact(
        &mut self,
        pipeline: &Pipeline<D>,
        bound: &[BoundRange<'_, D>],
        params: &[u32],
        groups: [u32; 3],
    ) {
        self.flush();
        let bindings = self.driver.bindings(&pipeline.compiled, bound);
        self.record(pipeline, &bindings, params, groups);
    }

    /// Records a dispatch after the waiting maps.
    fn record(&mut self, pipeline: &Pipeline<D>, bindings: &D::Bindings, params: &[u32], groups: [u32; 3]) {
        let params = match pipeline.immediates {
            Some(words) => Params::Words(&params[..words.min(params.len())]),
            None => {
                let offset = self.params.len() as u32;
                self.params.extend_from_slice(bytemuck::cast_slice(params));
                self.params.resize(self.params.len().next_multiple_of(self.params_step), 0);
                Params::At(offset)
            }
        };
        self.commands.dispatch(&pipeline.compiled, bindings, params, groups);
        self.has_commands = true;
        self.dispatches += 1;
    }

    /// Forgets cached bindings, which may be the last owners of blocks that the pool has freed.
    pub(crate) fn forget_bindings(&mut self) {
        self.flush();
        self.bindings.clear();
        self.arena = None;
    }

    /// Submits everything recorded with its parameters, and asks for the belt's chunks back. `None`
    /// if nothing was recorded or submitted.
    pub(crate) fn submit(&mut self, belt: &mut StagingBelt<D>) -> Option<Fence> {
        self.flush();
        if !std::mem::take(&mut self.has_commands) {
            return None;
        }
        let params_bytes = self.params.len() as u64;
        let staged = if self.params.is_empty() { Ok(None) } else { belt.put(&self.params).map(Some) };
        self.params.clear();
        belt.close();
        let place = |(chunk, offset)| (BufferOffset { buffer: belt.chunk(chunk), offset }, params_bytes);
        let fence = match staged {
            Ok(staged) => Some(self.commands.submit(staged.map(place))),
            Err(error) => {
                // Kernels must not run without their parameters: everything recorded is answered
                // with the error.
                self.commands.discard();
                self.driver.faults().report(error);
                None
            }
        };
        belt.recall(fence);
        fence
    }

    fn bind<'a>(&self, pipeline: &Pipeline<D>, operands: impl Iterator<Item = &'a Operand<D>>) -> D::Bindings {
        let bound: Vec<BoundRange<'_, D>> = operands
            .map(|operand| {
                let (buffer, offset) = (operand.block().buffer(), operand.window_in_buffer() as u64);
                let bytes = (operand.block().size() - operand.window as u64).min(self.binding_bytes_max);
                BoundRange { buffer, offset, bytes }
            })
            .collect();
        self.driver.bindings(&pipeline.compiled, &bound)
    }
}

/// Workgroups in two dimensions, each within the limit of devices. Kernels join both into one
/// index.
fn folded(groups: u64) -> Result<(u32, u32)> {
    if groups <= GROUPS_MAX {
        return Ok((groups as u32, 1));
    }
    let rows = groups.div_ceil(GROUPS_MAX);
    if rows > GROUPS_MAX {
        let expected = format!("at most {} workgroups", GROUPS_MAX * GROUPS_MAX);
        return Err(Error::invalid("the size of the op", expected, groups));
    }
    Ok((groups.div_ceil(rows) as u32, rows as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workgroups_are_folded() {
        for groups in [1, 65_535, 65_536, 100_000, 1 << 30] {
            let (x, y) = folded(groups).unwrap();
            assert!(u64::from(x) * u64::from(y) >= groups, "{groups}");
            assert!(u64::from(x) <= GROUPS_MAX && u64::from(y) <= GROUPS_MAX, "{groups}");
            // At most one row of workgroups more than needed.
            assert!(u64::from(x) * u64::from(y) - groups < u64::from(y), "{groups}");
        }
        assert!(folded(1 << 40).is_err());
    }
}
