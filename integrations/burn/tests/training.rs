//! Unchanged Burn programs on a device served here: the same loss at every step as on Burn's own
//! CPU backend.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod programs;

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use burn::remote::RemoteHost;
use burn::tensor::Device;
use panoply_burn::{Server, Serving};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;

/// Burn's own backend has one source of random numbers for all threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn served() -> (Serving, Device) {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let serving = Server::new(Arc::new(runtime)).spawn(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let host = RemoteHost::websocket(&format!("ws://{}", serving.address()));
    let device = Device::remote_options(&host).init().unwrap();
    (serving, device)
}

/// Compares a program's losses on Burn's CPU backend and on the server, and prints the server's
/// counters.
fn compare(name: &str, steps: usize, tolerance: f32, program: impl Fn(&Device, usize) -> Vec<f32>) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let expected = program(&Device::flex().autodiff(), steps);
    let (serving, device) = served();
    let started = std::time::Instant::now();
    let losses = program(&device.autodiff(), steps);
    let counters = serving.counters();
    println!("{name}: {:?}, {counters:?}", started.elapsed());
    println!(
        "{name}: first {:?}, last {:?}; Burn's own: {:?}, {:?}",
        losses[0],
        losses[steps - 1],
        expected[0],
        expected[steps - 1]
    );
    assert_eq!(losses.len(), steps);
    for (step, (loss, expected)) in losses.iter().zip(&expected).enumerate() {
        let difference = (loss - expected).abs() / expected.abs().max(0.05);
        assert!(difference < tolerance, "{name}, step {step}: {loss} is not {expected}");
    }
    assert!(losses[steps - 1] < losses[0] * 0.5, "{name} does not learn: {losses:?}");
    assert!(counters.graphs as usize >= steps && counters.graphs_made < counters.graphs / 2, "{counters:?}");
    assert_eq!((counters.fallbacks, counters.panics), (0, 0));
    assert_eq!(serving.endings(), Vec::<String>::new());
}

#[test]
fn a_perceptron_learns_as_on_burns_own_backend() {
    compare("mlp", 60, 2e-3, programs::train_mlp);
}

#[test]
fn a_convolutional_network_learns_as_on_burns_own_backend() {
    compare("cnn", 40, 5e-3, programs::train_cnn);
}
