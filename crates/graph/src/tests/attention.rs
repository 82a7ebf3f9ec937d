//! Attention is recognised in every notation, and similar graphs are left unchanged.

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::expr::BinaryOp;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{ComputeOp, MatMul, Softmax, Transpose};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Describe, Op, Operation, Result, Tensor};

use super::{FACTS, planned, run};
use crate::{Facts, Plan};

const QUERIES: usize = 5;
const KEYS: usize = 7;
const WIDTH: usize = 4;
const VALUES: usize = 3;

/// The dimensions before rows and columns of queries, keys and values.
const BATCHES: [&[usize]; 4] = [&[], &[3], &[2, 3], &[2, 1, 3]];

/// The nodes that attention is made of.
#[derive(Clone, Copy)]
struct AttentionNodes {
    q: NodeId,
    k: NodeId,
    v: NodeId,
    /// In the shape of all scores.
    mask: NodeId,
}

/// Compiles a graph over queries, keys, values and a mask. Returns the plan after comparing its
/// result with that of the unfused ops in the reference.
fn plan_with(
    dtype: DType,
    batch: &[usize],
    facts: &Facts,
    build: &dyn Fn(&mut GraphBuilder, AttentionNodes) -> Result<Vec<NodeId>>,
) -> Plan {
    let with = |rows: usize, columns: usize| [batch, &[rows, columns]].concat();
    let shapes = [with(QUERIES, WIDTH), with(KEYS, WIDTH), with(KEYS, VALUES), with(QUERIES, KEYS)];
    let mut g = Graph::builder("attention");
    let nodes: Vec<NodeId> = shapes
        .iter()
        .zip(["q", "k", "v", "mask"])
        .map(|(shape, name)| {
            let dims: Vec<Dim> = shape.iter().map(|size| Dim::fixed(*size)).collect();
            g.input(name, dtype, &dims).unwrap()
        })
        .collect();
    let parts = AttentionNodes { q: nodes[0], k: nodes[1], v: nodes[2], mask: nodes[3] };
    for (number, output) in build(&mut g, parts).unwrap().into_iter().enumerate() {
        g.output(&format!("y{number}"), output).unwrap();
    }
    let graph = g.finish().unwrap();
    let inputs: Vec<Tensor> = shapes.iter().zip(1..).map(|(shape, seed)| random_tensor(dtype, shape, seed)).collect();
    let (plan, op) = planned(&graph, &inputs.iter().collect::<Vec<_>>(), facts);
    check(&plan, &op, dtype);
    plan
}

fn check(plan: &Plan, op: &RunGraph, dtype: DType) {
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let close = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
    let close = Tolerance::Close { relative: close, absolute: close };
    for (expected, got) in expected.tensors().zip(&run(plan, op).unwrap()) {
        assert_eq!(difference(expected, got, close), None, "{:?}", names(plan));
    }
}

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(|step| step.op.name()).collect()
}

fn expect(dtype: DType, batch: &[usize], build: impl Fn(&mut GraphBuilder, AttentionNodes) -> Result<NodeId>) -> Plan {
    let plan = plan_with(dtype, batch, &FACTS, &|g, parts| build(g, parts).map(|node| vec![node]));
    assert_eq!(names(&plan), ["attention"], "{batch:?}");
    plan
}

fn refuse(batch: &[usize], build: impl Fn(&mut GraphBuilder, AttentionNodes) -> Result<Vec<NodeId>>) {
    let plan = plan_with(DType::F32, batch, &FACTS, &build);
    assert!(!names(&plan).contains(&"attention"), "{:?}", names(&plan));
}

/// Keys as the right operand of a product.
fn turned(g: &mut GraphBuilder, k: NodeId) -> Result<NodeId> {
    let rank = g.type_of(k)?.1.len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    g.permute(k, &order)
}

fn products(g: &mut GraphBuilder, q: NodeId, k: NodeId) -> Result<NodeId> {
    let turned = turned(g, k)?;
    g.matmul(q, turned)
}

