//! Graphs of the suite's own ops: every op that a graph accepts, with the tensors of its cases.
//!
//! A graph contains a few cases. Each of their tensors enters as an input, as a constant, or
//! through a view or an exact map. Each of their outputs is a graph output, is read by later steps,
//! is output as a view, is output twice, or is unread. Nothing between a case and an output of the
//! graph changes a value inexactly, so an output is judged like its case. A case with a check of
//! its own has the same inputs on every run, and its outputs are graph outputs. An op is included
//! as soon as it has a case in the suite.

use std::collections::BTreeMap;
use std::ops::Range;

use panoply_core::expr::{BinaryOp, UnaryOp};
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Describe, Error, HostBufferMut, Op, Operation, Part, PartRef, Result, Tensor, Value};

use crate::judge::Judge;
use crate::layout::{laid_out_like, spread, without_subnormals};
use crate::reference::reference;
use crate::repeat::RUNS;
use crate::suite::{Case, cases};
use crate::tolerance::Tolerance;
use crate::values::{Random, tensor_of, to_f64};

/// Cases whose tensors have more bytes in total are skipped if the op has smaller ones: graphs run
/// many times.
const CASE_BYTES_MAX: usize = 64 << 10;
/// Maximal number of cases of a graph.
const CASES_MAX: u64 = 3;
/// Number of cases of an op that are tried if a graph refuses one.
const TRIES_MAX: usize = 8;

/// The cases that can be nodes of graphs, by op.
pub struct SuiteGraphs {
    by_op: BTreeMap<&'static str, Vec<Case>>,
    /// Ops of the suite that no graph accepts.
    refused: Vec<&'static str>,
    /// Whether inputs and constants contain no subnormal numbers.
    has_no_subnormals: bool,
}

/// A graph, sets of inputs for it, and the judges of its outputs.
#[derive(Clone, Debug)]
pub struct SuiteGraph {
    /// The graph.
    pub graph: Graph,
    /// Sets of inputs, each with the reference's result.
    pub sets: Vec<(Vec<Tensor>, Value)>,
    /// A judge for each output. A case's own check does not judge a single output.
    pub judges: Vec<Judge>,
    /// Checks of all outputs of a case together.
    pub own: Vec<OwnCheck>,
}

/// A case's own check.
#[derive(Clone, Debug)]
pub struct OwnCheck {
    /// Returns the fault, given the op, the expected and the actual result.
    pub check: fn(&Op, &Value, &Value) -> Option<String>,
    /// The op on its tensors, which are the same on every run.
    pub op: Op,
    /// The indices of the op's outputs among the graph's, in order.
    pub outputs: Range<usize>,
}

impl SuiteGraphs {
    /// Collects the cases of the suite. Of an op without small cases the large ones are used.
    pub fn new() -> SuiteGraphs {
        let (mut by_op, mut large): (BTreeMap<_, Vec<Case>>, BTreeMap<_, Vec<Case>>) = Default::default();
        let mut refused = Vec::new();
        for case in cases() {
            let name = case.op.name();
            match (is_node(&case), bytes(&case) <= CASE_BYTES_MAX) {
                (true, true) => by_op.entry(name).or_default().push(case),
                (true, false) => large.entry(name).or_default().push(case),
                (false, _) => refused.push(name),
            }
        }
        for (name, cases) in large {
            by_op.entry(name).or_insert(cases);
        }
        refused.sort_unstable();
        refused.dedup();
        refused.retain(|name| !by_op.contains_key(name));
        SuiteGraphs { by_op, refused, has_no_subnormals: false }
    }

    /// The same without subnormal numbers in inputs and constants, if the device may flush them.
    pub fn without_subnormals(self, flushes: bool) -> SuiteGraphs {
        SuiteGraphs { has_no_subnormals: flushes, ..self }
    }

    /// The same with only those cases that a device supports, so that its graphs are not refused
    /// because of an op.
    pub fn claimed(mut self, claims: &dyn Fn(&Op) -> bool) -> SuiteGraphs {
        self.by_op.retain(|_, cases| {
            cases.retain(|case| claims(&case.op));
            !cases.is_empty()
        });
        self
    }

