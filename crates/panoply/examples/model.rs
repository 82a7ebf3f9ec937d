//! A model from an ONNX file, with many callers: `cargo run --release --example model MODEL.onnx [CALLERS]`.
//!
//! Every caller asks with zeros of the model's own shapes; open dimensions are 1. Requests that differ in their rows alone run as
//! one batch.

use std::time::Instant;

use panoply::ml::serve::{ServeOptions, Server};
use panoply::ml::{Array, Dimension, Model};

const REQUESTS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        println!("usage: model MODEL.onnx [CALLERS]");
        return Ok(());
    };
    let callers: usize = arguments.next().map_or(Ok(8), |callers| callers.parse())?;
    let runtime = panoply::Runtime::new()?;
    let started = Instant::now();
    let model = Model::load(&runtime, &file)?;
    println!("{}: {} nodes, loaded in {:?}", model.name(), model.nodes(), started.elapsed());
    let inputs = zeros(&model)?;
    let inputs: Vec<(&str, Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
    for (name, array) in &model.infer(&inputs)?.0 {
        println!("{name}: {array:?}");
    }
    let server = Server::start(&model, ServeOptions::default())?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| (0..REQUESTS).try_for_each(|_| server.infer(&inputs).map(drop)));
        }
    });
    let (batches, rows) = server.batches();
    let rate = (callers * REQUESTS) as f64 / started.elapsed().as_secs_f64();
    println!("{callers} callers: {rate:.0} answers a second, {rows} rows in {batches} batches");
    Ok(())
}

fn zeros(model: &Model) -> Result<Vec<(String, Array)>, Box<dyn std::error::Error>> {
    let mut inputs = Vec::new();
    for port in model.inputs() {
        let size = |dim: &Dimension| if let Dimension::Fixed(size) = dim { *size } else { 1 };
        let dims: Vec<usize> = port.dims.iter().flatten().map(size).collect();
        let kind = port.kind.ok_or("an input has no element type")?;
        let bytes = vec![0; dims.iter().product::<usize>() * kind.size_bytes()];
        inputs.push((port.name.clone(), Array::from_bytes(kind, dims, &bytes)?));
    }
    Ok(inputs)
}
