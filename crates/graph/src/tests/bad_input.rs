//! Invalid, hostile or extreme graphs and files: each is refused with the problem and its location,
//! or works.

use panoply_core::graph::{Dim, Graph, NODES_MAX, PORTS_MAX, SymbolSizes};
use panoply_core::op::compute::{Gather, Softmax};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Error, Tensor};

use super::{FACTS, RATES, planned, run};
use crate::listing::Listing;
use crate::{compile, text};

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, dims).unwrap()
}

#[test]
fn nodes_of_another_graph_and_shapes_that_do_not_match_are_refused_by_name() {
    let mut other = Graph::builder("other");
    let stray = other.input("stray", DType::F32, &[Dim::fixed(2)]).unwrap();
    let mut g = Graph::builder("graph");
    let (rows, columns) = (g.symbol("rows").unwrap(), g.symbol("columns").unwrap());
    let x = g.input("x", DType::F32, &[rows, columns]).unwrap();
    assert!(matches!(g.relu(stray), Err(Error::InvalidArgument { .. })));
    assert!(matches!(g.output("y", stray), Err(Error::InvalidArgument { .. })));
    let named = |error: Error, part: &str| {
        assert!(matches!(&error, Error::Node { node, .. } if node.contains("x: f32[rows, columns]")), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    // Regression: the sizes at which the op was asked were printed in place of the symbols.
    let shapes = "matmul b: expected shape [columns, n] for any n, got [rows, columns]";
    named(g.matmul(x, x).unwrap_err(), shapes);
    named(g.reshape(x, &[rows]).unwrap_err(), "as many elements");
    named(g.permute(x, &[0, 0]).unwrap_err(), "each axis");
    named(g.softmax(x, 7).unwrap_err(), "axis");
    named(g.slice(x, 3, 0, 1, 1).unwrap_err(), "axis");
    named(g.slice(x, 0, 5, 1, 0).unwrap_err(), "start");
    named(g.cast(x, DType::F16).and_then(|half| g.add(x, half)).unwrap_err(), "add");
    // Refused nodes leave nothing behind.
    let y = g.neg(x).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    assert!(graph.nodes().len() <= 3);
    for wrong in [zeros(&[2]), Tensor::zeros(DType::F16, [2, 3]).unwrap()] {
        let error = RunGraph::new(&graph, &[&wrong]).instance().unwrap_err();
        assert!(matches!(&error, Error::Node { node, .. } if node.starts_with('x')), "{error}");
    }
    assert!(RunGraph::new(&graph, &[]).instance().is_err());
    assert!(RunGraph::new(&graph, &[&zeros(&[2, 3]), &zeros(&[2, 3])]).instance().is_err());
}

/// If a batch is too small for a slice, the run fails with the node's name.
#[test]
fn sizes_that_only_the_inputs_tell_are_checked_then() {
    let mut g = Graph::builder("late");
    let rows = g.symbol("rows").unwrap();
    let x = g.input("x", DType::F32, &[rows, 4.into()]).unwrap();
    let head = g.slice(x, 0, 0, 3, 1).unwrap();
    g.rename(head, "head").unwrap();
    g.output("y", head).unwrap();
    let graph = g.finish().unwrap();
    assert!(RunGraph::new(&graph, &[&zeros(&[3, 4])]).instance().is_ok());
    for rows in [0, 2] {
        let error = RunGraph::new(&graph, &[&zeros(&[rows, 4])]).instance().unwrap_err();
        assert!(matches!(&error, Error::Node { node, .. } if node.starts_with("head = slice")), "{error}");
    }
}

/// Every op on an empty batch.
#[test]
fn a_batch_of_zero_gives_nothing() {
    let mut g = Graph::builder("empty");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 8.into()]).unwrap();
    let w = g.constant("w", &zeros(&[8, 8])).unwrap();
    let index = g.constant("i", &Tensor::from_vec(vec![0_u32, 3], [2]).unwrap()).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.gelu(h).unwrap();
    let s = g.op(&[h], |t| Softmax::new(&t[0])).unwrap();
    let picked = g.op(&[s, index], |t| Gather::new(&t[0], &t[1], 1)).unwrap();
    let heads = g.reshape(s, &[batch, 2.into(), 1.into(), 4.into()]).unwrap();
    let attended = panoply_conformance::chains::attention(&mut g, heads, heads, heads, None).unwrap();
    let turned = g.permute(attended, &[1, 0, 2, 3]).unwrap();
    let flat = g.reshape(turned, &[batch * 8]).unwrap();
    for (name, node) in [("picked", picked), ("flat", flat)] {
        g.output(name, node).unwrap();
    }
    let graph = g.finish().unwrap();
    for batch in [0, 1, 3] {
        let (plan, op) = planned(&graph, &[&zeros(&[batch, 8])], &FACTS);
        let shapes: Vec<_> = run(&plan, &op).unwrap().iter().map(|tensor| tensor.shape().to_vec()).collect();
        assert_eq!(shapes, [vec![batch, 2], vec![batch * 8]]);
    }
}

