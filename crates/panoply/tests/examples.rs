//! The examples that other programs are modelled on give the answers that they claim to give.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply::prelude::*;

#[allow(dead_code)] // The example's main function.
#[path = "../examples/accelerated.rs"]
mod accelerated;
#[allow(dead_code)] // The example's main function.
#[path = "../examples/recognise.rs"]
mod recognise;
#[allow(dead_code)] // The example's main function.
#[path = "../examples/sealing.rs"]
mod sealing;

fn runtime() -> Runtime {
    Runtime::builder().only([Api::CPU]).build().unwrap()
}

#[test]
fn text_that_is_upside_down_is_recognised() {
    let found = recognise::recognise(&runtime(), recognise::own_pictures().unwrap(), None).unwrap();
    assert_eq!(found.len(), 2);
    assert!(found[0].upside_down > 0.9 && found[1].upside_down < 0.1, "{found:?}");
    assert!(found.iter().all(|found| found.objects.is_empty()));
}

#[test]
fn records_are_stored_and_restored_both_ways() {
    let times = sealing::run(&std::sync::Arc::new(runtime()), 5, 7, 300).unwrap();
    assert!(!times.one_by_one.is_zero() && !times.pipeline.is_zero());
}

#[test]
fn workers_with_parts_of_a_device_find_the_best_row() {
    let vector: Vec<f32> = (0..64).map(|column| ((5000 * 31 + column * 17) % 101) as f32 / 101.0 - 0.5).collect();
    let product = |row: usize| -> f32 {
        (0..64).map(|column| (((row * 31 + column * 17) % 101) as f32 / 101.0 - 0.5) * vector[column]).sum()
    };
    let best = accelerated::ask(&runtime(), &vector).unwrap();
    let largest = (0..8192).map(product).fold(f32::MIN, f32::max);
    assert!((best.product - largest).abs() < 1e-3 && (product(best.row) - largest).abs() < 1e-3, "{best:?}, {largest}");
}
