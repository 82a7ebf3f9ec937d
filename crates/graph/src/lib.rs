//! The graph compiler: from a recorded graph, sizes for its symbols and the facts of a device to a [`Plan`].
//!
//! Each pass is a file, and they run in this order:
//!
//! 1. [`simplify`]: equal nodes become one, and nodes that no output needs are left out.
//! 2. `core` makes an instance of what is left: ops over placeholders, with views as strides. The passes below rewrite this
//!    list ([`work`]); an op stays an ordinary op throughout, so every device knows what it is asked to do.
//! 3. [`fuse::copies`]: what only lays a view out contiguously is left out where its readers can take the view itself.
//! 4. [`fuse::images`]: images lie with their channels last between convolutions, on devices that say so.
//! 5. [`fuse::attention`]: `softmax(scale · Q·Kᵀ + mask) · V` becomes one op, which writes its heads side by side where they are read so.
//! 6. [`fuse::epilogue`]: a product's or a convolution's bias, residual, factor and activation become its own.
//! 7. [`fuse::products`]: products of one tensor with several constants become one, on devices that say so.
//! 8. [`fuse::elementwise`]: maps that read each other become one.
//! 9. [`fuse::sums`]: sums of sums become one, on devices that say so.
//! 10. [`fuse::rows`]: softmax, layer norm and reductions take the maps before and after them ([`RowMap`]).
//! 11. [`fold`]: what depends on constants alone runs once, when the plan is first used, and stays on the device.
//! 12. [`fuse::tails`]: convolutions take whatever map is left behind them, on devices that say so.
//! 13. [`order`]: small maps that only outputs wait for come last, side by side, on devices that say so.
//! 14. [`memory`]: what lies between the steps shares one block by lifetime.
//!
//! A plan is made once for each sort of device and kept with the graph ([`plan_of`]); [`fits`] compares the memory that it needs with what
//! a device has, before anything runs. [`Plans`] keeps what an engine needs of plans; [`run`] goes through one, with the engine's [`Executor`].
//! [`cost`] says what each step reads, writes, computes and is expected to take; [`text`] reads and writes graphs, [`listing`] and [`svg`] show them.
//! Nothing here runs anything, or knows a device but by its [`Facts`].
//!
//! [`RowMap`]: panoply_core::op::compute::RowMap

pub mod cost;
mod execute;
mod fold;
pub mod fuse;
mod joined;
pub mod listing;
pub mod memory;
mod order;
mod plan;
mod simplify;
pub mod svg;
pub mod text;
mod views;
mod work;

pub use execute::{Destination, Executor, Held, Plans, Ready, Room, run};
pub use joined::{join_rows, split_rows};
pub use plan::{Joined, Order, Peak, Place, Plan, PlanSlot, Tail};

use std::sync::Arc;

use panoply_core::graph::{Graph, Instance, SymbolSizes};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DeviceInfo, Result, Support};

/// What matters of a device for what is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The most inputs that one map may have.
    pub map_inputs_max: usize,
    /// The most nodes that one map's expression may have.
    pub map_nodes_max: usize,
    /// The longest row that is kept between the parts of a fused row function; 0 where none are fused.
    pub row_len_max: usize,
    /// The most inputs of a fused row function.
    pub row_inputs_max: usize,
    /// The most elements of an operand or of the result of fused attention; 0 where none is fused.
    pub attention_elements_max: usize,
    /// Whether convolutions of 16-bit numbers read and write images with their channels last, and products take residuals and activations.
    pub channels_last: bool,
    /// Whether ops of f32 read and write images with their channels last.
    pub channels_last_f32: bool,
    /// Whether attention writes the heads of a row side by side, and products of one tensor with several constants are one.
    pub joins_heads: bool,
    /// Whether sums of sums are one: reductions share a long sum among many threads, however its parts lie.
    pub joins_sums: bool,
    /// Maps of at most so many elements that only the graph's outputs wait for run last; 0 where steps keep their order.
    pub last_elements_max: usize,
    /// Whether convolutions of f32 apply any map to their sums.
    pub takes_tails: bool,
}

