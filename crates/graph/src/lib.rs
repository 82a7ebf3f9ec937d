//! The graph compiler: from a recorded graph, sizes for its symbols and the facts of a device to a [`Plan`].
//!
//! Each pass is a file, and they run in this order:
//!
//! 1. [`simplify`]: equal nodes become one, and nodes that no output needs are left out.
//! 2. `core` makes an instance of what is left: ops over placeholders, with views as strides. The passes below rewrite this
//!    list ([`work`]); an op stays an ordinary op throughout, so every device knows what it is asked to do.
//! 3. [`fuse::copies`]: what only lays a view out contiguously is left out where its readers can take the view itself.
//! 4. [`fuse::epilogue`]: a product's or a convolution's bias, residual, factor and activation become its own.
//! 5. [`fuse::elementwise`]: maps that read each other become one.
//! 6. [`fuse::rows`]: softmax, layer norm and reductions take the maps before and after them ([`RowMap`]).
//! 7. [`fold`]: what depends on constants alone runs once, when the plan is first used, and stays on the device.
//! 8. [`memory`]: what lies between the steps shares one block by lifetime.
//!
//! [`Plans`] keeps plans and what they need on a device; [`run`] goes through one, with an engine's [`Executor`].
//! [`cost`] says what each step reads, writes, computes and is expected to take; [`text`] reads and writes graphs, [`listing`] and [`svg`] show them.
//! Nothing here runs anything, or knows a device but by its [`Facts`].
//!
//! [`RowMap`]: panoply_core::op::compute::RowMap

pub mod cost;
mod execute;
mod fold;
pub mod fuse;
pub mod listing;
pub mod memory;
mod plan;
mod simplify;
pub mod svg;
pub mod text;
mod views;
mod work;

pub use execute::{Executor, Plans, Ready, join_rows, run, split_rows};
pub use plan::{Place, Plan, PlanSlot};

use panoply_core::Result;
use panoply_core::graph::{Graph, Instance, SymbolSizes};

/// What matters of a device for what is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The most inputs that one map may have.
    pub map_inputs_max: usize,
    /// The most nodes that one map's expression may have.
    pub map_nodes_max: usize,
    /// The longest row that is kept between the parts of a fused row function; 0 where none are fused.
    pub row_len_max: usize,
    /// The most inputs of a fused row function.
    pub row_inputs_max: usize,
}

impl Facts {
    /// Nothing is fused: ops run as they were recorded.
    pub const UNFUSED: Facts = Facts { map_inputs_max: 0, map_nodes_max: 0, row_len_max: 0, row_inputs_max: 0 };
}

impl Facts {
    /// The processor: a map's blocks of scratch memory stay in the first-level cache, and rows in the second.
    pub const CPU: Facts = Facts { map_inputs_max: 12, map_nodes_max: 128, row_len_max: 1 << 16, row_inputs_max: 12 };
    /// GPUs of the C dialect: a map of more nodes has one element for each thread, and longer rows do not fit registers.
    pub const C_GPU: Facts = Facts { map_inputs_max: 12, map_nodes_max: 64, row_len_max: 1 << 14, row_inputs_max: 12 };
}

/// A graph's plan for these sizes of its symbols, on a device of these facts.
pub fn compile(graph: &Graph, sizes: &SymbolSizes, facts: &Facts) -> Result<Plan> {
    let simplified = simplify::simplify(graph);
    let instance = Instance::of(graph, sizes, &|node| simplified[node])?;
    let mut work = work::Work::new(instance);
    if *facts != Facts::UNFUSED {
        fuse::copies::run(&mut work);
        fuse::epilogue::run(&mut work);
        fuse::elementwise::run(&mut work, facts);
        fuse::rows::run(&mut work, facts);
    }
    let once = fold::steps_of_constants(&work);
    Ok(memory::plan(work, &once))
}

#[cfg(test)]
mod tests;
