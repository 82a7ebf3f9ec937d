//! Every case of the suite whose op a graph takes, as a graph with that op: written, read and
//! written again, it is the same graph and the same text. A new op has cases in the suite, so it
//! fails here until the text format supports it.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::{BTreeMap, BTreeSet};

use panoply_conformance::{Case, cases};
use panoply_core::graph::{Dim, Graph, NodeId};
use panoply_core::op::compute::{Attention, LayerNorm, MatMul};
use panoply_core::op::signal::{
    Adapt, AdaptTarget, Biquad, Constellation, Convolutional, Demodulate, Ending, ErasureRebuild, FindPeaks, Iir,
    Interleave, Interleaver, Puncture, Scramble, Scrambler, Viterbi,
};
use panoply_core::{Complex64, DType, Describe, Op, Operation, PartRef, Result, Tensor, Value};
use panoply_graph::text;

/// Ops that graphs take and the text format does not support, each with the reason.
const WITHOUT_WORDS: [(&str, &str); 1] = [("kernel", "code of the program's own, which may be a closure")];

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

/// Whether a graph takes the op of a case: tensors in, tensors of known shapes out.
fn is_node(case: &Case) -> bool {
    let mut is_tensors = true;
    case.op.for_each_part(&mut |part| is_tensors &= matches!(part, PartRef::Tensor(_)));
    is_tensors
        && matches!(case.op, Op::Compute(_) | Op::Signal(_))
        && case.op.validate().is_ok()
        && case.op.outputs().is_ok()
}

/// The op on the inputs of a graph, with each of its outputs as an output.
fn recorded(op: &Op) -> Result<Graph> {
    let mut g = Graph::builder("one");
    let mut operands: Vec<NodeId> = Vec::new();
    op.for_each_tensor(&mut |tensor: &Tensor| {
        let dims: Vec<Dim> = tensor.shape().iter().map(|size| Dim::fixed(*size)).collect();
        let name = format!("x{}", operands.len());
        operands.extend(g.input(&name, tensor.dtype(), &dims));
    });
    let filled = |tensors: &[Tensor]| {
        let (mut op, mut tensors) = (op.clone(), tensors.iter());
        op.for_each_tensor_mut(&mut |tensor| *tensor = tensors.next().unwrap().clone());
        RecordedOp(op)
    };
    if op.outputs()?.len() == 2 {
        let (first, second) = g.op_pair(&operands, filled)?;
        g.output("y", first)?;
        g.output("z", second)?;
    } else {
        let node = g.op(&operands, filled)?;
        g.output("y", node)?;
    }
    g.finish()
}

/// Checks that writing and reading gives the same graph, and writing again the same text. Returns
/// the difference.
fn round_trip(graph: &Graph) -> Result<(), String> {
    let written = text::write(graph).map_err(|error| error.to_string())?;
    let read = text::parse(&written).map_err(|error| format!("{error}\n{written}"))?;
    let again = text::write(&read).map_err(|error| format!("{error}\n{written}"))?;
    match (read.hash() == graph.hash(), again == written) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("another graph:\n{written}")),
        (_, false) => Err(format!("another text:\n{written}\n{again}")),
    }
}