impl Facts {
    /// Nothing is fused: ops run as they were recorded.
    pub const UNFUSED: Facts = Facts {
        map_inputs_max: 0,
        map_nodes_max: 0,
        row_len_max: 0,
        row_inputs_max: 0,
        attention_elements_max: 0,
        channels_last: false,
        channels_last_f32: false,
        joins_heads: false,
        joins_sums: false,
        last_elements_max: 0,
        takes_tails: false,
    };

    /// The processor: a map's blocks of scratch memory stay in the first-level cache, and rows in the second.
    pub const CPU: Facts = Facts {
        map_inputs_max: 12,
        map_nodes_max: 128,
        row_len_max: 1 << 16,
        row_inputs_max: 12,
        attention_elements_max: usize::MAX,
        channels_last: false,
        channels_last_f32: true,
        joins_heads: false,
        joins_sums: false,
        last_elements_max: 0,
        takes_tails: true,
    };

    /// GPUs of the C dialect: a map of more nodes has one element for each thread, longer rows do not fit registers, and kernels
    /// count with 32 bits.
    pub const C_GPU: Facts = Facts {
        map_inputs_max: 12,
        map_nodes_max: 64,
        row_len_max: 1 << 14,
        row_inputs_max: 12,
        attention_elements_max: u32::MAX as usize,
        channels_last: false,
        channels_last_f32: false,
        joins_heads: true,
        joins_sums: true,
        last_elements_max: 1 << 20,
        takes_tails: false,
    };

    /// A number that other facts do not have, in all likelihood.
    fn sort(&self) -> u64 {
        let Facts { map_inputs_max, map_nodes_max, row_len_max, row_inputs_max, attention_elements_max, .. } = *self;
        let flags = [self.channels_last, self.channels_last_f32, self.joins_heads, self.joins_sums, self.takes_tails];
        let flags = flags.into_iter().fold(self.last_elements_max, |flags, flag| flags << 1 | usize::from(flag));
        let words = [map_inputs_max, map_nodes_max, row_len_max, row_inputs_max, attention_elements_max, flags];
        words
            .into_iter()
            .fold(7, |hash: u64, word| (hash ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
    }
}

/// The plan of an op's graph on a device of these facts: made when it is first wanted, and kept with the graph's instance.
pub fn plan_of(op: &RunGraph, facts: &Facts) -> Result<Arc<Plan>> {
    let instance = op.instance()?;
    let make = || compile(op.graph(), &instance.sizes, facts);
    let kept = instance.compiled(facts.sort(), &|| Ok(Arc::new(make()?)))?;
    match kept.downcast::<Plan>() {
        Ok(plan) if plan.facts == *facts => Ok(plan),
        // Two facts with one number.
        _ => make().map(Arc::new),
    }
}

/// Whether a device has the memory that an op's graph needs at its peak, or how much is missing. A device that does not tell how much it has
/// is assumed to have enough.
pub fn fits(op: &RunGraph, facts: &Facts, device: &DeviceInfo) -> Support {
    let peak = match plan_of(op, facts) {
        Ok(plan) => plan.peak,
        Err(error) => return Support::No(error.to_string()),
    };
    let needed = peak.bytes(device.shares_host_memory);
    match device.memory_total_bytes {
        Some(total) if needed > total => {
            Support::No(format!("the graph needs {needed} bytes at its peak ({peak}), and the device has {total}"))
        }
        _ => Support::Yes,
    }
}

/// A graph's plan for these sizes of its symbols, on a device of these facts.
pub fn compile(graph: &Graph, sizes: &SymbolSizes, facts: &Facts) -> Result<Plan> {
    let simplified = simplify::simplify(graph);
    let instance = Instance::of(graph, sizes, &|node| simplified[node])?;
    let mut work = work::Work::new(instance);
    if *facts != Facts::UNFUSED {
        fuse::copies::run(&mut work);
        fuse::images::run(&mut work, facts);
        fuse::attention::run(&mut work, graph, facts);
        fuse::heads::run(&mut work, facts);
        fuse::epilogue::run(&mut work, graph, facts);
        fuse::products::run(&mut work, graph, facts);
        fuse::elementwise::run(&mut work, facts);
        fuse::sums::run(&mut work, facts);
        fuse::rows::run(&mut work, facts);
    }
    let once = fold::steps_of_constants(&work);
    fuse::tails::run(&mut work, &once, facts);
    memory::plan(work, &once, facts)
}

#[cfg(test)]
mod tests;
