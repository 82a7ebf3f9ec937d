//! A model from an ONNX file, with many callers: `cargo run --release --example model MODEL.onnx
//! [CALLERS [BATCH [INSTANCES]]]`.
//!
//! Every caller sends zeros of the model's own shapes; open dimensions are 1. Requests that differ
//! only in their rows run as one batch. While one instance hands out its answers, the batch of
//! another instance runs.

use std::time::{Duration, Instant};

use panoply::RunOptions;
use panoply::models::{Array, Dimension, Model};
use panoply::serve::{ServeOptions, Server};

const REQUESTS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        println!("usage: model MODEL.onnx [CALLERS [BATCH [INSTANCES]]]");
        return Ok(());
    };
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |number| number.parse());
    let (callers, batch_max, instances) = (number(8)?, number(32)?, number(1)?);
    let runtime = panoply::Runtime::new()?;
    let started = Instant::now();
    let model = Model::load(&runtime, &file)?;
    println!("{}: {} nodes, loaded in {:?}", model.name(), model.nodes(), started.elapsed());
    let inputs = zeros(&model)?;
    let inputs: Vec<(&str, Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
    for (name, array) in &model.infer(&inputs)?.0 {
        println!("{name}: {array:?}");
    }
    let preferred = (0..).map(|power| 1 << power).take_while(|size| *size <= batch_max).collect();
    let server = Server::start(&model, ServeOptions { batch_max, preferred, instances, ..ServeOptions::default() })?;
    // Every batch size runs once before measuring starts.
    for rows in (0..).map(|power| 1 << power).take_while(|rows| *rows <= batch_max) {
        let tickets =
            (0..rows).map(|_| server.submit(&inputs, &RunOptions::default())).collect::<Result<Vec<_>, _>>()?;
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    }
    let ask = || {
        let start = Instant::now();
        server.infer(&inputs).map(|_| start.elapsed())
    };
    let call = || (0..REQUESTS).map(|_| ask()).collect::<Result<Vec<_>, _>>();
    let started = Instant::now();
    let mut waits: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()?.ok()).flatten().collect()
    });
    let (batches, rows) = server.batches();
    let rate = (callers * REQUESTS) as f64 / started.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
    println!("{callers} callers: {rate:.0} answers a second, {rows} rows in {batches} batches");
    println!("half of them within {:?}, 99 % within {:?}", at(50), at(99));
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
