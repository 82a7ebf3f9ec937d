//! Whether two answers to one op count as equal. The elements are read in place: nothing is copied,
//! however large the answers are.

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp};
use panoply_core::graph::{Graph, Kind};
use panoply_core::op::compute::{ComputeOp, Precision, Reduction};
use panoply_core::op::graph::GraphOp;
use panoply_core::op::signal::SignalOp;
use panoply_core::{Complex64, DType, Describe, Element, Error, Op, PartRef, Result, Tensor, Value, bf16, f16};

use super::{Rule, bounds};

/// The fraction of elements that may differ in decisions.
const DECISIONS_SHARE_MAX: f64 = 0.01;
/// From this number of elements on, one may always differ in decisions.
const ONE_MAY_DIFFER_FROM: usize = 16;

/// An element of a map may be off by the tolerance of this fraction of the largest element: the
/// `sin` of a multiple of pi is any number near zero.
const ZERO_SHARE: f64 = 1e-3;

/// An element of a sum may be off by the tolerance of this fraction of the largest term: where
/// terms cancel out, rounding errors remain.
const TERM_SHARE: f64 = 1e-2;

/// The tolerance of numbers with ten bits of fraction, and of bytes that stand for numbers: one
/// step of such a byte is less than a fifth of it.
const TEN_BITS: f64 = 4e-2;

/// The criteria by which the answers to one op are compared.
struct Terms {
    rule: Rule,
    /// The tolerance of the coarsest type on the way to the outputs.
    coarsest: f64,
    /// Whether a few elements may differ by any amount.
    decides: bool,
    /// The largest term of the op's sums; see [`largest_term`].
    term: f64,
}

impl Terms {
    fn of(op: &Op, rule: Rule) -> Terms {
        let (decides, term) = (rule == Rule::Decisions, largest_term(op));
        let mut terms = Terms { rule, coarsest: 0.0, decides, term };
        match op {
            Op::Graph(GraphOp::RunGraph(run)) => terms.note_graph(run.graph()),
            op => terms.note(op),
        }
        terms
    }

    fn note_graph(&mut self, graph: &Graph) {
        for node in graph.nodes() {
            self.note_dtype(node.dtype);
            if let Kind::Op(op) = &node.kind {
                let op = op.op();
                let is_byte = matches!(node.dtype, DType::I8 | DType::U8);
                self.coarsest = self.coarsest.max(if is_byte { TEN_BITS } else { 0.0 });
                self.decides |= makes_places(&op) || Rule::of(&op) == Some(Rule::Decisions);
                self.note(&op);
            }
        }
    }

    /// Notes how an op affects the precision of its numbers.
    fn note(&mut self, op: &Op) {
        let mut floats = false;
        op.for_each_part(&mut |part| {
            if let PartRef::Tensor(tensor) = part {
                floats |= tolerance(tensor.dtype()).is_some();
                self.note_dtype(tensor.dtype());
            }
        });
        match op {
            Op::Compute(ComputeOp::MatMul(product)) if product.precision != Precision::Full => {
                self.coarsest = self.coarsest.max(TEN_BITS);
            }
            Op::Compute(ComputeOp::Map(map)) => self.note_program(map.program().ok(), floats),
            Op::Compute(ComputeOp::RowMap(rows)) => {
                self.note_program(rows.before_program().ok(), floats);
                self.note_program(rows.after_program().ok(), floats);
            }
            _ => {}
        }
    }

    fn note_program(&mut self, program: Option<&Program>, mut floats: bool) {
        let nodes = program.map_or(&[][..], Program::nodes);
        for node in nodes {
            if let Node::Cast(dtype, _) = node {
                self.note_dtype(*dtype);
                floats |= tolerance(*dtype).is_some();
            }
        }
        if floats && nodes.iter().any(jumps) {
            self.decides = true;
            let to_byte = |node: &Node| matches!(node, Node::Cast(DType::I8 | DType::U8, _));
            self.coarsest = self.coarsest.max(if nodes.iter().any(to_byte) { TEN_BITS } else { 0.0 });
        }
    }

