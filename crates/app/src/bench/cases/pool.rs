//! Cases of the memory pools: chains of ops with the pools' caches, and without them.

use std::sync::Arc;

use panoply::prelude::{Error, Map, Runtime, Tensor};
use panoply::{MemoryLimits, OpenOptions, Pick, Selection};

use crate::bench::cases::case::{Amount, Case, MI, Scale, count_name};
use crate::bench::place::{BenchDevice, Runner};

/// Ops of a chain, each on the answer of the one before.
const OPS: usize = 8;

/// All cases of the pools.
pub const CASES: &[&dyn Case] = &[
    &ChainCase { cached: true, elements: MI, scale: Scale::Small },
    &ChainCase { cached: false, elements: MI, scale: Scale::Small },
    &ChainCase { cached: true, elements: 64 * MI, scale: Scale::Large },
    &ChainCase { cached: false, elements: 64 * MI, scale: Scale::Large },
];

/// A chain of ops whose last answer comes to the host.
struct ChainCase {
    /// Whether the pools cache memory, or have the size zero.
    cached: bool,
    elements: usize,
    scale: Scale,
}

impl ChainCase {
    fn name_of(cached: bool, elements: usize) -> String {
        format!("pool/{}/chain{OPS}/{}", if cached { "cached" } else { "uncached" }, count_name(elements))
    }
}

impl Case for ChainCase {
    fn name(&self) -> String {
        ChainCase::name_of(self.cached, self.elements)
    }

    fn amount(&self) -> Amount {
        Amount::TimeOnly
    }

    fn scale(&self) -> Scale {
        self.scale
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let place = if self.cached { place.clone() } else { without_caches(place)? };
        let input = place.resident(&Tensor::from_vec(vec![1.5_f32; self.elements], [self.elements])?)?;
        Ok(Box::new(move || {
            let mut answer = input.clone();
            for _ in 0..OPS {
                answer = place.run(Map::neg(&answer)).wait()?;
            }
            answer.as_bytes()?;
            Ok(None)
        }))
    }
}

/// The same device in a runtime whose pools cache nothing.
fn without_caches(place: &BenchDevice) -> panoply::Result<BenchDevice> {
    let memory = MemoryLimits { pool_bytes_max: Some(0), pinned_bytes_max: Some(0), ..MemoryLimits::default() };
    let device = place.device.clone();
    let selection = Selection { pick: vec![Pick::Id(device.id)], ..Selection::default() };
    let builder = Runtime::builder().only([device.id.api]).selection(selection).without_profile();
    let builder = builder.open_options(OpenOptions { memory, ..OpenOptions::default() });
    let runtime = builder.build().map_err(|error| Error::Unsupported { op: "bench", reason: error.to_string() })?;
    Ok(BenchDevice { runtime: Arc::new(runtime), device })
}

/// How many times as fast each chain is with the caches as without them, of all pairs whose times
/// `time` knows, as a sentence.
pub fn gains(time: impl Fn(&str) -> Option<f64>) -> Vec<String> {
    let sizes = [MI, 64 * MI];
    let gain = |elements: usize| {
        let (cached, uncached) = (ChainCase::name_of(true, elements), ChainCase::name_of(false, elements));
        let ratio = time(&uncached)? / time(&cached)?;
        Some(format!("{cached}: {ratio:.2} times as fast as without the caches"))
    };
    sizes.into_iter().filter_map(gain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_needs_both_times() {
        let time = |name: &str| match name {
            "pool/cached/chain8/1Mi" => Some(2.0),
            "pool/uncached/chain8/1Mi" => Some(5.0),
            "pool/cached/chain8/64Mi" => Some(1.0),
            _ => None,
        };
        assert_eq!(gains(time), ["pool/cached/chain8/1Mi: 2.50 times as fast as without the caches"]);
    }
}
