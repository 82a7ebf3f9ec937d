//! Plans and passes on every level of vector instructions, with one thread and with several.

use panoply_core::expr::{BinaryOp, Expr, Program, UnaryOp};
use panoply_core::{DType, Element, Shape, Tensor};

use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_map::map::{MapPlan, PlanCache, execute};

fn run<T: Element>(program: &Program, inputs: &[&Tensor], shape: &[usize], simd: Simd, team: &Team) -> Vec<T> {
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
    let plan = MapPlan::compile(program, &dtypes, simd).unwrap();
    let shape = Shape::new(shape).unwrap();
    // A vector of elements is aligned for them; a plain vector of bytes would not be.
    let mut output: Vec<T> = vec![T::zeroed(); shape.elements()];
    let bytes = bytemuck::cast_slice_mut(&mut output);
    execute(&plan, inputs.iter().copied(), &shape, bytes, team).unwrap();
    output
}

fn ramp(len: usize, scale: f32) -> Tensor {
    Tensor::from_vec((0..len).map(|index| (index as f32 - len as f32 / 2.0) * scale).collect(), [len]).unwrap()
}

#[test]
fn every_level_and_team_gives_the_same_answer() {
    let (x, y) = (Expr::input(0), Expr::input(1));
    let program = ((&x * 2.0 + &y).relu() - x.max(0.25) / 3.0).finish().unwrap();
    for len in [0, 1, 15, 16, 17, 1023, 1024, 1025, 5000, 200_003] {
        let (a, b) = (ramp(len, 0.37), ramp(len, -0.11));
        let naive = a.as_slice::<f32>().unwrap().iter().zip(b.as_slice::<f32>().unwrap());
        let expected: Vec<f32> = naive.map(|(a, b)| (a * 2.0 + b).max(0.0) - a.max(0.25) / 3.0).collect();
        for simd in Simd::available() {
            for team in [Team::single(), Team::new(2), Team::new(3)] {
                assert_eq!(run::<f32>(&program, &[&a, &b], &[len], simd, &team), expected, "{len} {}", simd.name());
            }
        }
    }
}

/// Quotients by one number use no division, but are equal to the last bit for all numbers.
#[test]
fn quotients_by_one_number_are_those_of_a_division() {
    let program = (Expr::input(0) / Expr::input(1)).finish().unwrap();
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    let everyday: Vec<f32> = (0..60_000).map(|_| (random() as i32 >> 3) as f32 * 1.3e-5).collect();
    let any: Vec<f32> = (0..5_000).map(|_| f32::from_bits(random())).chain([0.0, -0.0, f32::INFINITY]).collect();
    let mut divisors =
        vec![1.0, 3.0, -3.0, 0.003_921_569, 1.999_999_9, 1e-20, 1e20, 1e-45, 0.0, f32::NAN, f32::INFINITY];
    divisors.extend((0..40).map(|_| (random() >> 8) as f32 * 1e-7));
    for (values, divisor) in [everyday, any].iter().flat_map(|values| divisors.iter().map(move |by| (values, *by))) {
        let x = Tensor::from_vec(values.clone(), [values.len()]).unwrap();
        let by = Tensor::from_vec(vec![divisor], [1]).unwrap();
        for simd in Simd::available() {
            let made: Vec<f32> = run(&program, &[&x, &by], &[values.len()], simd, &Team::single());
            let differs = values.iter().zip(made).find(|(x, made)| {
                let expected = **x / divisor;
                expected.to_bits() != made.to_bits() && !(expected.is_nan() && made.is_nan())
            });
            assert_eq!(differs, None, "by {divisor:e}, {}", simd.name());
        }
    }
}

