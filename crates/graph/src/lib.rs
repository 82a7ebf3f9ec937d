//! The graph compiler: turns a recorded graph, sizes for its symbols and the facts of a device into
//! a [`Plan`].
//!
//! Each pass is a file, and they run in this order:
//!
//! 1. [`simplify`]: equal nodes become one, and nodes that no output needs are removed.
//! 2. The graph's instance is a list of ops over placeholders, with views as strides. The passes
//!    below rewrite this list ([`work`]). An op stays an ordinary op throughout, so every device
//!    knows how to run it. Ops that no pass changes are shared by instance and plan.
//! 3. [`fuse::copies`]: a copy that only makes a view contiguous is removed if its readers can take
//!    the view itself.
//! 4. [`fuse::images`]: images are channels-last between convolutions, on devices that support it.
//! 5. [`fuse::attention`]: `softmax(scale · Q·Kᵀ + mask) · V` becomes one op, which writes its
//!    heads next to each other if its reader needs them so.
//! 6. [`fuse::epilogue`]: a bias, residual, factor and activation are fused into their product or
//!    convolution.
//! 7. [`fuse::products`]: products of one tensor with several constants become one, on devices that
//!    support it.
//! 8. [`fuse::elementwise`]: maps that read each other become one.
//! 9. [`fuse::sums`]: sums of sums become one, on devices that support it.
//! 10. [`fuse::rows`]: softmax, layer norm and reductions take the maps before and after them
//!     ([`RowMap`]).
//! 11. [`fold`]: steps that depend only on constants run once, when the plan is first used, and
//!     their results stay on the device.
//! 12. [`fuse::tails`]: convolutions take any remaining map after them, on devices that support it.
//! 13. [`order`]: small maps that only outputs wait for are moved to the end and grouped by
//!     expression, on devices that support it.
//! 14. [`memory`]: values between steps share one block by lifetime.
//!
//! A plan is made once for each kind of device and kept with the graph ([`plan_of`]). [`fits`]
//! compares the memory that it needs with the memory of a device, before anything runs. [`Plans`]
//! keeps an engine's data for plans; [`run`] executes a plan with the engine's [`Executor`].
//! [`cost`] estimates the bytes, operations and time of each step. [`text`] reads and writes
//! graphs, [`listing`] and [`svg`] show them. Nothing here runs ops itself. A device is known only
//! by its [`Facts`], which its backend gives.
//!
//! [`RowMap`]: panoply_core::op::compute::RowMap

pub mod cost;
mod execute;
mod facts;
mod fold;
pub mod fuse;
mod joined;
pub mod listing;
mod lists;
pub mod memory;
mod order;
mod plan;
mod simplify;
mod stage;
pub mod svg;
pub mod text;
mod views;
mod work;

pub use execute::{Destination, Executor, Plans, Ready, ResidentPlan, Room, run};
pub use facts::{DeviceTarget, Facts};
pub use joined::{join_rows, split_rows};
pub use lists::Lists;
pub use plan::{Concatenation, Order, Peak, Plan, PlanSlot, SlotPlace, Tail};

use std::sync::Arc;

use panoply_core::graph::{Graph, SymbolSizes};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DeviceInfo, Result, Support};

/// The plan of an op's graph for a device with these facts. It is made on first use, and kept with
/// the graph's instance.
pub fn plan_of(op: &RunGraph, facts: &Facts) -> Result<Arc<Plan>> {
    let instance = op.instance()?;
    let make = || compile(op.graph(), &instance.sizes, facts);
    let kept = instance.compiled(facts.sort(), &|| Ok(Arc::new(make()?)))?;
    match kept.downcast::<Plan>() {
        Ok(plan) if plan.facts == *facts => Ok(plan),
        // Two different facts have the same hash.
        _ => make().map(Arc::new),
    }
}

/// Whether a device has the memory that an op's graph needs at its peak; if not, the reason holds
/// both sizes. A device of unknown memory size is assumed to have enough.
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

/// Compiles a graph for these sizes of its symbols and a device with these facts.
pub fn compile(graph: &Graph, sizes: &SymbolSizes, facts: &Facts) -> Result<Plan> {
    let instance = graph.instance(sizes)?;
    let mut work = work::Rewrite::new(graph, &instance, &simplify::simplify(graph))?;
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
