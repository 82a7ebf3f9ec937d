//! Measures a training step on a device, and compares its losses with the CPU's: `cargo run
//! --release --example training -- mlp 64 50 cuda`.
//!
//! The output is one JSON line. `ms` is the time from call to result and `device_ms` the time on
//! the device; both are medians. `step_mib` is the memory in use while steps are repeated.
//! `peak_mib` is the most that the device's pools ever held, including trials of convolutions and
//! memory kept for reuse. `loss_gap` is the largest relative difference from the CPU's losses over
//! the first steps. The option `--plan` at the end lists the step's kernels.
//! `docs/peers/cpu_train.py` measures the same networks with PyTorch.

use std::error::Error;
use std::time::{Duration, Instant};

use panoply::graph::{DeviceTarget, SymbolSizes, listing::Listing, target_of};
use panoply::nn::random::Random;
use panoply::nn::samples::{Classifier, resnet20};
use panoply::nn::train::{Session, SessionOptions};
use panoply::nn::{Layer, Mode, Net, Optimiser, loss};
use panoply::prelude::*;

/// Steps before the first measured one. They compile kernels and record repeated work.
const WARM_UPS: usize = 24;
/// Number of steps whose losses are compared with the CPU's.
const COMPARED: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |place: usize, usual: &str| arguments.get(place).map_or(usual.to_owned(), Clone::clone);
    let (network, api) = (text(0, "mlp"), text(3, "cpu"));
    let (batch, repeats): (usize, usize) = (text(1, "64").parse()?, text(2, "50").parse()?);
    let (layers, image) = match network.as_str() {
        "mlp" => (Classifier::Mlp.layers(28), [1, 28, 28]),
        "cnn" => (Classifier::Cnn.layers(28), [1, 28, 28]),
        "resnet20" => (resnet20(), [3, 32, 32]),
        other => return Err(format!("expected mlp, cnn or resnet20, got {other}").into()),
    };
    let runtime = Runtime::new()?;
    let device = runtime.devices().find(|device| device.id.to_string().starts_with(&api)).ok_or("no such device")?.id;
    let host = runtime.devices().find(|device| device.is_processor()).ok_or("no CPU")?.id;
    let mut random = Random::new(7, "step");
    let count = batch * image.iter().product::<usize>();
    let x = Tensor::from_vec((0..count).map(|_| random.normal()).collect(), [batch, image[0], image[1], image[2]])?;
    let labels = Tensor::from_vec((0..batch as u32).map(|row| row * 7 % 10).collect(), [batch])?;
    let gap = loss_gap(&runtime, &layers, image, &[x.clone(), labels.clone()], [device, host])?;
    let mut session = session(&runtime, &layers, image, device)?;
    let place = |tensor: &Tensor| runtime.run(Transfer::to_device(tensor, device)).wait();
    let rows = [place(&x)?, place(&labels)?];
    let (mut times, mut device_times) = (Vec::new(), Vec::new());
    for repeat in 0..WARM_UPS + repeats.max(1) {
        let begin = Instant::now();
        let outcome = session.step(&rows)?;
        if repeat >= WARM_UPS {
            times.push(begin.elapsed());
            device_times.extend(outcome.reports.first().and_then(|report| report.device_time));
        }
    }
    let figures = runtime.metrics().devices.into_iter().find(|figures| figures.device == device);
    println!(
        "{{\"case\": \"nn/{network}/train/f32/b{batch}\", \"device\": \"{device}\", \"ms\": {:.4}, \"device_ms\": {:.4}, \"step_mib\": {:.1}, \"peak_mib\": {:.1}, \"loss_gap\": {gap:.1e}}}",
        median(&mut times),
        median(&mut device_times),
        mib(figures.as_ref().map_or(0, |figures| figures.memory.lent_bytes)),
        mib(figures.as_ref().map_or(0, |figures| figures.memory.peak_bytes)),
    );
    if arguments.iter().any(|argument| argument == "--plan") {
        let info = runtime.devices().find(|info| info.id == device).ok_or("the device is gone")?;
        let DeviceTarget { facts, rates } = target_of(&info)?;
        let listing = Listing::new(session.graph(), &SymbolSizes([batch, 1, 1, 1]), &facts, &rates)?;
        for (number, row) in listing.after.iter().enumerate() {
            println!("{number:3} {} {} = {} reads {:?}", row.node, row.output, row.op, row.reads);
        }
        println!("arena {} live {} peak {}", listing.arena_bytes, listing.live_bytes_max, listing.peak);
    }
    Ok(())
}

/// Returns the largest relative difference between the losses of two devices.
fn loss_gap(
    runtime: &Runtime,
    layers: &dyn Layer,
    image: [usize; 3],
    rows: &[Tensor],
    devices: [DeviceId; 2],
) -> Result<f32, Box<dyn Error>> {
    let mut losses = Vec::new();
    for device in devices {
        let mut session = session(runtime, layers, image, device)?;
        for step in 0..COMPARED {
            session.step(rows)?;
            losses.push(session.figures(step as u64)?[0]);
        }
    }
    let (ours, cpu) = losses.split_at(COMPARED);
    Ok(ours.iter().zip(cpu).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f32::max))
}

fn session(
    runtime: &Runtime,
    layers: &dyn Layer,
    image: [usize; 3],
    device: DeviceId,
) -> Result<Session, Box<dyn Error>> {
    let mut net = Net::new("step", Mode::Train);
    let batch = net.symbol("batch")?;
    let x = net.data("x", DType::F32, &[batch, image[0].into(), image[1].into(), image[2].into()])?;
    let labels = net.data("labels", DType::U32, &[batch])?;
    let logits = layers.forward(&mut net, x)?;
    let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
    let recording = net.finish(&[("loss", loss)])?;
    let optimiser = Optimiser::momentum(0.01, 0.9, false);
    // The host keeps no copy of the parameters: only the device is measured.
    let options = SessionOptions { devices: vec![device], copy_every: 0, ..SessionOptions::default() };
    Ok(Session::new(runtime, recording, optimiser, None, options)?)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
