//! Tests of the arguments that programs and calls refuse, and of the view of the closure.

use super::*;
use crate::op::Operation;

const SOURCE: &str = "KERNEL scale(GLOBAL const f32 *x, GLOBAL f32 *y, f32 a, u32 n) {}";

fn scale() -> KernelBuilder {
    Kernel::c(SOURCE, "scale")
        .input("x", DType::F32)
        .output("y", DType::F32)
        .scalar("a", ScalarType::F32)
        .scalar("n", ScalarType::U32)
}

fn call(program: &Arc<KernelProgram>) -> Kernel {
    let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], [3]).unwrap();
    Kernel::new(program).input(&x).scalar(2.0_f32).scalar(3_u32).output(*x.shape()).launch(LaunchSize::over(3, 64))
}

fn with_body(body: impl Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync + 'static) -> Kernel {
    call(&scale().on_cpu(body).build().unwrap())
}

#[test]
fn the_closure_computes_from_typed_slices() {
    let kernel = with_body(|call| {
        let (x, y, a) = (call.input::<f32>(0)?, call.output::<f32>(0)?, call.scalar::<f32>(0)?);
        assert_eq!((call.scalar::<u32>(1)?, call.launch().grid[0], y.to_vec()), (3, 1, vec![0.0; 3]));
        y.iter_mut().zip(x).for_each(|(y, x)| *y = a * x);
        Ok(())
    });
    assert_eq!(kernel.compute().unwrap()[0].to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    let outputs = Kernel::tensors(Kernel::value(kernel.compute().unwrap())).unwrap();
    assert_eq!(outputs.len(), 1);
    // A view is made contiguous before the closure sees it.
    let mut turned = kernel.clone();
    turned.inputs[0] = Tensor::from_vec((0..6).map(|x| x as f32).collect(), [3, 2]).unwrap().slice(1, 1, 2).unwrap();
    assert_eq!(turned.compute().unwrap()[0].to_vec::<f32>().unwrap(), [2.0, 6.0, 10.0]);
}

#[test]
fn a_closure_that_goes_wrong_ends_its_call_alone() {
    let error = |kernel: Kernel| kernel.compute().unwrap_err();
    let panicked = error(with_body(|_| panic!("no luck")));
    assert!(matches!(&panicked, Error::KernelFault { reason, .. } if reason.contains("no luck")), "{panicked}");
    assert_eq!(panicked.kind(), crate::ErrorKind::Caller);
    let short = error(with_body(|call| call.write(0, &[1.0_f32, 2.0])));
    assert!(matches!(short, Error::ShapeMismatch { .. }), "{short}");
    let typed = error(with_body(|call| call.write(0, &[1_u32, 2, 3])));
    assert!(matches!(typed, Error::DTypeMismatch { expected: DType::F32, got: DType::U32, .. }), "{typed}");
    assert!(matches!(error(with_body(|call| call.input::<f32>(1).map(drop))), Error::OutOfBounds { .. }));
    assert!(matches!(error(with_body(|call| call.output::<f32>(4).map(drop))), Error::OutOfBounds { .. }));
    let scalar = error(with_body(|call| call.scalar::<i64>(0).map(drop)));
    assert!(scalar.to_string().contains("expected f32, got i64"), "{scalar}");
    let twice = error(with_body(|call| call.output::<f32>(0).map(drop).and_then(|()| call.output::<f32>(0).map(drop))));
    assert!(twice.to_string().contains("each output once"), "{twice}");
    let missing = call(&scale().build().unwrap()).compute().unwrap_err();
    assert!(missing.to_string().contains("on_cpu"), "{missing}");
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let program = scale().build().unwrap();
    let refused = |change: &dyn Fn(&mut Kernel), expected: &str| {
        let mut kernel = call(&program);
        change(&mut kernel);
        let error = kernel.into_op().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    assert!(call(&program).into_op().is_ok());
    refused(&|kernel| kernel.inputs.clear(), "inputs: expected 1 (x), got 0");
    refused(&|kernel| kernel.inputs[0] = Tensor::zeros(DType::F16, [3]).unwrap(), "expected f32 for x, got f16");
    refused(&|kernel| kernel.scalars.truncate(1), "scalars: expected 2 (a, n), got 1");
    refused(&|kernel| kernel.scalars[1] = 3_i32.into(), "expected u32 for n, got i32");
    refused(&|kernel| kernel.outputs.push(Shape::scalar()), "expected 1 (y), got 2");
    for (grid, block) in [
        ([0, 1, 1], [64, 1, 1]),
        ([1, 1, 1], [64, 0, 1]),
        ([1, 65_536, 1], [64, 1, 1]),
        ([u32::MAX, 1, 1], [64, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [64, 64, 1]),
        ([1, 1, 1], [1, 1, 65]),
    ] {
        refused(&|kernel| kernel.launch = LaunchSize::new(grid, block), "expected");
    }
    refused(&|kernel| kernel.launch.block_bytes = u32::MAX, "block memory");
    assert_eq!(LaunchSize::over(0, 256).grid, [1, 1, 1]);
    assert!(LaunchSize::over(usize::MAX, 1).check().is_err());
}

#[test]
fn programs_that_no_compiler_should_see_are_refused() {
    let refused = |builder: KernelBuilder| builder.build().unwrap_err();
    assert!(refused(Kernel::c("", "f").output("y", DType::F32)).to_string().contains("source"));
    assert!(refused(Kernel::c("a\0b", "f").output("y", DType::F32)).to_string().contains("zero bytes"));
    let long = " ".repeat(KERNEL_SOURCE_BYTES_MAX + 1);
    assert!(matches!(refused(Kernel::wgsl(long, "f").output("y", DType::F32)), Error::OutOfBounds { .. }));
    for entry in ["", "1x", "a b", "f(); int g", "é"] {
        assert!(refused(Kernel::c(SOURCE, entry).output("y", DType::F32)).to_string().contains("identifier"));
    }
    assert!(refused(scale().input("y", DType::F32)).to_string().contains("y twice"));
    assert!(refused(Kernel::c(SOURCE, "scale")).to_string().contains("at least one"));
    assert!(refused(KernelBuilder::new("f").output("y", DType::F32)).to_string().contains("none"));
    assert!(matches!(refused(scale().atomic_output("z", DType::F32)), Error::DTypeUnsupported { .. }));
    let many = (0..KERNEL_PARAMETERS_MAX).fold(scale(), |builder, at| builder.input(&format!("more{at}"), DType::F32));
    assert!(matches!(refused(many), Error::OutOfBounds { .. }));
}

#[test]
fn each_program_has_its_own_curve() {
    let (a, b) = (scale().build().unwrap(), scale().named("other").build().unwrap());
    assert_eq!(a.hash(), scale().build().unwrap().hash());
    assert_ne!(call(&a).cost_class(), call(&b).cost_class());
    let wider = call(&a).launch(LaunchSize::over(3, 128));
    assert_ne!(call(&a).kernel_signature(), wider.kernel_signature());
    assert!(wider.work() > call(&a).work());
}

#[test]
fn pieces_are_made_by_themselves() {
    let body = |call: &mut KernelCall<'_>| {
        let (pieces, y) = (call.pieces(), call.output::<f32>(0)?);
        let x = &call.input::<f32>(0)?[3 * pieces.start..3 * pieces.end];
        y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    };
    let program = || Kernel::on_cpu("double", body).input("x", DType::F32).output("y", DType::F32);
    let x = Tensor::from_vec((0..6).map(|x| x as f32).collect(), [6]).unwrap();
    let kernel = Kernel::new(&program().in_pieces(2).build().unwrap()).input(&x).output(*x.shape());
    assert_eq!(kernel.compute().unwrap()[0].to_vec::<f32>().unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    let mut last = [9.0_f32; 3];
    kernel.call_pieces(std::slice::from_ref(&x), 1..2, bytemuck::cast_slice_mut(&mut last)).unwrap();
    assert_eq!(last, [6.0, 8.0, 10.0]);
    for (pieces, len) in [(1..2, 2), (0..2, 3), (2..3, 3)] {
        let mut output = vec![0.0_f32; len];
        let refused = kernel.call_pieces(std::slice::from_ref(&x), pieces, bytemuck::cast_slice_mut(&mut output));
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    }
    let uneven = Kernel::new(&program().in_pieces(4).build().unwrap()).input(&x).output(*x.shape());
    assert!(uneven.validate().is_err(), "six elements are no four pieces");
    assert!(program().in_pieces(0).build().is_err());
    assert!(program().output("z", DType::F32).in_pieces(2).build().is_err());
    // Whether outputs are filled with zeros first affects the cost of a kernel, so it is part of
    // the hash.
    let (plain, whole) = (program().build().unwrap(), program().writes_all().build().unwrap());
    assert!(!plain.writes_all() && whole.writes_all() && plain.hash() != whole.hash());
    assert!(scale().in_pieces(1).build().is_err(), "only closures make pieces");
}

#[test]
fn rows_may_have_others_between_them() {
    let whole = Tensor::from_vec((0..24).map(|x| x as f32).collect(), [2, 3, 4]).unwrap();
    let part = whole.slice(2, 1, 3).unwrap();
    let body = |call: &mut KernelCall<'_>| -> Result<()> {
        let (rows, pitch) = call.rows::<f32>(0)?;
        let y = call.output::<f32>(0)?;
        y.chunks_exact_mut(2).enumerate().for_each(|(row, to)| to.copy_from_slice(&rows[row * pitch..][..2]));
        Ok(())
    };
    let program = |len: usize| {
        let program = Kernel::on_cpu("rows", body).input("x", DType::F32).output("y", DType::F32);
        program.reads_rows(&[len]).writes_all().build()
    };
    let kernel = |x: &Tensor| Kernel::new(&program(2).unwrap()).input(x).output(*x.shape());
    let one = kernel(&part);
    assert!(one.reads_in_place(0) && one.program.writes_all());
    let mut made = vec![0_u8; 48];
    one.call(&one.inputs, vec![made.as_mut_slice()]).unwrap();
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&made), part.to_vec::<f32>().unwrap());
    assert_eq!(one.compute().unwrap()[0].to_vec::<f32>().unwrap(), part.to_vec::<f32>().unwrap());
    // Rows at several distances, and rows that are not contiguous, are copied first.
    assert!(!kernel(&part.slice(1, 0, 2).unwrap()).reads_in_place(0));
    assert!(!kernel(&whole.permute(&[0, 2, 1]).unwrap()).reads_in_place(0));
    assert!(kernel(&whole.slice(0, 0, 1).unwrap().slice(1, 1, 2).unwrap().slice(2, 1, 3).unwrap()).reads_in_place(0));
    assert!(program(0).is_err() && one.permuted(&[0, 1, 2]).is_none());
}
