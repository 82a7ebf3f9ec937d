//! Measures a training step on this machine's CPU:
//! `cargo run --release -p panoply-nn --example step -- mlp 64`.
//!
//! With `plan` as a further argument nothing runs: for each kind of device one line gives the
//! number of steps of the plan and its peak memory. With `--steps` after it, the steps are listed
//! too. `panoply bench nn/` measures the same on every device.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use panoply_core::graph::SymbolSizes;
use panoply_core::{DType, Describe, Tensor};
use panoply_cpu::CpuBackend;
use panoply_graph::DeviceTarget;
use panoply_graph::listing::Listing;
use panoply_nn::random::Random;
use panoply_nn::samples::{Classifier, resnet20};
use panoply_nn::train::{Session, SessionOptions};
use panoply_nn::{Layer, Mode, Net, Optimiser, loss};
use panoply_runtime::Runtime;

const WARM_UPS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let network = arguments.next().unwrap_or("mlp".to_owned());
    let batch: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let repeats = arguments.next().unwrap_or("50".to_owned());
    let (layers, image) = match network.as_str() {
        "mlp" => (Classifier::Mlp.layers(28), [1, 28, 28]),
        "cnn" => (Classifier::Cnn.layers(28), [1, 28, 28]),
        "resnet20" => (resnet20(), [3, 32, 32]),
        other => return Err(format!("expected mlp, cnn or resnet20, got {other}").into()),
    };
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build()?);
    let mut session = session(&runtime, &layers, image)?;
    if repeats == "plan" {
        return show_plans(&session, batch);
    }
    let repeats: usize = repeats.parse()?;
    let mut random = Random::new(7, "step");
    let count = batch * image.iter().product::<usize>();
    let x = Tensor::from_vec((0..count).map(|_| random.normal()).collect(), [batch, image[0], image[1], image[2]])?;
    let labels = Tensor::from_vec((0..batch as u32).map(|row| row * 7 % 10).collect(), [batch])?;
    let rows = [x, labels];
    let mut times = Vec::new();
    for repeat in 0..WARM_UPS + repeats.max(1) {
        let begin = Instant::now();
        session.step(&rows)?;
        if repeat >= WARM_UPS {
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let plan =
        panoply_graph::compile(session.graph(), &SymbolSizes([batch, 1, 1, 1]), &panoply_cpu::GRAPH_TARGET.facts)?;
    println!(
        "{{\"case\": \"nn/{network}/train/f32/b{batch}\", \"ms\": {median:.4}, \"best_ms\": {:.4}, \"peak_mib\": {}, \"step_mib\": {}}}",
        times[0],
        peak_mib(),
        plan.peak.bytes(false) >> 20
    );
    Ok(())
}

/// Prints the plans of a step for a CPU and for GPUs.
fn show_plans(session: &Session, batch: usize) -> Result<(), Box<dyn Error>> {
    for (device, target) in [("cpu", panoply_cpu::GRAPH_TARGET), ("gpu", panoply_c_gpu::GRAPH_TARGET)] {
        let DeviceTarget { facts, rates } = target;
        let plan = panoply_graph::compile(session.graph(), &SymbolSizes([batch, 1, 1, 1]), &facts)?;
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        plan.steps.iter().for_each(|step| *names.entry(step.op.name()).or_default() += 1);
        let mib = |bytes: u64| bytes >> 20;
        println!(
            "{device}: {} steps {names:?}; {} MiB at the peak, {} of them between steps, where {} are in use at once",
            plan.steps.len(),
            mib(plan.peak.bytes(false)),
            mib(plan.arena_bytes as u64),
            mib(plan.live_bytes_max as u64),
        );
        if std::env::args().any(|argument| argument == "--steps") {
            let listing = Listing::new(session.graph(), &SymbolSizes([batch, 1, 1, 1]), &facts, &rates)?;
            listing
                .after
                .iter()
                .for_each(|row| println!("  {} {} = {} of {:?}", row.node, row.output, row.op, row.reads));
        }
    }
    Ok(())
}

fn session(runtime: &Arc<Runtime>, layers: &dyn Layer, image: [usize; 3]) -> Result<Session, Box<dyn Error>> {
    let mut net = Net::new("step", Mode::Train);
    let batch = net.symbol("batch")?;
    let x = net.data("x", DType::F32, &[batch, image[0].into(), image[1].into(), image[2].into()])?;
    let labels = net.data("labels", DType::U32, &[batch])?;
    let logits = layers.forward(&mut net, x)?;
    let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
    let recording = net.finish(&[("loss", loss)])?;
    let optimiser = Optimiser::momentum(0.01, 0.9, false);
    Ok(Session::new(Arc::clone(runtime), recording, optimiser, None, SessionOptions::default())?)
}

/// The peak memory of the process in MiB, or `null` if the system does not report it.
fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or("null".to_owned(), |kib| (kib / 1024).to_string())
}