fn scaled(g: &mut GraphBuilder, x: NodeId, by: f64) -> Result<NodeId> {
    g.with_number(BinaryOp::Mul, x, by)
}

/// The softmax along the last axis, and its product with the values.
fn ended(g: &mut GraphBuilder, scores: NodeId, v: NodeId) -> Result<NodeId> {
    let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
    g.matmul(weights, v)
}

fn constant(g: &mut GraphBuilder, values: impl Fn(usize, usize) -> f32) -> Result<NodeId> {
    let values = (0..QUERIES * KEYS).map(|place| values(place / KEYS, place % KEYS)).collect();
    g.unnamed_constant(&Tensor::from_vec(values, [QUERIES, KEYS])?)
}

fn attention_of(plan: &Plan) -> &panoply_core::op::compute::Attention {
    match &*plan.steps[0].op {
        Op::Compute(ComputeOp::Attention(op)) => op,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_may_be_turned_in_every_way() {
    for batch in BATCHES {
        expect(DType::F32, batch, |g, p| {
            let scores = products(g, p.q, p.k)?;
            ended(g, scores, p.v)
        });
        expect(DType::F32, batch, |g, p| {
            let scores = g.op(&[p.q, p.k], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
            ended(g, scores, p.v)
        });
        expect(DType::F32, batch, |g, p| {
            let rank = batch.len() + 2;
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 2, rank - 1);
            let turned = g.op(&[p.k], |t| Transpose::with_order(&t[0], &order))?;
            let scores = g.matmul(p.q, turned)?;
            ended(g, scores, p.v)
        });
    }
}

#[test]
fn the_factor_may_stand_anywhere_before_the_mask() {
    let forms: [fn(&mut GraphBuilder, AttentionNodes) -> Result<NodeId>; 7] = [
        |g, p| products(g, p.q, p.k).and_then(|scores| scaled(g, scores, 0.5)),
        |g, p| products(g, p.q, p.k).and_then(|scores| g.with_number(BinaryOp::Div, scores, 2.0)),
        |g, p| {
            let scores = products(g, p.q, p.k)?;
            let two = g.unnamed_constant(&Tensor::from_vec(vec![2.0_f32], [1])?)?;
            g.div(scores, two)
        },
        |g, p| g.op(&[p.q, p.k], |t| MatMul::new(&t[0], &t[1]).transpose_b().alpha(0.5)),
        |g, p| {
            let q = scaled(g, p.q, 0.5)?;
            products(g, q, p.k)
        },
        |g, p| {
            let turned = turned(g, p.k)?;
            let k = scaled(g, turned, 0.5)?;
            g.matmul(p.q, k)
        },
        |g, p| {
            let (q, k) = (scaled(g, p.q, 2.0)?, scaled(g, p.k, 0.5)?);
            let scores = products(g, q, k)?;
            scaled(g, scores, 0.5)
        },
    ];
    for batch in BATCHES {
        for form in forms {
            let plan = expect(DType::F32, batch, |g, p| {
                let scores = form(g, p)?;
                let scores = g.add(scores, p.mask)?;
                ended(g, scores, p.v)
            });
            let op = attention_of(&plan);
            assert_eq!((op.scale, op.mask.is_some(), op.is_causal), (Some(0.5), true, false));
        }
    }
}

#[test]
fn masks_are_taken_as_they_are_or_are_causal() {
    for batch in BATCHES {
        // The mask first, the factor in the same map, and one mask for all queries.
        expect(DType::F32, batch, |g, p| {
            let scores = products(g, p.q, p.k)?;
            let row = g.slice(p.mask, batch.len(), 1, 2, 1)?;
            let scores = g.map(&[row, scores], |e| &e[0] + &e[1] * 0.25)?;
            ended(g, scores, p.v)
        });
        // A computed mask with no other reader.
        let plan = plan_with(DType::F32, batch, &FACTS, &|g, p| {
            let scores = products(g, p.q, p.k)?;
            let mask = g.map(&[p.mask], |e| (&e[0] - 1.0) * 100.0)?;
            let scores = g.add(mask, scores)?;
            Ok(vec![ended(g, scores, p.v)?])
        });
        assert_eq!(names(&plan), ["map", "attention"]);
        let causal = expect(DType::F32, batch, |g, p| {
            let scores = products(g, p.q, p.k)?;
            let sees = |query: usize, key: usize| key <= query + KEYS - QUERIES;
            let mask = constant(g, |query, key| if sees(query, key) { 0.0 } else { f32::NEG_INFINITY })?;
            let scores = g.add(scores, mask)?;
            ended(g, scores, p.v)
        });
        assert!(attention_of(&causal).is_causal && attention_of(&causal).mask.is_none());
        let plain = expect(DType::F32, batch, |g, p| {
            let scores = products(g, p.q, p.k)?;
            let mask = constant(g, |query, key| if key == query { 0.5 } else { -1.0 })?;
            let scores = g.add(scores, mask)?;
            ended(g, scores, p.v)
        });
        assert!(!attention_of(&plain).is_causal && attention_of(&plain).mask.is_some());
    }
}

#[test]
fn types_and_shapes_may_change_on_the_way() {
    for dtype in [DType::F16, DType::BF16] {
        expect(dtype, &[2, 3], |g, p| {
            let scores = products(g, p.q, p.k)?;
            let wide = g.cast(scores, DType::F32)?;
            let wide = scaled(g, wide, 0.5)?;
            let mask = g.unnamed_constant(&random_tensor(DType::F32, &[QUERIES, KEYS], 9))?;
            let wide = g.add(wide, mask)?;
            let weights = g.op(&[wide], |t| Softmax::new(&t[0]))?;
            let weights = g.cast(weights, dtype)?;
            g.matmul(weights, p.v)
        });
    }
    // Heads are merged with the batch for the products, and separate for the mask.
    let plan = expect(DType::F32, &[6], |g, p| {
        let scores = products(g, p.q, p.k)?;
        let apart: [Dim; 4] = [2.into(), 3.into(), QUERIES.into(), KEYS.into()];
        let scores = g.reshape(scores, &apart)?;
        let mask = g.unnamed_constant(&random_tensor(DType::F32, &[2, 1, 1, KEYS], 9))?;
        let scores = g.add(scores, mask)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
        let weights = g.reshape(weights, &[6.into(), QUERIES.into(), KEYS.into()])?;
        g.matmul(weights, p.v)
    });
    assert_eq!(attention_of(&plan).q.shape().dims(), [2, 3, QUERIES, WIDTH]);
    // A map after it stays.
    let plan = plan_with(DType::F32, &[2, 3], &FACTS, &|g, p| {
        let scores = products(g, p.q, p.k)?;
        let y = ended(g, scores, p.v)?;
        let y = g.permute(y, &[0, 2, 1, 3])?;
        let y = g.reshape(y, &[2.into(), QUERIES.into(), (3 * VALUES).into()])?;
        Ok(vec![g.relu(y)?])
    });
    assert_eq!(names(&plan), ["attention", "map"]);
}

#[test]
fn heads_that_share_keys_share_them() {
    let plan = expect(DType::F32, &[2, 3], |g, p| {
        let (k, v) = (g.slice(p.k, 1, 0, 1, 1)?, g.slice(p.v, 1, 1, 2, 1)?);
        let scores = products(g, p.q, k)?;
        ended(g, scores, v)
    });
    assert_eq!(attention_of(&plan).k.shape().dims(), [2, 1, KEYS, WIDTH]);
}

/// Three consecutive layers, with symbols for batch and sequence.
#[test]
fn layers_of_a_network_become_three_attentions() {
    let mut g = Graph::builder("layers");
    let (batch, length) = (g.symbol("batch").unwrap(), g.symbol("length").unwrap());
    let mut x = g.input("x", DType::F32, &[batch, length, 8.into()]).unwrap();
    for layer in 0..3 {
        let mut heads = |x: NodeId, seed: u64| -> Result<NodeId> {
            let w = g.unnamed_constant(&random_tensor(DType::F32, &[8, 8], layer * 10 + seed))?;
            let w = g.with_number(BinaryOp::Mul, w, 0.3)?;
            let y = g.matmul(x, w)?;
            let y = g.reshape(y, &[batch, length, 2.into(), 4.into()])?;
            g.permute(y, &[0, 2, 1, 3])
        };
        let (q, k, v) = (heads(x, 1).unwrap(), heads(x, 2).unwrap(), heads(x, 3).unwrap());
        let scores = products(&mut g, q, k).unwrap();
        let scores = scaled(&mut g, scores, 0.5).unwrap();
        let y = ended(&mut g, scores, v).unwrap();
        let y = g.permute(y, &[0, 2, 1, 3]).unwrap();
        let y = g.reshape(y, &[batch, length, 8.into()]).unwrap();
        x = g.add(x, y).unwrap();
    }
    g.output("y", x).unwrap();
    let graph = g.finish().unwrap();
    for (batch, length) in [(1, 1), (2, 5), (3, 33), (0, 4)] {
        let (plan, op) = planned(&graph, &[&random_tensor(DType::F32, &[batch, length, 8], 3)], &FACTS);
        check(&plan, &op, DType::F32);
        let attentions = names(&plan).into_iter().filter(|name| *name == "attention").count();
        assert_eq!(attentions, if batch == 0 { 0 } else { 3 }, "{:?}", names(&plan));
        assert_eq!(plan.layout_copies().0, 0, "what heads are laid out for is done on the way");
    }
}

#[test]
fn values_that_somebody_else_wants_are_kept() {
    let batch: &[usize] = &[2, 3];
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        Ok(vec![ended(g, scores, p.v)?, scores])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let scores = scaled(g, scores, 0.5)?;
        let y = ended(g, scores, p.v)?;
        let also = g.neg(scores)?;
        Ok(vec![y, also])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
        Ok(vec![g.matmul(weights, p.v)?, weights])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let twice = g.add(scores, scores)?;
        Ok(vec![ended(g, twice, p.v)?])
    });
    // A factor of the queries that others read too stays, and the rest is fused.
    let plan = plan_with(DType::F32, batch, &FACTS, &|g, p| {
        let q = scaled(g, p.q, 0.5)?;
        let scores = products(g, q, p.k)?;
        Ok(vec![ended(g, scores, p.v)?, q])
    });
    assert_eq!(names(&plan), ["map", "attention"]);
}