    /// The ops that graphs accept.
    pub fn ops(&self) -> impl Iterator<Item = &'static str> {
        self.by_op.keys().copied()
    }

    /// The ops of the suite that are in no graph: their parts or outputs are not tensors of known
    /// shapes.
    pub fn refused(&self) -> &[&'static str] {
        &self.refused
    }

    /// The graph of a seed; it is deterministic. As many consecutive seeds as there are ops begin
    /// with each op once; neighbouring seeds begin with ops far from each other in the alphabet.
    pub fn graph(&self, seed: u64) -> Result<SuiteGraph> {
        let mut recorder = Recorder::new(seed, self.has_no_subnormals);
        let first = first_op(seed, self.by_op.len() as u64);
        for place in 0..1 + recorder.random.below(CASES_MAX) {
            let op = if place == 0 { first } else { recorder.below(self.by_op.len()) };
            let Some(cases) = self.by_op.values().nth(op) else { continue };
            // A graph does not accept every case of an op: some parts must be constants.
            let mut added = Ok(());
            for _ in 0..TRIES_MAX {
                let case = &cases[recorder.below(cases.len())];
                added = recorder.add(case);
                if added.is_ok() {
                    break;
                }
            }
            if place == 0 {
                added?;
            }
        }
        recorder.finish()
    }
}

impl Default for SuiteGraphs {
    fn default() -> SuiteGraphs {
        SuiteGraphs::new()
    }
}

/// The index of the op that the graph of a seed begins with. Neighbouring seeds are about three
/// eighths of the list apart, so that any few of them spread over it.
fn first_op(seed: u64, count: u64) -> usize {
    let count = count.max(1);
    let divides_both = |step: u64| (2..=step).any(|by| step.is_multiple_of(by) && count.is_multiple_of(by));
    let step = (count * 3 / 8..=count).find(|step| *step > 0 && !divides_both(*step)).unwrap_or(1);
    (seed % count * step % count) as usize
}

/// Bytes of a case's tensors in total.
fn bytes(case: &Case) -> usize {
    let mut bytes = 0_usize;
    case.op.for_each_tensor(&mut |tensor| bytes = bytes.saturating_add(tensor.len_bytes()));
    bytes
}

/// Whether a case can be a node: its inputs are tensors, its outputs are tensors of known shapes.
fn is_node(case: &Case) -> bool {
    let mut is_tensors = true;
    case.op.for_each_part(&mut |part| is_tensors &= matches!(part, PartRef::Tensor(_)));
    let is_domain = !matches!(case.op, Op::Graph(_) | Op::Extension(_));
    is_domain && is_tensors && case.op.outputs().is_ok()
}

/// An existing op, for the recorder.
struct RecordedOp(Op);

impl Operation for RecordedOp {
    type Output = Value;

    fn into_op(self) -> Result<Op> {
        Ok(self.0)
    }

    fn output(value: Value) -> Result<Value> {
        Ok(value)
    }
}

/// A graph under construction.
struct Recorder {
    random: Random,
    g: GraphBuilder,
    /// The tensors for the inputs, in order.
    given: Vec<FirstInput>,
    judges: Vec<Judge>,
    own: Vec<OwnCheck>,
    /// Whether the inputs of the current case are the same on every run.
    is_fixed: bool,
    has_no_subnormals: bool,
}

/// An input of the first run.
struct FirstInput {
    tensor: Tensor,
    is_fixed: bool,
}