    fn note_dtype(&mut self, dtype: DType) {
        self.coarsest = self.coarsest.max(tolerance(dtype).unwrap_or(0.0));
    }

    /// A message with the number of differing elements, if they are too many.
    fn told(&self, differing: usize, of: usize) -> Option<String> {
        let share = (DECISIONS_SHARE_MAX * of as f64) as usize;
        let few = if self.decides { share.max(usize::from(of >= ONE_MAY_DIFFER_FROM)) } else { 0 };
        (differing > few).then(|| format!("{differing} of {of} elements differ"))
    }
}

/// Whether numbers just below and just above a boundary give results that are far apart.
fn jumps(node: &Node) -> bool {
    match node {
        Node::Unary(op, _) => matches!(op, UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Not),
        Node::Binary(op, _, _) => matches!(
            op,
            BinaryOp::Rem
                | BinaryOp::Eq
                | BinaryOp::Ne
                | BinaryOp::Lt
                | BinaryOp::Le
                | BinaryOp::Gt
                | BinaryOp::Ge
                | BinaryOp::And
                | BinaryOp::Or
        ),
        Node::Ternary(op, _, _, _) => *op == TernaryOp::Select,
        Node::Cast(dtype, _) => tolerance(*dtype).is_none(),
        Node::Input(_) | Node::Const(_) => false,
    }
}

/// Whether an op of a graph outputs indices, which later ops may use, or is opaque.
fn makes_places(op: &Op) -> bool {
    match op {
        Op::Extension(_) => true,
        Op::Compute(op) => match op {
            ComputeOp::Reduce(reduce) => matches!(reduce.reduction, Reduction::ArgMax | Reduction::ArgMin),
            ComputeOp::ArgSort(_)
            | ComputeOp::Kernel(_)
            | ComputeOp::Search(_)
            | ComputeOp::SortPairs(_)
            | ComputeOp::TopK(_) => true,
            _ => false,
        },
        _ => false,
    }
}

/// A description of how two answers to an op differ, if they do. Both must be on the host; an
/// answer that cannot be read is an error. The description contains no element values.
pub(crate) fn difference(op: &Op, first: &Value, second: &Value) -> Result<Option<String>> {
    let Some(rule) = Rule::of(op) else { return Ok(None) };
    let (parts, others): (Vec<PartRef<'_>>, Vec<PartRef<'_>>) = (first.parts().collect(), second.parts().collect());
    if parts.len() != others.len() {
        return Ok(Some(format!("{} outputs against {}", parts.len(), others.len())));
    }
    let (compared, terms) = (if rule == Rule::ExactKeys { 1 } else { parts.len() }, Terms::of(op, rule));
    for (number, pair) in parts.into_iter().zip(others).take(compared).enumerate() {
        let differs = match pair {
            (PartRef::Tensor(one), PartRef::Tensor(other)) => match tensors_differ(&terms, one, other, 0.0)? {
                Some(how) => differs_by_more_than_rounding(op, number, &terms, [one, other], how)?,
                None => None,
            },
            (PartRef::Bytes(one), PartRef::Bytes(other)) => {
                (!equal(one.as_slice()?, other.as_slice()?)).then(|| "its bytes differ".to_owned())
            }
            _ => Some("it is of another sort".to_owned()),
        };
        if let Some(how) = differs {
            return Ok(Some(format!("output {number}: {how}")));
        }
    }
    Ok(None)
}

/// Whether all bytes are equal, in a time that depends only on their number, because they may be
/// secret.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    one.len() == other.len() && differing == 0
}

