//! Graphs of a hundred thousand nodes of every form: time and memory grow linearly with the nodes,
//! and nothing is recursive.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "support/computed.rs"]
mod computed;
#[allow(dead_code)] // The facts of GPUs.
#[path = "support/targets.rs"]
mod targets;

use std::time::Duration;

use computed::computed;
use panoply_core::expr::BinaryOp;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId, SymbolSizes};
use panoply_core::{DType, Result, Tensor};
use panoply_counting_allocator::{Counting, allocations, live_bytes};
use panoply_graph::{Plan, compile, text};
use targets::PROCESSOR;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: usize = 100_000;
/// The time limit for `NODES` nodes, with a margin for busy machines.
const TIME_MAX: Duration = Duration::from_secs(60);

type Form = fn(&mut GraphBuilder, NodeId, usize) -> Result<NodeId>;

const FORMS: [(&str, Form); 8] = [
    ("a deep chain", |g, x, count| (0..count).try_fold(x, |x, _| g.with_number(BinaryOp::Mul, x, 0.5))),
    ("a chain that does not fuse", |g, x, count| (0..count).try_fold(x, |x, _| g.softmax(x, 0))),
    ("one node that all read", |g, x, count| {
        let mut last = x;
        for number in 0..count / 2 {
            let own = g.with_number(BinaryOp::Add, x, number as f64)?;
            last = g.binary(BinaryOp::Max, last, own)?;
        }
        Ok(last)
    }),
    ("each read by the next two", |g, x, count| {
        let (mut before, mut last) = (x, x);
        for _ in 0..count {
            (before, last) = (last, g.binary(BinaryOp::Min, before, last)?);
        }
        Ok(last)
    }),
    ("equal nodes", |g, x, count| {
        let nodes: Vec<NodeId> = (0..count / 2).map(|_| g.tanh(x)).collect::<Result<_>>()?;
        nodes.into_iter().try_fold(x, |sum, node| g.add(sum, node))
    }),
    ("views of views", |g, x, count| {
        let wide = g.reshape(x, &[1.into(), 3.into()])?;
        let turned = (0..count).try_fold(wide, |x, _| g.permute(x, &[1, 0]))?;
        g.neg(turned)
    }),
    ("constants", |g, x, count| {
        let one = Tensor::from_vec(vec![1.0_f32; 3], [3])?;
        (0..count / 3).try_fold(x, |x, number| {
            let constant = g.unnamed_constant(&one)?;
            let folded = g.with_number(BinaryOp::Mul, constant, number as f64)?;
            g.add(x, folded)
        })
    }),
    ("attention after attention", |g, x, count| {
        let x = g.reshape(x, &[1.into(), 3.into(), 1.into()])?;
        (0..count / 5).try_fold(x, |x, _| {
            let turned = g.permute(x, &[0, 2, 1])?;
            let scores = g.matmul(x, turned)?;
            let scores = g.with_number(BinaryOp::Mul, scores, 0.5)?;
            let weights = g.softmax(scores, 2)?;
            g.matmul(weights, x)
        })
    }),
];

fn built(form: Form, count: usize) -> Graph {
    let mut g = Graph::builder("large");
    let x = g.input("x", DType::F32, &[Dim::fixed(3)]).unwrap();
    let y = form(&mut g, x, count).unwrap();
    g.output("y", y).unwrap();
    g.finish().unwrap()
}

fn compiled(graph: &Graph) -> Plan {
    compile(graph, &SymbolSizes([1; 4]), &PROCESSOR).unwrap()
}

/// This is one test, because the allocator counts for the whole process.
#[test]
fn time_and_memory_grow_with_the_nodes() {
    for (name, form) in FORMS {
        let measured = |count: usize| {
            let (start, live, asked) = (computed(), live_bytes(), allocations());
            let graph = built(form, count);
            let plan = compiled(&graph);
            let (bytes, asked) = (live_bytes() - live, allocations() - asked);
            assert!(!plan.steps.is_empty());
            (computed() - start, bytes, asked)
        };
        let (tenth, whole) = (measured(NODES / 10), measured(NODES));
        println!("{name}: {:?} and {} MiB for {NODES} nodes", whole.0, whole.1 >> 20);
        assert!(whole.0 < TIME_MAX, "{name}: {:?}", whole.0);
        assert!(whole.1 < 1 << 30, "{name}: {} bytes", whole.1);
        assert!(whole.1 < tenth.1 * 14, "{name}: {} bytes, a tenth has {}", whole.1, tenth.1);
        assert!(whole.2 < tenth.2 * 14, "{name}: {} allocations, a tenth needs {}", whole.2, tenth.2);
        // Twice the linear time, plus a margin for busy machines.
        let most = tenth.0 * 20 + Duration::from_secs(2);
        assert!(whole.0 < most, "{name}: {:?}, a tenth takes {:?}", whole.0, tenth.0);
    }
    // Writes the graph as text and reads it back.
    let graph = built(FORMS[3].1, NODES);
    let start = computed();
    let again = text::parse(&text::write(&graph).unwrap()).unwrap();
    assert_eq!(again.hash(), graph.hash());
    let took = computed() - start;
    assert!(took < TIME_MAX, "{took:?}");
}