#[test]
fn counts_are_bounded() {
    let mut g = Graph::builder("many");
    let x = g.input("x", DType::F32, &[Dim::fixed(1)]).unwrap();
    for _ in 1..NODES_MAX {
        g.reshape(x, &[1.into(), 1.into()]).unwrap();
    }
    let full = g.reshape(x, &[1.into(), 1.into()]).unwrap_err();
    assert!(matches!(full, Error::OutOfBounds { limit: NODES_MAX, .. }), "{full}");
    for number in 0..PORTS_MAX {
        g.output(&format!("y{number}"), x).unwrap();
    }
    assert!(matches!(g.output("more", x), Err(Error::OutOfBounds { limit: PORTS_MAX, .. })));
    assert!(g.finish().is_ok());
}

/// Shapes that are valid alone, of which no two fit the address space together.
#[test]
fn memory_that_cannot_be_counted_is_refused() {
    let rows = 1_usize << 59;
    let mut g = Graph::builder("huge");
    let x = g.input("x", DType::F32, &[Dim::fixed(rows)]).unwrap();
    let mut y = x;
    for _ in 0..8 {
        y = g.softmax(y, 0).unwrap();
        g.neg(y).unwrap();
    }
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    let error = compile(&graph, &SymbolSizes([1; 4]), &FACTS).unwrap_err();
    assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
}

#[test]
fn hostile_files_are_refused_with_their_line() {
    let long_name = "n".repeat(10_000);
    let deep = (1..900).map(|node| format!("%{node} = mul(%{}, %{})", node - 1, node - 1));
    let doubling = format!("map(x) {{ %0 = x0; {} }}", deep.collect::<Vec<_>>().join("; "));
    let after = |line: &str| format!("input x f32 [4]\n{line}\noutput y");
    let wrong = [
        (after(&format!("{long_name} = relu(x)")), 2),
        (after("y = relu(y)"), 2),
        (after("y = slice(x, axis=0, start=1, end=99999999999999)"), 2),
        (after("y = slice(x, axis=0, end=4, step=0)"), 2),
        (after("y = slice(x, axis=1e300, end=4)"), 2),
        (after("y = slice(x, axis=nan, end=4)"), 2),
        (after("y = reshape(x, to=[18446744073709551615])"), 2),
        (after("y = reshape(x, to=[99999999999999999999999999])"), 2),
        (after("y = broadcast(x, to=[4611686018427387904, 4])"), 2),
        (after("y = permute(x, order=[0, 0])"), 2),
        (after("y = permute(x, order=[4294967296])"), 2),
        (after("y = topk(x, k=18446744073709551615)"), 2),
        (after("y = reduce(x, by=sum, axes=[9])"), 2),
        (after("y = reduce(x, by=sum, axes=[0, 0])"), 2),
        (after("y = softmax(x, axis=1)"), 2),
        (after("y = pool2d(x, kernel=[0, 0])"), 2),
        (after("y = pool2d(x, kernel=[1])"), 2),
        (after("y = conv2d(x, x, stride=[0, 0])"), 2),
        (after("y = matmul(x, x, alpha=1e400)"), 2),
        (after("y = attention(x, x, x)"), 2),
        (after("y = attention(x)"), 2),
        (after("y = transpose(x, order=[5])"), 2),
        (after("y = cast(x, to=f7)"), 2),
        (after("y = map(x) { %0 = x0; %1 = cast_complex(%0) }"), 2),
        (after("y = map(x) { }"), 2),
        (after("y = map(x) { %0 = x4000000000 }"), 2),
        (after("y = \u{0}(x)"), 2),
        (after("y = relu(\u{1F600})"), 2),
        (after(&format!("y = relu({})", "x, ".repeat(1000))), 2),
        (after(&format!("y = map(x) {{ {} }}", "%0 = x0;".repeat(2000))), 2),
        ("symbol a\nsymbol b\nsymbol c\nsymbol d\nsymbol e".to_owned(), 5),
        ("input x f32 [-1]".to_owned(), 1),
        ("input x f32 [1, 1, 1, 1, 1, 1, 1, 1, 1]".to_owned(), 1),
        ("const c f32 [4611686018427387904] = fill(0)".to_owned(), 1),
        ("const c u8 [1073741825] = fill(0)".to_owned(), 1),
        ("const c f32 [2] = hex(zzzzzzzzzzzzzzzz)".to_owned(), 1),
        ("const c f32 [1] = random(99999999999999999999)".to_owned(), 1),
    ];
    for (words, line) in wrong {
        let shown: String = words.chars().take(120).collect();
        match text::parse(&words) {
            Err(error) => {
                assert_eq!(error.line, line, "{shown}: {error}");
                assert!(error.reason.len() < 2000, "{shown}: {} bytes", error.reason.len());
            }
            Ok(_) => panic!("{shown} was read"),
        }
    }
    // Large graphs work, or are refused when they are planned.
    let doubled = text::parse(&after(&format!("y = {doubling}")));
    assert!(doubled.is_ok() || doubled.unwrap_err().line == 2);
    let huge = text::parse("symbol b\ninput x f32 [b, 1152921504606846975]\ny = softmax(x)\nz = softmax(y)\noutput z");
    let listed = huge.map(|graph| Listing::new(&graph, &SymbolSizes([9; 4]), &FACTS, &RATES));
    assert!(listed.is_err() || listed.is_ok_and(|listing| listing.is_err()));
}