/// Compares tensors again that differ by more than the tolerance, with a bound of the rounding
/// errors. Fails if a graph has no bound, or one that says nothing.
fn differs_by_more_than_rounding(
    op: &Op,
    output: usize,
    terms: &Terms,
    [one, other]: [&Tensor; 2],
    how: String,
) -> Result<Option<String>> {
    if one.shape() != other.shape()
        || one.dtype() != other.dtype()
        || matches!(terms.rule, Rule::Exact | Rule::ExactKeys)
        || (terms.decides && !matches!(op, Op::Graph(_)))
    {
        return Ok(Some(how));
    }
    let largest = larger(largest_finite(one)?, largest_finite(other)?);
    let rounding = bounds::rounding(op, output, terms.coarsest);
    match rounding.filter(|rounding| *rounding <= largest / 2.0 || !matches!(op, Op::Graph(_))) {
        Some(rounding) => tensors_differ(terms, one, other, rounding),
        None if matches!(op, Op::Graph(_)) => {
            Err(Error::invalid("a comparison", "a graph whose rounding errors have a useful bound", "one without"))
        }
        None => Ok(Some(how)),
    }
}

/// `rounding`: by how much elements may differ in addition to the tolerance.
fn tensors_differ(terms: &Terms, one: &Tensor, other: &Tensor, rounding: f64) -> Result<Option<String>> {
    if (one.dtype(), one.shape()) != (other.dtype(), other.shape()) {
        return Ok(Some(format!("{one:?} against {other:?}")));
    }
    let Some(tolerance) = tolerance(one.dtype()) else { return integers_differ(terms, one, other) };
    let tolerance = tolerance.max(terms.coarsest);
    let mut largest = 0.0;
    if !matches!(terms.rule, Rule::Exact | Rule::ExactKeys) {
        for_each_pair(one, other, |a, b| largest = larger(larger(largest, a), b))?;
    }
    let least = f64::from(f32::MIN_POSITIVE) + rounding;
    let allowed = |a: f64, b: f64| match terms.rule {
        Rule::Exact | Rule::ExactKeys => 0.0,
        Rule::Elements => tolerance * a.abs().max(b.abs()).max(largest * ZERO_SHARE) + least,
        Rule::Sums | Rule::SumsAndPlaces | Rule::Decisions => tolerance * largest.max(terms.term * TERM_SHARE) + least,
    };
    let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= allowed(a, b);
    let (mut differing, mut count) = (0, 0);
    for_each_pair(one, other, |a, b| {
        count += 1;
        differing += usize::from(!same(a, b));
    })?;
    Ok(terms.told(differing, count))
}

/// The largest term of the sums in an op, as far as its inputs are on the host: the rounding errors
/// of a sum grow with its terms, and terms may cancel out. Zero if an op sums no inputs, or if
/// nothing is known about them.
fn largest_term(op: &Op) -> f64 {
    let factors = match op {
        Op::Compute(ComputeOp::Reduce(_) | ComputeOp::Scan(_)) => 1,
        Op::Compute(
            ComputeOp::MatMul(_)
            | ComputeOp::Conv2d(_)
            | ComputeOp::Conv2dBackwardInput(_)
            | ComputeOp::Conv2dBackwardWeight(_),
        )
        | Op::Signal(SignalOp::Convolve(_) | SignalOp::Convolve2(_) | SignalOp::Fir(_)) => 2,
        _ => return 0.0,
    };
    let (mut seen, mut product) = (0, 1.0);
    op.for_each_part(&mut |part| {
        if let (PartRef::Tensor(tensor), true) = (&part, seen < factors) {
            seen += 1;
            let mut largest = 0.0;
            let known = tolerance(tensor.dtype()).is_some()
                && for_each_pair(tensor, tensor, |value, _| largest = larger(largest, value)).is_ok();
            product *= if known { largest } else { 0.0 };
        }
    });
    if seen == factors { product } else { 0.0 }
}

/// The largest finite magnitude in a tensor of floating-point numbers; zero for integers.
fn largest_finite(tensor: &Tensor) -> Result<f64> {
    let mut largest = 0.0;
    if tolerance(tensor.dtype()).is_some() {
        for_each_pair(tensor, tensor, |value, _| largest = larger(largest, value))?;
    }
    Ok(largest)
}

/// The largest magnitude in a tensor of floating-point numbers. `None` if it cannot be read, or
/// holds a number that is not finite.
pub(super) fn largest_of(tensor: &Tensor) -> Option<f64> {
    tolerance(tensor.dtype())?;
    let mut largest = 0.0_f64;
    let mut are_finite = true;
    for_each_pair(tensor, tensor, |value, _| {
        (largest, are_finite) = (larger(largest, value), are_finite && value.is_finite());
    })
    .ok()?;
    are_finite.then_some(largest)
}

