//! Parts of training steps: statistics of channels, and the steps of an optimiser.

use panoply_core::op::compute::Reduce;

use super::*;

fn mean(g: &mut GraphBuilder, x: NodeId, axis: usize) -> Result<NodeId> {
    g.op(&[x], |t| Reduce::mean(&t[0]).axes(&[axis]).keep_dims())
}

/// Squared deviations from a channel's mean are computed inside the sum, although an image's rows
/// and columns are one axis there.
#[test]
fn figures_of_channels_are_made_while_they_are_summed_up() {
    let variance = steps(|g, x, _| {
        let rows = g.type_of(x)?.1[0];
        let image = g.reshape(x, &[rows, 2.into(), 4.into(), 5.into()])?;
        let sum = |g: &mut GraphBuilder, x: NodeId, axes: &[usize]| {
            g.op(&[x], |t| Reduce::mean(&t[0]).axes(axes).keep_dims())
        };
        let inner = sum(g, image, &[2, 3])?;
        let mean = sum(g, inner, &[0])?;
        let squares = g.map(&[image, mean], |v| {
            let distance = v[0].clone() - v[1].clone();
            distance.clone() * distance
        })?;
        let inner = sum(g, squares, &[2, 3])?;
        sum(g, inner, &[0])
    });
    assert_eq!(variance, ["reduce", "row_map", "reduce"]);
}

#[test]
fn sums_of_sums_are_one() {
    let plain = steps(|g, x, _| {
        let rows = mean(g, x, 1)?;
        mean(g, rows, 0)
    });
    assert_eq!(plain, ["reduce"]);
    let of_map = steps(|g, x, y| {
        let product = g.mul(x, y)?;
        let rows = mean(g, product, 1)?;
        mean(g, rows, 0)
    });
    assert_eq!(of_map, ["row_map", "reduce"], "rows are made while they are summed up");
    let read_twice = steps(|g, x, _| {
        let rows = mean(g, x, 1)?;
        let all = mean(g, rows, 0)?;
        g.sub(rows, all)
    });
    assert_eq!(read_twice, ["reduce", "reduce", "map"]);
    let the_other_way = steps(|g, x, _| {
        let columns = mean(g, x, 0)?;
        mean(g, columns, 1)
    });
    assert_eq!(the_other_way, ["reduce", "reduce"]);
}

/// Steps of an optimiser: those of one expression are adjacent after all other steps, and each
/// comes after the steps it reads.
#[test]
fn steps_that_only_outputs_wait_for_come_last() {
    let mut g = Graph::builder("step");
    let mut inputs = Vec::new();
    let x = g.input("x", DType::F32, &[4.into()]).unwrap();
    inputs.push(random_tensor(DType::F32, &[4], 0));
    let mut h = x;
    for layer in 0..3_u64 {
        let kept = g.input(&format!("kept.{layer}"), DType::F32, &[4.into()]).unwrap();
        inputs.push(random_tensor(DType::F32, &[4], 1 + layer));
        h = g.softmax(h, 0).unwrap();
        let sum = g.map(&[kept, h], |v| v[0].clone() * 0.9 + v[1].clone()).unwrap();
        let new = g.map(&[sum, h], |v| v[1].clone() - v[0].clone() * 0.1).unwrap();
        g.output(&format!("sum.{layer}"), sum).unwrap();
        g.output(&format!("new.{layer}"), new).unwrap();
    }
    let graph = g.finish().unwrap();
    let (plan, op) = planned(&graph, &inputs.iter().collect::<Vec<_>>(), &FACTS);
    let names: Vec<&str> = plan.steps.iter().map(|step| step.op.name()).collect();
    assert_eq!(names, [["softmax"; 3].as_slice(), &["map"; 6]].concat());
    let programs: Vec<u64> = plan.steps[3..].iter().map(|step| program(&step.op)).collect();
    assert_eq!(programs[..3], [programs[0]; 3]);
    assert_eq!(programs[3..], [programs[3]; 3]);
    assert_ne!(programs[0], programs[3]);
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let close = panoply_conformance::Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    for (expected, got) in expected.tensors().zip(run(&plan, &op).unwrap()) {
        assert_eq!(difference(expected, &got, close), None);
    }
}

fn program(op: &panoply_core::Op) -> u64 {
    match op {
        panoply_core::Op::Compute(panoply_core::op::compute::ComputeOp::Map(map)) => map.program().unwrap().hash(),
        other => panic!("expected a map, got {}", other.name()),
    }
}