impl Recorder {
    fn new(seed: u64, has_no_subnormals: bool) -> Recorder {
        let random = Random::new(seed.wrapping_mul(0x51ed_2701_9af3_8d4d));
        let (given, judges, own) = Default::default();
        Recorder { random, g: Graph::builder("suite"), given, judges, own, is_fixed: false, has_no_subnormals }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound.max(1) as u64) as usize
    }

    /// Adds a case: its tensors, its op, and uses of its outputs.
    fn add(&mut self, case: &Case) -> Result<()> {
        let mut op = case.op.clone();
        let (mut tensors, mut wrong) = (Vec::new(), Ok(()));
        op.for_each_tensor_mut(&mut |tensor| {
            if self.has_no_subnormals {
                match without_subnormals(tensor) {
                    Ok(flushed) => *tensor = flushed,
                    Err(error) => wrong = Err(error),
                }
            }
            tensors.push(tensor.clone());
        });
        wrong?;
        // Cases of errors are not for graphs. Inputs of a case that is refused here stay, but are
        // not read.
        reference(&op)?;
        self.is_fixed = matches!(case.judge, Judge::Own(_));
        let mut operands = Vec::new();
        for tensor in &tensors {
            operands.push(self.enter(tensor)?);
        }
        let filled = |samples: &[Tensor]| {
            let (mut op, mut samples) = (op.clone(), samples.iter());
            op.for_each_tensor_mut(&mut |tensor| {
                if let Some(sample) = samples.next() {
                    *tensor = sample.clone();
                }
            });
            RecordedOp(op)
        };
        let ports = match op.outputs()?.len() {
            2 => {
                let (first, second) = self.g.op_pair(&operands, filled)?;
                vec![first, second]
            }
            _ => vec![self.g.op(&operands, filled)?],
        };
        let Judge::Own(check) = case.judge else { return self.hand_out(&ports, case.judge) };
        let first = self.judges.len();
        ports.iter().try_for_each(|port| self.output(*port, case.judge))?;
        self.own.push(OwnCheck { check, op, outputs: first..self.judges.len() });
        Ok(())
    }

    /// A node with the elements of a tensor.
    fn enter(&mut self, tensor: &Tensor) -> Result<NodeId> {
        let rank = tensor.shape().rank();
        match self.below(9) {
            0 => self.g.unnamed_constant(tensor),
            1 if rank > 1 => {
                // The input has the tensor's axes rotated, and a view restores them.
                let forth: Vec<usize> = (0..rank).map(|axis| (axis + 1) % rank).collect();
                let back: Vec<usize> = (0..rank).map(|axis| (axis + rank - 1) % rank).collect();
                let x = self.input(tensor.permute(&forth)?)?;
                self.g.permute(x, &back)
            }
            2 if rank > 0 && tensor.elements() > 0 => {
                // One additional row before the others, which a view skips.
                let x = self.input(with_row_before(tensor)?)?;
                self.g.slice(x, 0, 1, 1 + tensor.shape()[0], 1)
            }
            3 => {
                let x = self.input(tensor.clone())?;
                Ok(self.exact_map(x).unwrap_or(x))
            }
            4 if rank > 1 => {
                // Column-major: the caller's tensor is a view.
                let forth: Vec<usize> = (0..rank).rev().collect();
                let turned = tensor.permute(&forth)?.contiguous()?;
                self.input(turned.permute(&forth)?)
            }
            // Every other row of the caller's memory.
            5 if rank > 0 => self.input(spread(tensor)?),
            _ => self.input(tensor.clone()),
        }
    }

    fn input(&mut self, tensor: Tensor) -> Result<NodeId> {
        let dims: Vec<Dim> = tensor.shape().iter().map(|size| Dim::fixed(*size)).collect();
        let name = format!("x{}", self.given.len());
        let node = self.g.input(&name, tensor.dtype(), &dims)?;
        self.given.push(FirstInput { tensor, is_fixed: self.is_fixed });
        Ok(node)
    }

    /// A step that preserves every bit of every number, if the element type has one. It uses no
    /// arithmetic, which may flush subnormal numbers.
    fn exact_map(&mut self, x: NodeId) -> Option<NodeId> {
        let dtype = self.g.type_of(x).ok()?.0;
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::I32 => {
                let minus = self.g.unary(UnaryOp::Neg, x).ok()?;
                let back = self.g.unary(UnaryOp::Neg, minus).ok()?;
                self.g.binary(BinaryOp::Max, back, x).ok()
            }
            _ => None,
        }
    }

    /// Chooses the uses of an op's outputs.
    fn hand_out(&mut self, ports: &[NodeId], judge: Judge) -> Result<()> {
        let fate = self.below(8);
        for (place, port) in ports.iter().enumerate() {
            match (fate, place) {
                // One of the two ports is output, and the other is read only by a later step.
                (0 | 1, 0) | (2, 1) => self.output(*port, judge)?,
                (0..=2, _) => self.later(*port, judge)?,
                (3, _) => {
                    self.output(*port, judge)?;
                    self.output(*port, judge)?;
                }
                (4, _) => self.view(*port, judge)?,
                (5, _) => {
                    self.later(*port, judge)?;
                    self.output(*port, judge)?;
                }
                // The last port is unread.
                (6, _) if ports.len() > 1 && place + 1 == ports.len() => {}
                _ => self.output(*port, judge)?,
            }
        }
        Ok(())
    }

    fn output(&mut self, node: NodeId, judge: Judge) -> Result<()> {
        let name = format!("y{}", self.judges.len());
        self.g.output(&name, node)?;
        self.judges.push(judge);
        Ok(())
    }

    /// A step that reads a port, and whose output is output instead.
    fn later(&mut self, port: NodeId, judge: Judge) -> Result<()> {
        let (dtype, dims) = self.g.type_of(port)?;
        let (rank, is_full) = (dims.len(), dims.iter().all(|dim| dim.as_fixed() != Some(0)));
        let is_exact = matches!(judge, Judge::Bits | Judge::Within(Tolerance::Exact));
        if is_exact && rank > 0 && is_full && dtype != DType::Complex64 {
            let axis = self.below(rank);
            let most = self.g.op(&[port], |t| Reduce::new(&t[0], Reduction::Max).axes(&[axis]));
            if let Ok(most) = most {
                // A reduction preserves numbers, but not the signs of zeros and NaN payloads.
                return self.output(most, Tolerance::Exact.into());
            }
        }
        let judge = if let Judge::Bits = judge { Tolerance::Exact.into() } else { judge };
        let step = match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::I32 => self.g.unary(UnaryOp::Neg, port),
            DType::U32 => self.g.with_number(BinaryOp::Add, port, 1.0),
            _ => Ok(port),
        };
        self.output(step.unwrap_or(port), judge)
    }

    /// A view of a port as a graph output.
    fn view(&mut self, port: NodeId, judge: Judge) -> Result<()> {
        let dims = self.g.type_of(port)?.1.to_vec();
        let view = match self.below(3) {
            0 if dims.len() > 1 => self.g.permute(port, &(0..dims.len()).rev().collect::<Vec<_>>()),
            1 => self.g.reshape(port, &[dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim)]),
            _ => self.g.broadcast(port, &[&[2.into()], dims.as_slice()].concat()),
        };
        self.output(view.unwrap_or(port), judge)
    }

    fn finish(self) -> Result<SuiteGraph> {
        let graph = self.g.finish()?;
        let mut sets: Vec<(Vec<Tensor>, Value)> = Vec::new();
        for shift in 0..RUNS {
            // An op may refuse other values. Then integers stay unchanged, or the set is skipped.
            for moves_integers in [true, false] {
                let moved = |given: &FirstInput| match given.tensor.dtype().is_integer() && !moves_integers {
                    _ if given.is_fixed => Ok(given.tensor.clone()),
                    true => Ok(given.tensor.clone()),
                    false => moved(&given.tensor, shift),
                };
                let inputs: Vec<Tensor> = self.given.iter().map(moved).collect::<Result<_>>()?;
                let op = RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>()).into_op()?;
                match (reference(&op), shift) {
                    (Ok(expected), _) => {
                        sets.push((inputs, expected));
                        break;
                    }
                    (Err(error), 0) => return Err(error),
                    (Err(_), _) => {}
                }
            }
        }
        Ok(SuiteGraph { graph, sets, judges: self.judges, own: self.own })
    }
}