/// The largest Euclidean length of a row, along the last axis. `None` as in [`largest_of`].
pub(super) fn longest_row(tensor: &Tensor) -> Option<f64> {
    tolerance(tensor.dtype())?;
    let numbers = if tensor.dtype() == DType::Complex64 { 2 } else { 1 };
    let len = tensor.shape().last().copied().unwrap_or(1).max(1) * numbers;
    let (mut longest, mut sum, mut count) = (0.0_f64, 0.0_f64, 0);
    for_each_pair(tensor, tensor, |value, _| {
        (sum, count) = (sum + value * value, count + 1);
        if count == len {
            // A sum that is NaN stays: it makes the whole unknown.
            longest = if sum.is_nan() || sum > longest { sum } else { longest };
            (sum, count) = (0.0, 0);
        }
    })
    .ok()?;
    longest.is_finite().then(|| longest.sqrt())
}

/// The larger of two magnitudes. Values that are not finite are ignored.
fn larger(largest: f64, value: f64) -> f64 {
    if value.is_finite() { largest.max(value.abs()) } else { largest }
}

/// Compares elements that have no tolerance.
fn integers_differ(terms: &Terms, one: &Tensor, other: &Tensor) -> Result<Option<String>> {
    if terms.rule == Rule::SumsAndPlaces {
        return Ok(None);
    }
    let (one, other) = (one.contiguous()?, other.contiguous()?);
    let (first, second) = (one.as_bytes()?, other.as_bytes()?);
    if !terms.decides {
        return Ok((!equal(first, second)).then(|| "its elements differ".to_owned()));
    }
    let size = one.dtype().size_bytes().max(1);
    let pairs = first.chunks(size).zip(second.chunks(size));
    Ok(terms.told(pairs.filter(|(a, b)| a != b).count(), first.len() / size))
}

/// The allowed relative difference of elements. `None` for integers.
pub(super) fn tolerance(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F64 => 1e-9,
        DType::F32 | DType::Complex64 => 2e-3,
        DType::F16 => TEN_BITS,
        DType::BF16 => 1e-1,
        DType::I32 | DType::U32 | DType::I8 | DType::U8 => return None,
    })
}

/// Passes the elements of two floating-point tensors of equal type and shape to `visit`, in order.
/// Each complex element gives two pairs.
fn for_each_pair(one: &Tensor, other: &Tensor, mut visit: impl FnMut(f64, f64)) -> Result<()> {
    match one.dtype() {
        DType::F64 => read::<f64>(one, other, visit),
        DType::F16 => read(one, other, |a: f16, b: f16| visit(a.to_f64(), b.to_f64())),
        DType::BF16 => read(one, other, |a: bf16, b: bf16| visit(a.to_f64(), b.to_f64())),
        DType::Complex64 => read(one, other, |a: Complex64, b: Complex64| {
            visit(f64::from(a.re), f64::from(b.re));
            visit(f64::from(a.im), f64::from(b.im));
        }),
        _ => read(one, other, |a: f32, b: f32| visit(f64::from(a), f64::from(b))),
    }
}