#[test]
fn what_only_looks_like_attention_is_left_alone() {
    let batch: &[usize] = &[3];
    // The softmax along the queries, or its logarithm.
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]).axis(1))?;
        Ok(vec![g.matmul(weights, p.v)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]).log())?;
        Ok(vec![g.matmul(weights, p.v)?])
    });
    // A factor after the mask, a second mask, another function, changed weights.
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let scores = g.add(scores, p.mask)?;
        let scores = scaled(g, scores, 0.5)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let scores = g.add(scores, p.mask)?;
        let more = constant(g, |query, key| (query * key) as f32 * 0.1)?;
        let scores = g.add(scores, more)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let scores = g.tanh(scores)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
        let weights = scaled(g, weights, 2.0)?;
        Ok(vec![g.matmul(weights, p.v)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let scores = g.sub(scores, p.mask)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
}

#[test]
fn views_that_are_no_attention_are_left_alone() {
    let batch: &[usize] = &[3];
    // Rows that span several queries.
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let flat = g.reshape(scores, &[3.into(), (QUERIES * KEYS).into()])?;
        let weights = g.op(&[flat], |t| Softmax::new(&t[0]))?;
        let weights = g.reshape(weights, &[3.into(), QUERIES.into(), KEYS.into()])?;
        Ok(vec![g.matmul(weights, p.v)?])
    });
    // Only some of the keys.
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.k)?;
        let some = g.slice(scores, 2, 0, KEYS - 1, 1)?;
        let v = g.slice(p.v, 1, 0, KEYS - 1, 1)?;
        Ok(vec![ended(g, some, v)?])
    });
    // Weights that are the values too, and transposed weights.
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.q)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
        let _ = (p.k, p.v);
        Ok(vec![g.matmul(weights, weights)?])
    });
    refuse(batch, |g, p| {
        let scores = products(g, p.q, p.q)?;
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]))?;
        let weights = g.permute(weights, &[0, 2, 1])?;
        Ok(vec![g.matmul(weights, p.q)?])
    });
    // Values with a batch that the scores lack.
    refuse(&[], |g, p| {
        let many = g.broadcast(p.v, &[4.into(), KEYS.into(), VALUES.into()])?;
        let many = g.exp(many)?;
        let scores = products(g, p.q, p.k)?;
        Ok(vec![ended(g, scores, many)?])
    });
}

