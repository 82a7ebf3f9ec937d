//! Shows a program that survives failures of a device: every op has exactly one outcome, the error
//! says whose fault it was, and the device recovers by itself. The device is simulated; the results
//! are real.
//!
//!     cargo run --release --example degrade

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use panoply::WorkerLimits;
use panoply::prelude::*;
use panoply::testing::{Fault, Script, virtual_backend};

fn main() -> Result<(), Box<dyn Error>> {
    let script = Script::new().latency(Duration::from_micros(200));
    let backend = virtual_backend()?.device(script);
    let control = backend.control(0).ok_or("the device was just added")?;
    let limits = WorkerLimits { op_time_max: Duration::from_millis(200), ..Default::default() };
    let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).limits(limits).build()?;

    let matrix = Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3])?;
    let faults = [
        ("an op fails", Fault::Error),
        ("memory runs out", Fault::OutOfMemory),
        ("the device is lost", Fault::Lost),
        ("the engine panics", Fault::Panic),
        ("the device never answers", Fault::Hang),
    ];
    // The panic is intended; its default message would only clutter the output.
    std::panic::set_hook(Box::new(|_| {}));
    for (what, fault) in faults {
        control.inject(fault);
        match runtime.run(Transpose::new(&matrix)).wait() {
            Ok(_) => println!("{what:<26} nothing happened"),
            Err(error) => println!("{what:<26} {:?}: {error}", error.kind()),
        }
        // An op that failed through the device may be retried, here or elsewhere. A caller's error
        // must not be retried.
        let outcome = runtime.run(Transpose::new(&matrix)).with_report().wait()?;
        assert_eq!(outcome.output.as_slice::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        println!("{:<26} {} answered {:?} later", "and then", outcome.report.device, outcome.report.ran);
    }

    // The caller's own mistake is refused before it reaches any device.
    if let Err(error) = runtime.run(Transpose::with_order(&matrix, &[0, 0])).wait() {
        println!("{:<26} {:?}: {error}", "a wrong argument", error.kind());
    }

    for worker in runtime.workers() {
        let counters = worker.counters;
        println!(
            "{} is {:?}: {} ops accepted, {} completed, {} failed, reopened {} times",
            worker.device, worker.state, counters.accepted, counters.completed, counters.failed, counters.reopened
        );
    }
    Ok(())
}
