//! The time of a pipeline with several threads relative to one thread, for stages that do almost
//! nothing and for stages that take some microseconds:
//!
//! ```text
//! cargo bench -p panoply-pipeline --bench pipelines
//! cargo bench -p panoply-pipeline --bench pipelines -- --json   # the ratios, one JSON object per line
//! ```
//!
//! Ten stages, in order, with rings of the default capacity. Each value is the best of several
//! rounds in which every variant runs once, one after the other: other load on the machine only
//! adds to a time. The limits, on two cores: at most 1.1 for stages that do nothing, and below 1
//! where an item costs 5 µs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use panoply_pipeline::Pipeline;
use panoply_pipeline::RING_DEPTH_DEFAULT;

const STAGES: usize = 10;
const ROUNDS: usize = 15;

/// How a pipeline is run.
#[derive(Clone, Copy)]
enum Variant {
    /// One thread runs everything.
    Single,
    /// Up to this many threads may be in each stage. The pipeline chooses its number of threads.
    Parallel(usize),
    /// This many threads run everything, and all of them may be in each stage.
    Threads(usize),
}

fn main() {
    // `cargo test --benches` and `cargo nextest` call this with other arguments and want no
    // measurement.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with: cargo bench -p panoply-pipeline --bench pipelines");
        return;
    }
    let json = std::env::args().any(|argument| argument == "--json");
    for (name, cost, items, ring) in [
        ("nothing", Duration::ZERO, 30_000, RING_DEPTH_DEFAULT),
        ("nothing, rings of 1024", Duration::ZERO, 30_000, 1024),
        ("200 ns", Duration::from_nanos(200), 10_000, RING_DEPTH_DEFAULT),
        ("1 µs", Duration::from_micros(1), 3_000, RING_DEPTH_DEFAULT),
        ("5 µs", Duration::from_micros(5), 1_000, RING_DEPTH_DEFAULT),
        ("50 µs", Duration::from_micros(50), 100, RING_DEPTH_DEFAULT),
    ] {
        measure(name, cost, items, ring, json);
    }
}

fn measure(name: &str, cost: Duration, items: u64, ring: usize, json: bool) {
    use Variant::{Parallel, Single, Threads};
    let variants = [Single, Parallel(1), Parallel(2), Parallel(4), Threads(2), Threads(4)];
    let mut times = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter().zip(&mut times) {
            times.push(run(*variant, cost, items, ring));
        }
    }
    let best = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    let [single, one, two, four, threads_2, threads_4] = times.map(best);
    let ratios = [
        ("parallel(2) / parallel(1)", two / one),
        ("parallel(4) / parallel(1)", four / one),
        ("parallel(1) / one thread", one / single),
        ("threads(2) / one thread", threads_2 / single),
        ("threads(4) / one thread", threads_4 / single),
    ];
    let each = single / items as f64 / STAGES as f64 * 1e9;
    if !json {
        println!("{STAGES} stages of {name}: {each:.0} ns for each item and stage with one thread");
    }
    for (ratio, value) in ratios {
        if json {
            println!("{{\"number\":\"pipeline of {name}: {ratio}\",\"value\":{value}}}");
        } else {
            println!("  {ratio:<28} {value:>6.2}");
        }
    }
}

/// The duration of a whole run, in seconds.
fn run(variant: Variant, cost: Duration, items: u64, ring: usize) -> f64 {
    let start = Pipeline::builder();
    let start = match variant {
        Variant::Single => start.threads(1),
        Variant::Parallel(_) => start,
        Variant::Threads(count) => start.threads(count),
    };
    let mut stages = start.source(0..items);
    for number in 0..STAGES {
        let stage = stages.map(&format!("stage {number}"), move |item: u64| work(item, cost));
        stages = match variant {
            Variant::Single => stage.ring(ring),
            Variant::Parallel(count) => stage.ring(ring).parallel(count),
            Variant::Threads(_) => stage.ring(ring).adaptive(),
        };
    }
    let mut sum = 0_u64;
    let pipeline = stages.for_each("sum", move |item| sum = black_box(sum.wrapping_add(item)));
    let begin = Instant::now();
    match pipeline.run() {
        Ok(((), report)) => assert_eq!(report.progress.arrived, items),
        Err(error) => panic!("the pipeline failed: {error}"),
    }
    begin.elapsed().as_secs_f64()
}

/// Keeps the CPU busy for `cost`.
fn work(item: u64, cost: Duration) -> u64 {
    if !cost.is_zero() {
        let begin = Instant::now();
        while begin.elapsed() < cost {
            std::hint::spin_loop();
        }
    }
    black_box(item.wrapping_add(1))
}