#[test]
fn what_the_op_does_not_take_is_left_alone() {
    let batch: &[usize] = &[3];
    // Elements of 64 bits.
    let plan = plan_with(DType::F64, batch, &FACTS, &|g, p| {
        let scores = products(g, p.q, p.k)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    assert!(!names(&plan).contains(&"attention"));
    // More elements than the device's limit.
    let small = Facts { attention_elements_max: 3 * QUERIES * WIDTH - 1, ..FACTS };
    let plan = plan_with(DType::F32, batch, &small, &|g, p| {
        let scores = products(g, p.q, p.k)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    assert!(!names(&plan).contains(&"attention"));
}

/// A softmax over -∞ only is NaN. A constant mask for which attention would return zeros is
/// refused. A mask that is an input is not inspected, and the semantics of graphs allow for that.
#[test]
fn queries_that_see_no_key() {
    let blind = |query: usize, key: usize| if query == 2 { f32::NEG_INFINITY } else { key as f32 * 0.1 };
    refuse(&[3], |g, p| {
        let scores = products(g, p.q, p.k)?;
        let mask = constant(g, blind)?;
        let scores = g.add(scores, mask)?;
        Ok(vec![ended(g, scores, p.v)?])
    });
    let mut g = Graph::builder("given");
    let dims = |rows: usize, columns: usize| [Dim::fixed(1), rows.into(), columns.into()];
    let q = g.input("q", DType::F32, &dims(QUERIES, WIDTH)).unwrap();
    let v = g.input("v", DType::F32, &dims(QUERIES, WIDTH)).unwrap();
    let mask = g.input("mask", DType::F32, &dims(QUERIES, QUERIES)).unwrap();
    let scores = products(&mut g, q, q).unwrap();
    let scores = g.add(scores, mask).unwrap();
    let y = ended(&mut g, scores, v).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    let mask: Vec<f32> = (0..QUERIES * QUERIES).map(|place| blind(place / QUERIES, place % QUERIES)).collect();
    let mask = Tensor::from_vec(mask, [1, QUERIES, QUERIES]).unwrap();
    let x = random_tensor(DType::F32, &[1, QUERIES, WIDTH], 1);
    let (plan, op) = planned(&graph, &[&x, &x, &mask], &FACTS);
    let got = run(&plan, &op).unwrap()[0].to_vec::<f32>().unwrap();
    assert_eq!(got[2 * WIDTH..3 * WIDTH], [0.0; WIDTH]);
    let (unfused, op) = planned(&graph, &[&x, &x, &mask], &Facts::UNFUSED);
    let apart = run(&unfused, &op).unwrap()[0].to_vec::<f32>().unwrap();
    assert!(apart[2 * WIDTH..3 * WIDTH].iter().all(|value| value.is_nan()));
    let others = |values: &[f32]| [&values[..2 * WIDTH], &values[3 * WIDTH..]].concat();
    assert!(others(&got).iter().zip(others(&apart)).all(|(got, apart)| (got - apart).abs() < 1e-5));
}
