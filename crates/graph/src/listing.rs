//! A graph as a list of kernels, before and after fusion, with the cost of each. The command
//! `panoply graph` shows it.

use panoply_core::expr::Program;
use panoply_core::graph::{Graph, Instance, Slot, Step, SymbolSizes, slot_of};
use panoply_core::op::compute::ComputeOp;
use panoply_core::{Describe, Op, Result, Tensor};

use crate::cost::{Cost, Rates, cost, touched_bytes};
use crate::fuse::copies::copied;
use crate::{Facts, Peak, Plan, Tail, compile};

/// One kernel of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelRow {
    /// The node that it computes.
    pub node: String,
    /// The op, with what was fused into it.
    pub op: String,
    /// The element type and shape of its first output.
    pub output: String,
    /// The rows of this list that it reads, in order. Inputs and constants are not included.
    pub reads: Vec<usize>,
    /// Its bytes and operations.
    pub cost: Cost,
    /// Its estimated time in nanoseconds.
    pub time_ns: f64,
    /// Whether it runs once, on constants only.
    pub is_once: bool,
}

/// A graph with sizes for its symbols, before fusion and after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The ops as they were recorded.
    pub before: Vec<KernelRow>,
    /// The steps of the plan. Steps that run once come first.
    pub after: Vec<KernelRow>,
    /// The most bytes held between steps at the same time.
    pub live_bytes_max: usize,
    /// The arena's bytes.
    pub arena_bytes: usize,
    /// The memory that the plan needs at its peak.
    pub peak: Peak,
    /// Number of steps that only change the layout, and the bytes that they read and write.
    pub layout_copies: (usize, u64),
}

impl Listing {
    /// Lists a graph for a device with these facts and rates.
    pub fn new(graph: &Graph, sizes: &SymbolSizes, facts: &Facts, rates: &Rates) -> Result<Listing> {
        let instance = Instance::new(graph, sizes)?;
        let plan = compile(graph, sizes, facts)?;
        let before = rows(graph, &instance.slots, instance.steps.iter().map(|step| (step, None, false)), rates);
        let slots: Vec<Slot> = plan.slots.iter().map(|slot| slot.slot.clone()).collect();
        let Plan { once, steps, tails, .. } = &plan;
        let each_run = steps.iter().zip(tails).map(|(step, tail)| (step, tail.as_deref(), false));
        let all = once.iter().map(|step| (step, None, true)).chain(each_run);
        let after = rows(graph, &slots, all, rates);
        let (live_bytes_max, arena_bytes) = (plan.live_bytes_max, plan.arena_bytes);
        let layout_copies = plan.layout_copies();
        Ok(Listing { before, after, live_bytes_max, arena_bytes, peak: plan.peak, layout_copies })
    }

    /// The total cost and time of the rows that run each time.
    pub fn total(rows: &[KernelRow]) -> (Cost, f64) {
        rows.iter().filter(|row| !row.is_once).fold((Cost::default(), 0.0), |(sum, time), row| {
            let bytes = sum.bytes.saturating_add(row.cost.bytes);
            let flops = sum.flops.saturating_add(row.cost.flops);
            (Cost { bytes, flops }, time + row.time_ns)
        })
    }
}

fn rows<'a>(
    graph: &Graph,
    slots: &[Slot],
    steps: impl Iterator<Item = (&'a Step, Option<&'a Tail>, bool)>,
    rates: &Rates,
) -> Vec<KernelRow> {
    let mut made_by: Vec<Option<usize>> = vec![None; slots.len()];
    let mut rows: Vec<KernelRow> = Vec::new();
    for (step, tail, is_once) in steps {
        let mut reads = Vec::new();
        let mut see = |tensor: &Tensor| {
            if let Some(row) = slot_of(tensor).and_then(|slot| made_by[slot])
                && !reads.contains(&row)
            {
                reads.push(row);
            }
        };
        step.op.for_each_tensor(&mut see);
        tail.iter().flat_map(|tail| &tail.more).for_each(see);
        step.outputs.iter().for_each(|slot| made_by[slot] = Some(rows.len()));
        let mut cost = cost(&step.op);
        let output = step.outputs.first().map(|slot| &slots[slot]);
        let mut op = op_text(&step.op);
        if let (Some(tail), Some(output)) = (tail, output) {
            let read = tail.more.iter().map(touched_bytes).fold(0, u64::saturating_add);
            let computed = output.shape.elements().saturating_mul(tail.program.nodes().len()) as u64;
            (cost.bytes, cost.flops) = (cost.bytes.saturating_add(read), cost.flops.saturating_add(computed));
            op = format!("{op} + {}", short(&tail.program));
        }
        rows.push(KernelRow {
            node: graph.node_name(step.node),
            op,
            output: output.map_or(String::new(), |slot| format!("{}{:?}", slot.dtype, slot.shape)),
            reads,
            cost,
            time_ns: rates.time_ns(&cost),
            is_once,
        });
    }
    rows
}

/// The op and the ops fused into it: `matmul + bias + relu`, `map: 7 operations`.
fn op_text(op: &Op) -> String {
    let Op::Compute(compute) = op else { return op.name().to_owned() };
    match compute {
        ComputeOp::Map(_) if copied(op).is_some() => "map: a copy".to_owned(),
        ComputeOp::Map(op) => {
            op.program().map_or_else(|_| "map".to_owned(), |program| format!("map: {}", short(program)))
        }
        ComputeOp::RowMap(op) => {
            let part = |program: Result<&Program>| program.map_or_else(|_| String::new(), short);
            format!("{}: {} | {}", op.function.name(), part(op.before_program()), part(op.after_program()))
        }
        ComputeOp::MatMul(op) => {
            let parts = [
                (op.alpha != 1.0).then(|| "factor".to_owned()),
                op.c.is_some().then(|| "residual".to_owned()),
                op.bias.is_some().then(|| "bias".to_owned()),
                activation_text(op.activation),
            ];
            joined("matmul", parts)
        }
        ComputeOp::Conv2d(op) => {
            joined("conv2d", [op.bias.is_some().then(|| "bias".to_owned()), activation_text(op.activation)])
        }
        ComputeOp::Attention(op) => {
            let is_masked = op.mask.is_some().then(|| "mask".to_owned());
            joined("attention", [op.is_causal.then(|| "causal".to_owned()), is_masked])
        }
        _ if copied(op).is_some() => format!("{}: a copy", op.name()),
        _ => op.name().to_owned(),
    }
}

fn activation_text(activation: panoply_core::op::compute::Activation) -> Option<String> {
    let text = format!("{activation:?}").to_lowercase();
    (text != "none").then_some(text)
}

fn joined<const N: usize>(name: &str, parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().fold(name.to_owned(), |text, part| format!("{text} + {part}"))
}

/// An expression's functions, the first few of them.
fn short(program: &Program) -> String {
    use panoply_core::expr::Node;
    const SHOWN_MAX: usize = 8;
    let functions: Vec<String> = program
        .nodes()
        .iter()
        .filter_map(|node| match node {
            Node::Input(_) | Node::Const(_) => None,
            Node::Unary(op, _) => Some(op.name().to_owned()),
            Node::Binary(op, ..) => Some(op.name().to_owned()),
            Node::Ternary(op, ..) => Some(op.name().to_owned()),
            Node::Cast(dtype, _) => Some(format!("to {dtype}")),
        })
        .collect();
    match functions.len() {
        0 => "as it is".to_owned(),
        count if count > SHOWN_MAX => format!("{} and {} more", functions[..SHOWN_MAX].join(" "), count - SHOWN_MAX),
        _ => functions.join(" "),
    }
}
