//! A small network, recorded once and run on any available device: `cargo run --example graph`.

use panoply::graph::Graph;
use panoply::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut g = Graph::builder("network");
    let batch = g.symbol("batch")?;
    let x = g.input("x", DType::F32, &[batch, 16.into()])?;
    let w = g.constant("w", &Tensor::from_vec((0..64).map(|value| value as f32 * 0.01).collect(), [16, 4])?)?;
    let bias = g.constant("bias", &Tensor::from_vec(vec![0.1_f32; 4], [4])?)?;
    let h = g.linear(x, w, bias)?;
    let h = g.relu(h)?;
    let p = g.softmax(h, 1)?;
    g.output("p", p)?;
    let graph = g.finish()?;

    let runtime = Runtime::new()?;
    for rows in [1, 3] {
        let x = Tensor::from_vec((0..rows * 16).map(|value| (value % 5) as f32).collect(), [rows, 16])?;
        let Outcome { output, report } = runtime.run(RunGraph::new(&graph, &[&x])).with_report().wait()?;
        println!("{rows} rows on {} in {:?}: {:?}", report.device, report.ran, output[0].shape());
    }
    Ok(())
}