/// The tensor with an additional row at the beginning of its first axis.
fn with_row_before(tensor: &Tensor) -> Result<Tensor> {
    let rows = tensor.shape()[0];
    let contiguous = tensor.contiguous()?;
    let bytes = contiguous.as_bytes()?;
    let row = bytes.len() / rows.max(1);
    let mut copy = HostBufferMut::zeroed(bytes.len() + row)?;
    copy.bytes_mut()[..row].copy_from_slice(&bytes[bytes.len() - row..]);
    copy.bytes_mut()[row..].copy_from_slice(bytes);
    Tensor::from_host(tensor.dtype(), tensor.shape().with_dim(0, rows + 1)?, copy.freeze())
}

/// The elements rotated by a few positions, with the same memory layout; a tensor of one element
/// gets another number.
fn moved(tensor: &Tensor, shift: usize) -> Result<Tensor> {
    if shift == 0 || tensor.elements() == 0 {
        return Ok(tensor.clone());
    }
    if tensor.elements() == 1 {
        return other_number(tensor, shift);
    }
    let contiguous = tensor.contiguous()?;
    let bytes = contiguous.as_bytes()?;
    let mut copy = HostBufferMut::zeroed(bytes.len())?;
    let moved = shift % tensor.elements() * tensor.dtype().size_bytes();
    copy.bytes_mut()[moved..].copy_from_slice(&bytes[..bytes.len() - moved]);
    copy.bytes_mut()[..moved].copy_from_slice(&bytes[bytes.len() - moved..]);
    let moved = Tensor::from_host(tensor.dtype(), *tensor.shape(), copy.freeze())?;
    laid_out_like(&moved, tensor)
}

