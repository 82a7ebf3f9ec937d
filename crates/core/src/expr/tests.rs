//! Tests of building, sharing, typing and printing expressions.

use super::*;

const DEPTH: usize = 10_000;

fn deep() -> Expr {
    let x = Expr::input(0);
    (0..DEPTH).fold(x.clone(), |deep, step| deep * 0.999 + &x * step as f64)
}

#[test]
fn operators_build_what_they_say() {
    let (x, y) = (Expr::input(0), Expr::input(1));
    let program = (x * 2.0 + y).relu().finish().unwrap();
    assert_eq!(program.to_string(), "%0 = x0; %1 = 2; %2 = mul(%0, %1); %3 = x1; %4 = add(%2, %3); %5 = relu(%4)");
    assert_eq!(program.inputs(), 2);
    let mixed = (1.0 / (2.0 - -Expr::input(0))).clamp(0, 1.5).finish().unwrap();
    assert_eq!(
        mixed.to_string(),
        "%0 = 1; %1 = 2; %2 = x0; %3 = neg(%2); %4 = sub(%1, %3); %5 = div(%0, %4); %6 = 0; %7 = 1.5; \
         %8 = clamp(%5, %6, %7)"
    );
}

#[test]
fn equal_subexpressions_are_stored_once() {
    let mut x = Expr::input(0);
    for _ in 0..200 {
        x = &x * &x;
    }
    assert_eq!(x.finish().unwrap().nodes().len(), 201);

    let (mut older, mut newer) = (Expr::input(0), Expr::input(1));
    for _ in 0..200 {
        (older, newer) = (newer.clone(), &older + &newer);
    }
    assert_eq!(newer.finish().unwrap().nodes().len(), 202);
}

#[test]
fn the_same_expression_built_otherwise_is_equal() {
    let (x, y) = (Expr::input(0), Expr::input(1));
    let one = (&x + &y) * (&x - &y);
    let difference = &x - &y;
    let other = (x + y) * difference;
    let (one, other) = (one.finish().unwrap(), other.finish().unwrap());
    assert_eq!(one, other);
    assert_eq!(one.hash(), other.hash());
    assert_ne!(one.hash(), (Expr::input(0) - Expr::input(1)).finish().unwrap().hash());
}

#[test]
fn the_hash_does_not_change_between_processes() {
    let program = (Expr::input(0) * 2.0 + Expr::input(1)).relu().cast(DType::F16).finish().unwrap();
    assert_eq!(program.hash(), PINNED_HASH);
}

/// Kernels cached on disk are found by this number. Change it only together with the version of
/// those caches.
const PINNED_HASH: u64 = 1_494_250_355_826_053_101;

