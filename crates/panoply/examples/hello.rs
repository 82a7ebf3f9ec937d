//! The shortest program: multiplies two matrices and reports where that ran.
//!
//!     cargo run --release --example hello

use std::error::Error;

use panoply::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    for device in runtime.devices() {
        println!("{}: {}", device.id, device.name);
    }

    let a = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let b = Tensor::from_vec(vec![1.0_f32, 0.0, 0.0, 1.0, 1.0, 1.0], [3, 2])?;
    // A GPU's answer stays in the GPU's memory until it is read.
    let Outcome { output, report } = runtime.run(MatMul::new(&a, &b)).with_report().wait()?;
    println!("{:?}", output.as_slice::<f32>()?);
    println!("ran on {} in {:?}, after {:?} in the queue", report.device, report.ran, report.queued);

    // Ops in flight do not wait for each other: start several, then collect the results.
    let size = 512;
    let large = Tensor::from_vec((0..size * size).map(|value| (value % 7) as f32).collect(), [size, size])?;
    let products: Vec<_> = (0..4).map(|_| runtime.run(MatMul::new(&large, &large))).collect();
    for product in products {
        println!("{:?}", product.wait()?);
    }
    Ok(())
}