#[test]
fn every_op_that_a_graph_takes_is_written_and_read() {
    let (mut with, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let (mut faults, mut not_taken) = (Vec::new(), Vec::new());
    for case in cases().into_iter().filter(is_node) {
        let name = case.op.name();
        let graph = match recorded(&case.op) {
            Ok(graph) => graph,
            Err(error) => {
                not_taken.push(format!("{}: {error}", case.name));
                continue;
            }
        };
        match round_trip(&graph) {
            Ok(()) => {
                with.insert(name);
            }
            Err(_) if WITHOUT_WORDS.iter().any(|(known, _)| *known == name) => {
                refused.insert(name);
            }
            Err(reason) => faults.push(format!("{}: {reason}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} cases, among them {:#?}", faults.len(), faults.iter().take(12).collect::<Vec<_>>());
    assert!(not_taken.is_empty(), "graphs do not take {not_taken:#?}");
    assert!(refused.iter().eq(WITHOUT_WORDS.iter().map(|(name, _)| name)), "refused: {refused:?}");
    assert!(with.is_disjoint(&refused), "both ways: {:?}", with.intersection(&refused));
    assert!(with.len() >= 50, "{} ops: {with:?}", with.len());
}

/// A kernel is refused with the reason.
#[test]
fn kernels_are_refused_with_the_reason() {
    let case = cases().into_iter().find(|case| case.op.name() == "kernel" && is_node(case)).unwrap();
    let error = text::write(&recorded(&case.op).unwrap()).unwrap_err().to_string();
    assert!(error.contains("anyone's") && error.contains("in the program"), "{error}");
}

/// Arguments that few cases of the suite have.
#[test]
fn rare_arguments_are_kept() {
    let f32s = |dims: &[usize]| Tensor::zeros(DType::F32, dims).unwrap();
    let c64s = |dims: &[usize]| Tensor::zeros(DType::Complex64, dims).unwrap();
    let bytes = |dims: &[usize]| Tensor::zeros(DType::U8, dims).unwrap();
    let matrix = f32s(&[4, 4]);
    let points = [Complex64::new(0.1, -3e-20), Complex64::new(-0.0, 1e30)];
    let order: Vec<u32> = (0..300).rev().collect();
    let sections: Vec<Biquad> =
        (0..256).map(|at| Biquad { b: [0.1, f64::MIN_POSITIVE, -1e300], a: [0.0, at as f64] }).collect();
    let code = Convolutional { polynomials: [0o133, 0o171], puncture: Puncture::THREE_QUARTERS };
    let coded = Viterbi::new(&bytes(&[1]), 60).code(code).ending(Ending::TailBiting).coded_bits();
    let scrambler = Scrambler::SelfSynchronizing { polynomial: u64::MAX, seed: 1 << 63 };
    let constellation = || Constellation::custom(&points).unwrap();
    let adapt = |target| Adapt::new(&c64s(&[8]), target, &c64s(&[3]), 1e-3).normalized();
    let ops = [
        MatMul::new(&matrix, &matrix).alpha(0.1).beta(1e-30, &matrix).bias(&f32s(&[4])).into_op(),
        LayerNorm::new(&matrix).bias(&f32s(&[4])).rms().into_op(),
        Attention::new(&f32s(&[1, 4, 4]), &f32s(&[1, 4, 4]), &f32s(&[1, 4, 4])).scale(0.3).causal().into_op(),
        Demodulate::soft(constellation(), &c64s(&[5]), 0.1).into_op(),
        adapt(AdaptTarget::Signal(c64s(&[8]))).into_op(),
        adapt(AdaptTarget::Modulus(0.7)).into_op(),
        adapt(AdaptTarget::Decisions(constellation())).into_op(),
        Interleave::inverse(Interleaver::custom(&order).unwrap(), &bytes(&[2, 300])).into_op(),
        Scramble::inverse(scrambler, &bytes(&[2, 9])).into_op(),
        Iir::new(&f32s(&[7]), sections).into_op(),
        ErasureRebuild::new(&bytes(&[200, 3]), 100, (0..100).collect::<Vec<_>>()).into_op(),
        Viterbi::new(&f32s(&[coded]), 60).code(code).ending(Ending::TailBiting).into_op(),
        FindPeaks::planes(&f32s(&[4, 4]), 2).distance(3).at_least(0.1).into_op(),
    ];
    for op in ops.map(Result::unwrap) {
        round_trip(&recorded(&op).unwrap()).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

/// Wrong arguments are refused with their line and name, and are never misinterpreted.
#[test]
fn wrong_arguments_are_refused() {
    for (line, part) in [
        ("y = topk(x)", "`k=`"),
        ("y = topk(x, k=1.5)", "whole number for `k`"),
        ("y = topk(x, k=[1])", "a number for `k`"),
        ("y = topk(x, k=9)", "topk"),
        ("y = topk(x, x, k=1)", "has 1 operands, got 2"),
        ("y = sort_pairs(x)", "2 operands"),
        ("y = fft(x, deep=1)", "no argument `deep`"),
        ("y = dct(x, by=five)", "one, two, three, four, got `five`"),
        ("y = find_peaks(x, count=1, at_least=1e300)", "f32 holds"),
        ("y = iir(x, sections=[1, 2, 3])", "five numbers"),
        ("y = modulate(b, points=[1, 2, 3])", "pairs of numbers"),
        ("y = modulate(b, points=[1, 2])", "power of two"),
        ("y = modulate(b, points=qam7)", "qam16"),
        ("y = modulate_wave(x, by=am)", "`depth=`"),
        ("y = scramble(b, by=additive, polynomial=0xg, seed=1)", "such as 0x1f"),
        ("y = rs_encode(b, data=4, parity=2, polynomial=0x10000)", "at most 65535"),
        ("y = interleave(b, rows=2)", "`columns=`"),
        ("y = interleave(b, order=[0, 0, 1, 2])", "once"),
        ("y = interleave(b, order=[5000000000])", "32 bits"),
        ("y = viterbi(x, bits=1, sent=[2])", "0 or 1 in `sent`"),
        ("y = convolutional_encode(b, bits=8, polynomials=[1, 256])", "at most 255"),
        ("y = adapt(c, c, c, step=0.1, modulus=1)", "has 2 operands, got 3"),
        ("y = track(c, by=timing, detector=gardner, samples=4, bandwidth=0.1)", "not known before it runs"),
        ("y = row_map(x, inputs=2, by=sum) { %0 = x0 } { %0 = x0 }", "`inputs=` at most 1"),
        ("y = row_map(x, by=norm) { %0 = x0 } { %0 = x0 }", "`epsilon=`"),
        ("y = row_map(x, by=sum) { %0 = x0 }", "an expression"),
        ("y = layernorm(x, bias_only=1)", "2 operands"),
        ("y = matmul(x, x, precision=half)", "full or tf32"),
        ("y = color_convert(b, from=rgb)", "`to=`"),
        ("y = search(x, x, by=dot, k=1)", "no op"),
    ] {
        let text = format!("input x f32 [4]\ninput b u8 [4]\ninput c c64 [4]\n{line}\noutput y");
        let error = text::parse(&text).unwrap_err();
        assert_eq!(error.line, 4, "{line}: {error}");
        assert!(error.reason.contains(part), "{line}: {error}");
    }
}

/// Replaces each number of an op by others: the text is refused or read, and nothing panics.
#[test]
fn hostile_numbers_are_refused_or_read() {
    const CASES_OF_EACH_OP: usize = 6;
    const NUMBERS_OF_A_TEXT: usize = 40;
    let hostile = ["0", "1", "-1", "18446744073709551615", "9223372036854775807", "4294967297", "1e300", "nan", "-inf"];
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut texts = 0_usize;
    for case in cases().into_iter().filter(is_node) {
        let count = seen.entry(case.op.name()).or_default();
        *count += 1;
        let Some(written) = recorded(&case.op).ok().and_then(|graph| text::write(&graph).ok()) else { continue };
        if *count > CASES_OF_EACH_OP {
            continue;
        }
        let Some(start) = written.find(" = ") else { continue };
        let (head, op) = written.split_at(start + 3);
        let begins = |at: &usize| {
            let (before, digit) = (op.as_bytes()[at.saturating_sub(1)], op.as_bytes()[*at]);
            matches!(before, b'=' | b'[' | b' ') && (digit.is_ascii_digit() || digit == b'-')
        };
        for at in (1..op.len()).filter(begins).take(NUMBERS_OF_A_TEXT) {
            let end = op[at..].find([',', ')', ']', ' ', ';', '\n']).map_or(op.len(), |len| at + len);
            for number in hostile {
                // Every graph that was read can be written.
                if let Ok(graph) = text::parse(&format!("{head}{}{number}{}", &op[..at], &op[end..])) {
                    text::write(&graph).unwrap();
                }
                texts += 1;
            }
        }
    }
    assert!(texts > 5_000, "{texts} texts of {} ops", seen.len());
}
