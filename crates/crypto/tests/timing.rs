//! Whether the time of what this crate itself does with secrets depends on them: two classes of input in random order, and Welch's t of
//! their times, as dudect does it. AWS-LC's functions are not measured here.

use std::hint::black_box;
use std::time::Instant;

use panoply_conformance::values::Random;
use panoply_crypto::cipher::unpadded_len;

const SAMPLES: usize = 40_000;
/// Calls for each sample, so that the clock's steps do not count.
const CALLS: usize = 200;
/// A difference that is there grows with the samples; one that others on the machine cause does not come every time.
const T_MAX: f64 = 10.0;
const ATTEMPTS: usize = 8;

/// Welch's t of the times of two classes, without the slowest tenth.
fn t_of(mut classes: [Vec<f64>; 2]) -> f64 {
    let figures = classes.each_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times.truncate(times.len() * 9 / 10);
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    let [(mean, error), (other_mean, other_error)] = figures;
    (mean - other_mean) / (error + other_error).sqrt().max(1e-12)
}

fn measured(inputs: [[u8; 32]; 2], work: impl Fn(&[u8; 32])) -> f64 {
    let (mut random, mut classes) = (Random::new(50), [Vec::new(), Vec::new()]);
    for _ in 0..SAMPLES {
        let class = random.below(2) as usize;
        let input = inputs[class];
        let start = Instant::now();
        for _ in 0..CALLS {
            work(black_box(&input));
        }
        classes[class].push(start.elapsed().as_nanos() as f64);
    }
    t_of(classes)
}

/// Whether no difference is found in one of several attempts; the machine may be busy with something else.
fn is_constant(inputs: [[u8; 32]; 2], work: impl Fn(&[u8; 32]) + Copy) -> bool {
    (0..ATTEMPTS).any(|_| {
        let t = measured(inputs, work);
        println!("t = {t:.2}");
        t.abs() < T_MAX
    })
}

#[test]
fn padding_that_is_wrong_takes_as_long_wherever_it_is_wrong() {
    let (mut first, mut last) = ([16; 32], [16; 32]);
    first[16] = 15;
    last[30] = 15;
    assert!(unpadded_len(&first).is_err() && unpadded_len(&last).is_err());
    let check = |blocks: &[u8; 32]| {
        let _ = black_box(unpadded_len(blocks));
    };
    assert!(is_constant([first, last], check));
    // So does a padding of one byte that is too long, and one of sixteen that is wrong.
    let mut long = [1; 32];
    long[31] = 17;
    assert!(is_constant([long, first], check));
}

#[test]
fn the_measure_finds_a_comparison_that_stops_early() {
    let (mut first, mut last) = ([16; 32], [16; 32]);
    first[0] = 15;
    last[31] = 15;
    let stops_early = |blocks: &[u8; 32]| {
        black_box(blocks.iter().position(|byte| black_box(*byte) != 16));
    };
    assert!(!is_constant([first, last], stops_early));
}