fn read<T: Element>(one: &Tensor, other: &Tensor, mut visit: impl FnMut(T, T)) -> Result<()> {
    if one.is_contiguous() && other.is_contiguous() {
        one.as_slice::<T>()?.iter().zip(other.as_slice::<T>()?).for_each(|(a, b)| visit(*a, *b));
        return Ok(());
    }
    let (first, second) = (one.host_elements::<T>()?, other.host_elements::<T>()?);
    one.indices().zip(other.indices()).for_each(|(a, b)| visit(first[a], second[b]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use panoply_core::expr::Expr;
    use panoply_core::op::compute::{ArgSort, Map, MatMul, Reduce, SortPairs, Transpose};
    use panoply_core::op::crypto::{Hash, HashAlgorithm};
    use panoply_core::op::graph::RunGraph;
    use panoply_core::{Domain, Operation, Part};

    use super::*;
    use crate::verify::Verify;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, [1, values.len()]).unwrap()
    }

    fn differ(op: &Op, one: &[f32], other: &[f32]) -> bool {
        difference(op, &Value::Tensor(tensor(one)), &Value::Tensor(tensor(other))).unwrap().is_some()
    }

    #[test]
    fn copies_are_equal_and_sums_are_near() {
        let copy = Transpose::new(&tensor(&[1.0, 2.0])).into_op().unwrap();
        assert!(!differ(&copy, &[1.0, f32::NAN], &[1.0, f32::NAN]));
        assert!(differ(&copy, &[1.0, 2.0], &[1.0, 2.000_001]));
        let square = Tensor::from_slice(&[1.0_f32; 4], [2, 2]).unwrap();
        let sum = MatMul::new(&square, &square).into_op().unwrap();
        assert!(!differ(&sum, &[1000.0, 0.5], &[1000.1, 0.6]), "measured by the largest");
        assert!(differ(&sum, &[1000.0, 0.5], &[1010.0, 0.5]));
        assert!(differ(&sum, &[1.0, f32::INFINITY], &[1.0, f32::NEG_INFINITY]));
        assert!(differ(&sum, &[1.0, f32::NAN], &[1.0, 2.0]));
        let noise = Reduce::sum(&tensor(&[1e6, -1e6, 0.5])).into_op().unwrap();
        assert!(!differ(&noise, &[0.5], &[0.53]), "what is left of large terms that cancel out");
        assert!(differ(&noise, &[0.5], &[100.0]));
        let map = Map::new(-Expr::input(0), &[&tensor(&[1.0, 2.0])]).into_op().unwrap();
        assert!(differ(&map, &[1000.0, 0.5], &[1000.1, 0.6]), "measured by itself");
        assert!(!differ(&map, &[1000.0, 0.5, 1e-40], &[1000.1, 0.500_1, 0.0]), "subnormal numbers may be flushed");
    }

    #[test]
    fn keys_are_compared_and_what_goes_with_them_is_not() {
        let keys = Tensor::from_slice(&[2_u32, 1], [2]).unwrap();
        let op = SortPairs::new(&keys, &keys).into_op().unwrap();
        let pair = |first: &[u32], second: &[u32]| {
            let of = |values: &[u32]| Tensor::from_slice(values, [2]).unwrap();
            Value::Pair(of(first), of(second))
        };
        assert_eq!(difference(&op, &pair(&[1, 1], &[0, 1]), &pair(&[1, 1], &[1, 0])).unwrap(), None);
        assert!(difference(&op, &pair(&[1, 2], &[0, 1]), &pair(&[1, 3], &[0, 1])).unwrap().is_some());
    }

    #[test]
    fn what_gives_no_single_answer_is_left_out() {
        let left_out = ArgSort::new(&tensor(&[1.0, 2.0])).into_op().unwrap();
        assert!(!Verify::every(1).wants(&left_out, true));
        let hash = Hash::new(HashAlgorithm::Sha256, vec![1]).into_op().unwrap();
        assert!(Verify::every(1).wants(&hash, false));
        let sums = Verify { domains: vec![Domain::Compute], ..Verify::every(1) };
        assert!(!sums.wants(&hash, false) && sums.wants(&hash, true));
    }

    #[test]
    fn bytes_are_equal_and_their_contents_are_not_told() {
        let hash = Hash::new(HashAlgorithm::Sha256, vec![1]).into_op().unwrap();
        let bytes = |bytes: &[u8]| Value::List(vec![Part::Bytes(panoply_core::Bytes::from_vec(bytes.to_vec()))]);
        assert_eq!(difference(&hash, &bytes(&[1, 2]), &bytes(&[1, 2])).unwrap(), None);
        let told = difference(&hash, &bytes(&[1, 77]), &bytes(&[1, 88])).unwrap().unwrap();
        assert!(!told.contains("77") && !told.contains("88"), "{told}");
        assert!(difference(&hash, &bytes(&[1]), &bytes(&[1, 2])).unwrap().is_some());
    }

    /// A graph with one input of sixteen numbers.
    fn graph(record: impl FnOnce(&mut panoply_core::graph::GraphBuilder, panoply_core::graph::NodeId)) -> Op {
        let mut g = Graph::builder("compared");
        let x = g.input("x", DType::F32, &[1.into(), 16.into()]).unwrap();
        record(&mut g, x);
        RunGraph::new(&g.finish().unwrap(), &[&tensor(&[1.0; 16])]).into_op().unwrap()
    }

    fn sixteen(first: f32, second: f32) -> Vec<f32> {
        [[first, second].as_slice(), &[1.0; 14]].concat()
    }

    #[test]
    fn what_is_coarse_inside_of_a_graph_is_coarse_at_its_end() {
        let expr = |expr: Expr| move |x: &[Tensor]| Map::new(expr, &[&x[0]]);
        let plain = graph(|g, x| {
            let y = g.op(&[x], expr(-Expr::input(0))).unwrap();
            g.output("y", y).unwrap();
        });
        let in_bytes = graph(|g, x| {
            let y = g.op(&[x], expr((Expr::input(0) * 127.0).round().cast(DType::I8))).unwrap();
            let z = g.op(&[y], expr(Expr::input(0).cast(DType::F32) * (1.0 / 127.0))).unwrap();
            g.output("z", z).unwrap();
        });
        let in_halves = graph(|g, x| {
            let y = g.op(&[x], expr(Expr::input(0).cast(DType::F16))).unwrap();
            let z = g.op(&[y], expr(Expr::input(0).cast(DType::F32))).unwrap();
            g.output("z", z).unwrap();
        });
        // Half of the elements are off by one step of a byte.
        let (one, other) = (vec![1.0; 16], [vec![1.0; 8], vec![1.0 - 1.0 / 127.0; 8]].concat());
        assert!(differ(&plain, &one, &other));
        assert!(!differ(&in_bytes, &one, &other) && !differ(&in_halves, &one, &other));
        let wrong = [vec![1.0; 8], vec![0.8; 8]].concat();
        assert!(differ(&in_bytes, &one, &wrong) && differ(&in_halves, &one, &wrong));
    }

    #[test]
    fn terms_that_cancel_out_keep_their_rounding_errors() {
        // Pairs of equal products with opposite signs: the sum is zero, and each of its 4096 terms
        // was rounded.
        for (dtype, residue, wrong) in [(DType::BF16, 4.0, 400.0), (DType::F16, 1.0, 100.0)] {
            let signs: Vec<f32> = (0..4096).map(|index| if index % 2 == 0 { 1.0 } else { -1.0 }).collect();
            let of = |values: &[f32], dims: [usize; 2]| match dtype {
                DType::F16 => Tensor::from_vec(values.iter().map(|v| f16::from_f32(*v)).collect(), dims).unwrap(),
                _ => Tensor::from_vec(values.iter().map(|v| bf16::from_f32(*v)).collect(), dims).unwrap(),
            };
            let (a, b) = (of(&signs, [1, 4096]), of(&[1.0; 4096], [4096, 1]));
            let op = MatMul::new(&a, &b).into_op().unwrap();
            let answer = |value: f32| Value::Tensor(of(&[value], [1, 1]));
            let differ = |value: f32| difference(&op, &answer(0.0), &answer(value)).unwrap().is_some();
            assert!(!differ(residue) && differ(wrong), "{dtype:?}");
        }
        let terms: Vec<f32> = (0..100_000).map(|index| if index % 2 == 0 { 1000.0 } else { -1000.0 }).collect();
        let sum = Reduce::sum(&tensor(&terms)).into_op().unwrap();
        assert!(!differ(&sum, &[0.0], &[0.5]));
        let inputs = [tensor(&[1e4]), tensor(&[1e4]), tensor(&[1e8])];
        let cancels = Expr::input(0) * Expr::input(1) - Expr::input(2);
        let map = Map::new(cancels, &inputs.each_ref()).into_op().unwrap();
        assert!(!differ(&map, &[0.0], &[4.0]) && differ(&map, &[0.0], &[400.0]));
    }

    #[test]
    fn a_graph_is_judged_by_its_rounding_errors_or_not_at_all() {
        let large = graph(|g, x| {
            let y = g.op(&[x], |x| Map::new(Expr::input(0) * 1e6 - 999_000.0, &[&x[0]])).unwrap();
            g.output("y", y).unwrap();
        });
        // About 1000 is left of a million.
        let with = |last: f32| [vec![1000.0; 15], vec![last]].concat();
        assert!(!differ(&large, &with(1000.0), &with(1002.2)));
        assert!(differ(&large, &with(1000.0), &with(1100.0)));
        let divides = graph(|g, x| {
            let y = g.op(&[x], |x| Map::new(Expr::input(0) / (Expr::input(0) - 1.0), &[&x[0]])).unwrap();
            g.output("y", y).unwrap();
        });
        let answer = |value: f32| Value::Tensor(tensor(&[value; 16]));
        assert_eq!(difference(&divides, &answer(1.0), &answer(1.001)).unwrap(), None);
        let skipped = difference(&divides, &answer(1.0), &answer(7.0)).unwrap_err().to_string();
        assert!(skipped.contains("rounding errors"), "{skipped}");
        let cancels = graph(|g, x| {
            let y = g.op(&[x], |x| Map::new(Expr::input(0) * 1e8 - 1e8, &[&x[0]])).unwrap();
            g.output("y", y).unwrap();
        });
        assert!(difference(&cancels, &answer(0.0), &answer(4.0)).is_err(), "a bound that says nothing");
    }

    #[test]
    fn a_number_beside_a_border_may_fall_on_either_side() {
        let x = tensor(&[1.0; 16]);
        let (one, other) = (sixteen(1.0, 2.0), sixteen(1.0, 1.0));
        let floor = Map::new(Expr::input(0).floor(), &[&x]).into_op().unwrap();
        assert!(!differ(&floor, &one, &other));
        assert!(differ(&floor, &one, &sixteen(5.0, 7.0)), "two of sixteen");
        assert!(differ(&floor, &[1.0, 2.0], &[1.0, 1.0]), "one of two");
        let plain = Map::new(-Expr::input(0), &[&x]).into_op().unwrap();
        assert!(differ(&plain, &one, &other));
        let whole = Tensor::from_slice(&[1_i32; 16], [16]).unwrap();
        let value = |last: i32| {
            let values = [vec![1_i32; 15], vec![last]].concat();
            Value::Tensor(Tensor::from_slice(&values, [16]).unwrap())
        };
        let zero = Map::new(Expr::input(0).logical_not(), &[&whole]).into_op().unwrap();
        assert!(difference(&zero, &value(1), &value(0)).unwrap().is_some(), "integers are on no border");
    }

    #[test]
    fn products_that_may_be_rounded_are_compared_as_such() {
        let square = Tensor::from_slice(&[1.0_f32; 4], [2, 2]).unwrap();
        let full = MatMul::new(&square, &square);
        let rounded = full.clone().precision(Precision::Tf32).into_op().unwrap();
        let full = full.into_op().unwrap();
        assert!(differ(&full, &[1.0, 2.0], &[1.0, 2.02]) && !differ(&rounded, &[1.0, 2.0], &[1.0, 2.02]));
        assert!(differ(&rounded, &[1.0, 2.0], &[1.0, 2.2]));
    }

    #[test]
    fn answers_are_read_where_they_lie() {
        let op = Transpose::new(&tensor(&[1.0, 2.0])).into_op().unwrap();
        let lying = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let turned = lying.permute(&[1, 0]).unwrap();
        let copied = Tensor::from_slice(&[1.0_f32, 3.0, 2.0, 4.0], [2, 2]).unwrap();
        let differ = |one: &Tensor, other: &Tensor| {
            difference(&op, &Value::Tensor(one.clone()), &Value::Tensor(other.clone())).unwrap().is_some()
        };
        assert!(!differ(&turned, &copied) && differ(&turned, &lying));
    }
}
