//! A custom kernel as an op: one program as C source, as WGSL source and as a closure, so that it
//! runs on any device that takes one of the three. The closure defines the result that the others
//! must compute.
//!
//!     cargo run --release --example kernel

use std::error::Error;

use panoply::prelude::*;

const C: &str = "
KERNEL saxpy(GLOBAL const f32 *x, GLOBAL const f32 *y, GLOBAL f32 *z, f32 a, u32 n)
{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i < n) z[i] = a * x[i] + y[i];
}";

const WGSL: &str = "
@compute @workgroup_size(BLOCK_X)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < scalars.n { z[id.x] = scalars.a * x[id.x] + y[id.x]; }
}";

fn main() -> Result<(), Box<dyn Error>> {
    // The kernel is described and checked once. Each device compiles its source on first use and
    // keeps the result.
    let saxpy = Kernel::c(C, "saxpy")
        .wgsl(WGSL, "saxpy")
        .input("x", DType::F32)
        .input("y", DType::F32)
        .output("z", DType::F32)
        .scalar("a", ScalarType::F32)
        .scalar("n", ScalarType::U32)
        .on_cpu(|call| {
            let (x, y, z) = (call.input::<f32>(0)?, call.input::<f32>(1)?, call.output::<f32>(0)?);
            let a: f32 = call.scalar(0)?;
            for (i, z) in z.iter_mut().enumerate() {
                *z = a * x[i] + y[i];
            }
            Ok(())
        })
        .build()?;

    let count = 1 << 20;
    let x = Tensor::from_vec((0..count).map(|i| (i % 100) as f32).collect(), [count])?;
    let y = Tensor::from_vec(vec![1.0_f32; count], [count])?;
    let call = Kernel::new(&saxpy).input(&x).input(&y).scalar(2.0_f32).scalar(count as u32).output(*x.shape());
    let call = call.launch(LaunchSize::over(count, 256));

    let runtime = Runtime::new()?;
    let expected = call.compute()?;
    for device in runtime.devices() {
        let options = RunOptions::require(device.id);
        match runtime.run_with(call.clone(), options).with_report().wait() {
            Ok(Outcome { output, report }) => {
                let same = output[0].as_slice::<f32>()? == expected[0].as_slice::<f32>()?;
                println!("{}: {} in {:?}", device.id, if same { "right" } else { "WRONG" }, report.ran);
            }
            Err(error) => println!("{}: {error}", device.id),
        }
    }

    // A compile error is reported with the compiler's message. Line numbers count from the first
    // line of the source.
    let wrong = Kernel::c("KERNEL fill(GLOBAL f32 *z)\n{\n    z[0] = 1.0f\n}", "fill")
        .wgsl("@compute @workgroup_size(1)\nfn fill() {\n    z[0] = one;\n}", "fill")
        .output("z", DType::F32)
        .build()?;
    match runtime.run(Kernel::new(&wrong).output(Shape::new([1])?)).wait() {
        Ok(_) => println!("it compiles?"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