#[test]
fn depth_needs_no_stack() {
    let small_stack = std::thread::Builder::new().stack_size(128 * 1024);
    let thread = small_stack.spawn(|| {
        let deep = deep();
        let copy = deep.clone();
        let program = deep.finish().unwrap();
        assert!(program.nodes().len() > 2 * DEPTH);
        assert_eq!(program.output_dtype(&[DType::F32]), Ok(DType::F32));
        assert!(program.to_string().len() > DEPTH);
        assert_eq!(program, copy.finish().unwrap());
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn too_many_nodes_is_an_error() {
    let mut x = Expr::input(0);
    for _ in 0..NODES_MAX - 1 {
        x = x.tanh();
    }
    assert_eq!(x.finish().unwrap().nodes().len(), NODES_MAX);
    assert_eq!(x.clone().tanh().finish(), Err(ExprError::TooManyNodes { nodes_max: NODES_MAX }));
    let beyond = (x.exp() + Expr::input(1)).sqrt();
    assert_eq!(beyond.finish(), Err(ExprError::TooManyNodes { nodes_max: NODES_MAX }));
}

#[test]
fn inputs_are_checked() {
    let too_far = Expr::input(INPUTS_MAX).finish();
    assert_eq!(too_far, Err(ExprError::InputIndex { index: INPUTS_MAX, inputs_max: INPUTS_MAX }));
    assert!(matches!(Expr::input(u32::MAX).finish(), Err(ExprError::InputIndex { .. })));
    let pair = (Expr::input(0) + Expr::input(1)).finish().unwrap();
    assert_eq!(pair.output_dtype(&[DType::F32]), Err(ExprError::MissingInput { expected: 2, got: 1 }));
}

#[test]
fn dtypes_are_inferred_and_checked() {
    let pair = (Expr::input(0) + Expr::input(1)).finish().unwrap();
    for dtype in DType::ALL {
        assert_eq!(pair.output_dtype(&[dtype, dtype]), Ok(dtype));
    }
    let mismatch = ExprError::DTypeMismatch { op: "add", expected: DType::F32, got: DType::I32 };
    assert_eq!(pair.output_dtype(&[DType::F32, DType::I32]), Err(mismatch));

    let exp = Expr::input(0).exp().finish().unwrap();
    assert_eq!(exp.output_dtype(&[DType::I8]), Err(ExprError::Unsupported { op: "exp", dtype: DType::I8 }));

    let scaled = (Expr::input(0) * 300.0).finish().unwrap();
    assert_eq!(scaled.output_dtype(&[DType::I32]), Ok(DType::I32));
    let refused = ExprError::ConstantNotRepresentable { value: 300.0, dtype: DType::U8 };
    assert_eq!(scaled.output_dtype(&[DType::U8]), Err(refused));

    let cast = (Expr::input(0).cast(DType::F32) * 0.5).cast(DType::U8).finish().unwrap();
    assert_eq!(cast.output_dtype(&[DType::I32]), Ok(DType::U8));
    let refused = ExprError::Cast { from: DType::Complex64, to: DType::F32 };
    assert_eq!(cast.output_dtype(&[DType::Complex64]), Err(refused));
}

#[test]
fn constants_are_folded_in_f64() {
    let program = (Expr::constant(1.0) / 3.0 + Expr::input(0)).finish().unwrap();
    let types = program.types(&[DType::F32]).unwrap();
    assert_eq!(types.values()[2], Value::Constant(1.0 / 3.0));
    assert_eq!(types.output(), DType::F32);
    assert_eq!(Expr::constant(3.0).finish().unwrap().output_dtype(&[]), Ok(DType::F32));
    assert_eq!(Expr::constant(3.0).cast(DType::U8).finish().unwrap().output_dtype(&[]), Ok(DType::U8));
}

#[test]
fn the_error_function_agrees_with_published_values() {
    // Abramowitz and Stegun, table 7.1, and erfc from 50-digit arithmetic.
    let erf_table = [(0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (2.0, 0.995_322_265_018_952_7)];
    for (x, expected) in erf_table {
        assert!((erf(x) - expected).abs() < 4e-16, "erf({x}) = {}", erf(x));
        assert_eq!(erf(-x), -erf(x));
    }
    let erfc_table = [(3.0, 2.209_049_699_858_544e-5), (10.0, 2.088_487_583_762_545e-45)];
    for (x, expected) in erfc_table {
        assert!((erfc(x) / expected - 1.0).abs() < 2e-15, "erfc({x}) = {}", erfc(x));
    }
    assert_eq!((erf(0.0), erf(f64::INFINITY), erf(f64::NEG_INFINITY)), (0.0, 1.0, -1.0));
    assert!(erf(f64::NAN).is_nan() && erfc(f64::NAN).is_nan());
}

#[test]
fn limits_at_infinity() {
    for op in [UnaryOp::Gelu, UnaryOp::GeluTanh, UnaryOp::Silu] {
        assert_eq!(op.eval(f64::NEG_INFINITY), 0.0, "{}", op.name());
        assert_eq!(op.eval(f64::INFINITY), f64::INFINITY, "{}", op.name());
        assert!(op.eval(f64::NAN).is_nan(), "{}", op.name());
    }
}

#[test]
fn an_expression_is_made_of_its_nodes() {
    let x = Expr::input(0);
    let program = ((x.clone() * 2.0 + &x).tanh() - x * 2.0).finish().unwrap();
    assert_eq!(Expr::from_nodes(program.nodes()).unwrap().finish().unwrap(), program);
    // Equal nodes are merged, as they are by operators.
    let twice = [Node::Input(0), Node::Input(0), Node::Binary(BinaryOp::Add, 0, 1)];
    assert_eq!(Expr::from_nodes(&twice).unwrap().finish().unwrap().nodes().len(), 2);
    assert!(Expr::from_nodes(&[]).is_none());
    assert!(Expr::from_nodes(&[Node::Unary(UnaryOp::Neg, 0)]).is_none(), "a node of its own");
    assert!(Expr::from_nodes(&[Node::Input(0), Node::Binary(BinaryOp::Add, 0, 2)]).is_none(), "a later node");
    let many: Vec<Node> = (0..=NODES_MAX).map(|at| Node::Const(Constant::new(at as f64))).collect();
    assert!(matches!(Expr::from_nodes(&many).unwrap().finish(), Err(ExprError::TooManyNodes { .. })));
}