/// Quantisation to bytes is one call, and its results equal those of its parts to the last bit.
#[test]
fn numbers_become_bytes_in_one_call() {
    let mut values: Vec<f32> = (0..3000).map(|index| (index as f32 - 1500.0) * 0.173).collect();
    values.extend([0.0, -0.0, 1e-45, -1e-40, 1e-30, -1e-20, 1e30, -1e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    let len = values.len();
    let x = Tensor::from_vec(values.clone(), [len]).unwrap();
    let many: Vec<f32> = (0..len).map(|index| 0.5 + (index % 7) as f32).collect();
    for (low, high) in [(0.0, 255.0), (-128.0, 127.0)] {
        for (scales, zero) in
            [0.5, 0.017, -3.0, 1e-30].map(|scale| vec![scale]).iter().chain([&many]).zip([0.0, 3.0, -7.0, 0.0, 9.0])
        {
            let scale = Tensor::from_vec(scales.clone(), [scales.len()]).unwrap();
            let zeros = Tensor::from_vec(vec![zero], [1]).unwrap();
            let whole = (Expr::input(0) / Expr::input(1)).round();
            let plain = whole.clone().clamp(f64::from(low), f64::from(high)).finish().unwrap();
            let shifted = (whole + Expr::input(2)).clamp(f64::from(low), f64::from(high)).finish().unwrap();
            assert_eq!(MapPlan::compile(&shifted, &[DType::F32; 3], Simd::Scalar).unwrap().size().1, 1);
            for simd in Simd::available() {
                let team = Team::single();
                let made: [Vec<f32>; 2] = [
                    run(&plain, &[&x, &scale], &[len], simd, &team),
                    run(&shifted, &[&x, &scale, &zeros], &[len], simd, &team),
                ];
                for (index, x) in values.iter().enumerate() {
                    let whole = (x / scales[index % scales.len()]).round_ties_even();
                    for (made, sum) in made.iter().zip([whole, whole + zero]) {
                        let above = if sum > low || sum.is_nan() { sum } else { low };
                        let expected = if above < high || above.is_nan() { above } else { high };
                        let is_same = expected.to_bits() == made[index].to_bits();
                        assert!(
                            is_same || expected.is_nan() && made[index].is_nan(),
                            "{x:e} {scales:?} {}",
                            simd.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn large_outputs_are_streamed_whole() {
    let len = (9 << 20) + 37;
    let x = ramp(len, 0.5);
    // An output that does not start on a cache line.
    let program = (Expr::input(0) + 1.0).finish().unwrap();
    for simd in Simd::available() {
        let plan = MapPlan::compile(&program, &[DType::F32], simd).unwrap();
        let mut output = vec![0.0_f32; len + 3];
        let bytes = bytemuck::cast_slice_mut(&mut output[3..]);
        execute(&plan, [&x].into_iter(), &Shape::new([len]).unwrap(), bytes, &Team::new(2)).unwrap();
        let input = x.as_slice::<f32>().unwrap();
        assert!(output[3..].iter().zip(input).all(|(got, x)| *got == x + 1.0), "{}", simd.name());
    }
}

#[test]
fn every_operation_agrees_between_levels() {
    let values: Vec<f32> = (0..1500).map(|index| (index as f32 - 700.0) * 0.013).collect();
    let (x, y) = (ramp(1500, 0.021), Tensor::from_vec(values, [1500]).unwrap());
    let team = Team::single();
    let close =
        |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 2e-6 * a.abs().max(b.abs()) + 1e-12;
    for op in UnaryOp::ALL {
        let program = Expr::input(0).unary(*op).finish().unwrap();
        let plain: Vec<f32> = run(&program, &[&x], &[1500], Simd::Scalar, &team);
        let fast: Vec<f32> = run(&program, &[&x], &[1500], Simd::detect(), &team);
        let differs = plain.iter().zip(&fast).find(|(a, b)| !close(**a, **b));
        assert_eq!(differs, None, "{}", op.name());
    }
    for op in BinaryOp::ALL {
        let program = Expr::input(0).binary(*op, Expr::input(1)).finish().unwrap();
        let plain: Vec<f32> = run(&program, &[&x, &y], &[1500], Simd::Scalar, &team);
        let fast: Vec<f32> = run(&program, &[&x, &y], &[1500], Simd::detect(), &team);
        let differs = plain.iter().zip(&fast).find(|(a, b)| !close(**a, **b));
        assert_eq!(differs, None, "{}", op.name());
    }
}

#[test]
fn fused_neighbours_round_as_they_would_alone() {
    let (a, b, c) = (ramp(1100, 0.37), ramp(1100, -0.11), ramp(1100, 0.0021));
    let ops = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul];
    let apply = |op: BinaryOp, a: f32, b: f32| match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        _ => a * b,
    };
    let slices = [&a, &b, &c].map(|tensor| tensor.as_slice::<f32>().unwrap());
    for (first, second, swapped, relu) in ops.iter().flat_map(|first| {
        ops.iter().flat_map(move |second| {
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(swap, relu)| (*first, *second, swap, relu))
        })
    }) {
        let inner = Expr::input(0).binary(first, Expr::input(1));
        let outer = if swapped { Expr::input(2).binary(second, inner) } else { inner.binary(second, Expr::input(2)) };
        let program = if relu { outer.relu() } else { outer }.finish().unwrap();
        let expected: Vec<f32> = (0..1100)
            .map(|index| {
                let (inner, c) = (apply(first, slices[0][index], slices[1][index]), slices[2][index]);
                let value = if swapped { apply(second, c, inner) } else { apply(second, inner, c) };
                if relu { value.max(0.0) } else { value }
            })
            .collect();
        for simd in Simd::available() {
            let got: Vec<f32> = run(&program, &[&a, &b, &c], &[1100], simd, &Team::single());
            assert_eq!(got, expected, "{program} {}", simd.name());
        }
    }
}

#[test]
fn a_wide_expression_takes_its_registers_from_the_heap() {
    let x = Expr::input(0);
    let parts: Vec<Expr> = (0..100).map(|step| (&x * f64::from(step)).abs()).collect();
    let sum = parts.iter().rev().fold(Expr::constant(0.0), |sum, part| sum + part);
    let input = ramp(3000, 0.01);
    let got: Vec<f32> = run(&sum.finish().unwrap(), &[&input], &[3000], Simd::detect(), &Team::new(2));
    for (got, x) in got.iter().zip(input.as_slice::<f32>().unwrap()) {
        assert!((got - x.abs() * 4950.0).abs() <= 1e-4 * got.abs(), "{got} for {x}");
    }
}

#[test]
fn registers_are_reused() {
    let x = Expr::input(0);
    let chain = (0..1000).fold(x.clone(), |value, _| (value + &x).abs());
    let plan = MapPlan::compile(&chain.finish().unwrap(), &[DType::F32], Simd::Scalar).unwrap();
    assert_eq!(plan.size().0, 2);
    let (x, y) = (Expr::input(0), Expr::input(1));
    let fused = (&x * 2.0 + &y).relu().finish().unwrap();
    let plan = MapPlan::compile(&fused, &[DType::F32, DType::F32], Simd::Scalar).unwrap();
    assert_eq!(plan.size(), (1, 1), "the constant's register, and one call");
    let add = (Expr::input(0) + Expr::input(1)).finish().unwrap();
    let plan = MapPlan::compile(&add, &[DType::F32, DType::F32], Simd::Scalar).unwrap();
    assert_eq!(plan.size(), (0, 1));
}

#[test]
fn plans_are_found_again() {
    let mut cache = PlanCache::default();
    let program = (Expr::input(0) + 1.0).finish().unwrap();
    let first = cache.get(&program, [DType::F32].into_iter(), Simd::Scalar).unwrap();
    let again = cache.get(&program, [DType::F32].into_iter(), Simd::Scalar).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    let other = cache.get(&program, [DType::F64].into_iter(), Simd::Scalar).unwrap();
    assert_eq!(other.output_dtype(), DType::F64);
}

#[test]
fn wrong_inputs_are_refused() {
    let program = (Expr::input(0) + 1.0).finish().unwrap();
    let plan = MapPlan::compile(&program, &[DType::F32], Simd::Scalar).unwrap();
    let shape = Shape::new([4]).unwrap();
    let (x, team) = (ramp(4, 1.0), Team::single());
    let mut output = [0_u8; 16];
    assert!(execute(&plan, [].into_iter(), &shape, &mut output, &team).is_err());
    assert!(execute(&plan, [&x].into_iter(), &shape, &mut output[..12], &team).is_err());
    let halves = Tensor::zeros(DType::F16, [4]).unwrap();
    assert!(execute(&plan, [&halves].into_iter(), &shape, &mut output, &team).is_err());
    assert!(execute(&plan, [&ramp(3, 1.0)].into_iter(), &shape, &mut output, &team).is_err());
}

/// Hard swish is one call and rounds as its parts do; similar expressions are not treated as hard
/// swish.
#[test]
fn a_hard_swish_is_one_call() {
    let x = Expr::input(0);
    let inside = |x: &Expr| (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0);
    let input = ramp(3001, 0.004);
    let plain = |x: f32| x * (x * (1.0_f32 / 6.0) + 0.5).clamp(0.0, 1.0);
    for swish in [&x * inside(&x), inside(&x) * &x] {
        let program = swish.finish().unwrap();
        let plan = MapPlan::compile(&program, &[DType::F32], Simd::Scalar).unwrap();
        assert_eq!(plan.size(), (0, 1));
        for simd in Simd::available() {
            let got: Vec<f32> = run(&program, &[&input], &[3001], simd, &Team::new(2));
            let expected: Vec<f32> = input.as_slice::<f32>().unwrap().iter().map(|x| plain(*x)).collect();
            assert_eq!(got, expected, "{simd:?}");
        }
    }
    // A product with another value, parts that are read elsewhere, and a hard swish before
    // operations that could be fused with a product.
    let other = Expr::input(1);
    let more = ramp(3001, -0.003);
    for (expr, of) in [
        (&other * inside(&x), (|x, y| y * inside_of(x)) as fn(f32, f32) -> f32),
        (&x * inside(&x) + inside(&x) + &other, |x, y| x * inside_of(x) + inside_of(x) + y),
        ((&x * inside(&x)).relu() + &other, |x, y| (x * inside_of(x)).max(0.0) + y),
        (&x * inside(&x) * 2.0 - &other, |x, y| x * inside_of(x) * 2.0 - y),
    ] {
        let program = expr.finish().unwrap();
        for simd in Simd::available() {
            let got: Vec<f32> = run(&program, &[&input, &more], &[3001], simd, &Team::new(2));
            for ((got, x), y) in got.iter().zip(input.as_slice::<f32>().unwrap()).zip(more.as_slice::<f32>().unwrap()) {
                assert_eq!(*got, of(*x, *y), "{simd:?}, {x}, {y}");
            }
        }
    }
}

fn inside_of(x: f32) -> f32 {
    (x * (1.0_f32 / 6.0) + 0.5).clamp(0.0, 1.0)
}