/// A tensor of one element with a nearby number. Infinities and NaN are unchanged.
fn other_number(tensor: &Tensor, shift: usize) -> Result<Tensor> {
    let Some(value) = to_f64(tensor)?.first().copied() else { return Ok(tensor.clone()) };
    let other = match tensor.dtype().is_integer() {
        true => value + shift as f64,
        false if value == 0.0 => shift as f64 / 16.0,
        false => value * (1.0 - shift as f64 / 16.0),
    };
    Ok(tensor_of(tensor.dtype(), tensor.shape(), &[other]))
}

/// The difference of a graph's outputs, each judged like its case. If the device may flush
/// subnormal numbers, these equal zero.
pub fn difference(graph: &SuiteGraph, expected: &Value, got: &Value, flushes: bool) -> Option<String> {
    compared(graph, expected, got, flushes).unwrap_or_else(|error| Some(error.to_string()))
}

fn compared(graph: &SuiteGraph, expected: &Value, got: &Value, flushes: bool) -> Result<Option<String>> {
    let tensors = |value: &Value| -> Result<Vec<Tensor>> {
        let Value::List(_) = value else {
            return Err(Error::invalid("graph: outputs", "a list", "something else"));
        };
        let flushed = |tensor: &Tensor| if flushes { without_subnormals(tensor) } else { Ok(tensor.clone()) };
        value.tensors().map(flushed).collect()
    };
    let (expected, got) = (tensors(expected)?, tensors(got)?);
    if (expected.len(), got.len()) != (graph.judges.len(), graph.judges.len()) {
        return Ok(Some(format!("expected {} outputs, got {}", expected.len(), got.len())));
    }
    let op = RunGraph::new(&graph.graph, &graph.sets[0].0.iter().collect::<Vec<_>>()).into_op()?;
    let one = |tensor: &Tensor| Value::List(vec![Part::Tensor(tensor.clone())]);
    for (place, judge) in graph.judges.iter().enumerate() {
        if matches!(judge, Judge::Own(_)) {
            continue;
        }
        if let Some(what) = judge.difference(&op, &one(&expected[place]), &one(&got[place])) {
            return Ok(Some(format!("output {place}: {what}")));
        }
    }
    let of_case = |tensors: &[Tensor]| match tensors {
        [first, second] => Value::Pair(first.clone(), second.clone()),
        [one] => Value::Tensor(one.clone()),
        other => Value::List(other.iter().cloned().map(Part::Tensor).collect()),
    };
    let wrong = graph.own.iter().find_map(|own| {
        let (expected, got) = (&expected[own.outputs.clone()], &got[own.outputs.clone()]);
        let what = (own.check)(&own.op, &of_case(expected), &of_case(got))?;
        Some(format!("outputs {:?}: {what}", own.outputs))
    });
    Ok(wrong)
}

