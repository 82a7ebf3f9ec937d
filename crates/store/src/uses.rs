//! Counts where chunks were compressed and decompressed, so that a wish for a device is never
//! ignored in silence.

use std::sync::{Mutex, PoisonError};

use panoply_core::{DeviceId, Outcome};

/// Maximal number of devices that are counted. A runtime has fewer.
const DEVICES_MAX: usize = 1024;

/// The ops that one device ran for a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionUse {
    /// The device.
    pub device: DeviceId,
    /// Number of ops that compressed chunks. One op has many chunks.
    pub compressed: u64,
    /// Number of ops that decompressed chunks.
    pub decompressed: u64,
    /// Number of those ops that came here after another device had failed.
    pub fallbacks: u64,
}

/// The devices used so far. Locked for a moment by a thread that has an outcome.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<Vec<CompressionUse>>);

/// The kind of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

impl Uses {
    /// Counts an outcome, and returns its output.
    pub(crate) fn count<T>(&self, direction: Direction, outcome: Outcome<T>) -> T {
        let Outcome { output, report } = outcome;
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = uses.iter().position(|known| known.device == report.device).or_else(|| {
            let new = CompressionUse { device: report.device, compressed: 0, decompressed: 0, fallbacks: 0 };
            (uses.len() < DEVICES_MAX).then(|| {
                uses.push(new);
                uses.len() - 1
            })
        });
        if let Some(known) = place.and_then(|place| uses.get_mut(place)) {
            known.compressed += u64::from(direction == Direction::Compress);
            known.decompressed += u64::from(direction == Direction::Decompress);
            known.fallbacks += u64::from(report.fallback.is_some());
        }
        output
    }

    /// The devices, in the order of their first op.
    pub(crate) fn listed(&self) -> Vec<CompressionUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