/// The ops of the suite that no graph accepts, each with the reason.
#[cfg(test)]
const IN_NO_GRAPH: [(&str, &str); 15] = [
    ("compress", BYTES),
    ("crc", BYTES),
    ("decompress", BYTES),
    ("decrypt", BYTES),
    ("encrypt", BYTES),
    ("graph", "a graph is no node of another: it is recorded into it"),
    ("hash", BYTES),
    ("hkdf", BYTES),
    ("hmac", BYTES),
    ("normalize", UNSHAPED),
    ("open", BYTES),
    ("seal", BYTES),
    ("search", UNSHAPED),
    ("transfer", "where tensors lie is the engine's business"),
    ("verify", BYTES),
];
#[cfg(test)]
const BYTES: &str = "it takes bytes, or answers for each message";
#[cfg(test)]
const UNSHAPED: &str = "the graph's builder does not know its outputs (`Op::outputs`)";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_op_of_the_list_that_gives_tensors_is_in_a_graph() {
        let graphs = SuiteGraphs::new();
        let count = graphs.ops().count() as u64;
        let (mut seen, mut pairs, mut views, mut sets, mut own) = (BTreeSet::new(), 0, 0, 0, 0);
        // One cycle, from any seed.
        for seed in 7..7 + count {
            let made = graphs.graph(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(!made.sets.is_empty() && !made.judges.is_empty());
            let nodes = made.graph.nodes();
            seen.extend(nodes.iter().map(|node| node.kind.name()));
            pairs += nodes.iter().filter(|node| node.kind.name() == "topk").count();
            views += made.sets.iter().flat_map(|set| &set.0).filter(|tensor| !tensor.is_contiguous()).count();
            (sets, own) = (sets + made.sets.len(), own + made.own.len());
        }
        let missing: Vec<_> = graphs.ops().filter(|op| !seen.contains(op)).collect();
        assert!(missing.is_empty(), "in no graph: {missing:?}; there are {seen:?}");
        assert!(pairs > 0 && views > RUNS && own > 0, "{pairs} pairs, {views} views, {own} checks of a case's own");
        assert!(sets as u64 > count * (RUNS as u64 - 1), "{sets} sets of inputs for {count} graphs");
    }

    #[test]
    fn ops_that_no_graph_takes_are_known() {
        let known: Vec<&str> = IN_NO_GRAPH.iter().map(|(name, _)| *name).collect();
        assert_eq!(SuiteGraphs::new().refused(), known);
    }

    #[test]
    fn a_few_seeds_spread_over_the_ops_and_a_cycle_has_them_all() {
        let count = SuiteGraphs::new().ops().count() as u64;
        let all: BTreeSet<usize> = (3..3 + count).map(|seed| first_op(seed, count)).collect();
        assert_eq!(all.len() as u64, count);
        for start in [0, 5, 1_763_000_000] {
            let few: BTreeSet<usize> = (start..start + 12).map(|seed| first_op(seed, count)).collect();
            let quarters: BTreeSet<u64> = few.iter().map(|op| *op as u64 * 4 / count).collect();
            assert_eq!((few.len(), quarters.len()), (12, 4), "{few:?} of {count}");
        }
    }

    #[test]
    fn a_single_number_changes_and_views_stay_views() {
        let one = Tensor::from_vec(vec![8.0_f32], [1, 1]).unwrap();
        assert_ne!(moved(&one, 1).unwrap().to_vec::<f32>().unwrap(), moved(&one, 2).unwrap().to_vec::<f32>().unwrap());
        let values: Vec<i32> = (0..6).collect();
        let view = Tensor::from_vec(values, [2, 3]).unwrap().transpose().unwrap();
        let moved = moved(&view, 1).unwrap();
        assert_eq!((moved.strides(), moved.to_vec::<i32>().unwrap()), (view.strides(), vec![5, 0, 3, 1, 4, 2]));
    }
}
