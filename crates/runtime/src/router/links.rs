//! How long it takes to bring data to a device and back, learned from the transfers that happened, under whatever load there
//! was. Time is latency plus bytes over bandwidth: small transfers teach the first, large ones the second.

use std::sync::atomic::{AtomicU32, Ordering};

/// What is assumed of a link until something crossed it.
const LATENCY_NS_FIRST: f32 = 10_000.0;
const BYTES_PER_NS_FIRST: f32 = 10.0;
/// Up to so many bytes a transfer says more about latency than about bandwidth.
const SMALL_BYTES_MAX: f32 = 32.0 * 1024.0;
/// The weight of the newest transfer once a link is known.
const NEWEST_WEIGHT_MIN: f32 = 1.0 / 8.0;
/// Transfers that are believed without doubt.
const SETTLED_AFTER: u32 = 3;
/// How much one transfer may differ from the average before it counts as no more than that.
const OUTLIER_FACTOR_MAX: f32 = 4.0;
/// Limits that keep a nonsensical measurement from spoiling the estimate.
const LATENCY_NS_RANGE: (f32, f32) = (50.0, 1e8);
const BYTES_PER_NS_RANGE: (f32, f32) = (1e-3, 1e4);

/// Both directions of the way to one device.
#[derive(Default)]
pub(crate) struct Links {
    /// From the host to the device.
    pub(crate) up: Link,
    /// From the device to the host.
    pub(crate) down: Link,
}

/// One direction.
pub(crate) struct Link {
    latency_ns: AtomicU32,
    bytes_per_ns: AtomicU32,
    small_seen: AtomicU32,
    large_seen: AtomicU32,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            latency_ns: AtomicU32::new(LATENCY_NS_FIRST.to_bits()),
            bytes_per_ns: AtomicU32::new(BYTES_PER_NS_FIRST.to_bits()),
            small_seen: AtomicU32::new(0),
            large_seen: AtomicU32::new(0),
        }
    }
}

impl Link {
    /// How long so many bytes take; nothing takes no time.
    pub(crate) fn time_ns(&self, bytes: f32) -> f32 {
        if bytes <= 0.0 { 0.0 } else { self.latency_ns() + bytes / self.bytes_per_ns() }
    }

    /// Learns from one transfer. Written by one thread, the device's worker.
    pub(crate) fn learn(&self, bytes: f32, time_ns: f32) {
        if !(bytes > 0.0 && time_ns > 0.0) {
            return;
        }
        if bytes <= SMALL_BYTES_MAX {
            let latency = (time_ns - bytes / self.bytes_per_ns()).max(LATENCY_NS_RANGE.0);
            self.set_latency(approach(self.latency_ns(), latency, count(&self.small_seen)));
        } else {
            // A large transfer that is faster than the latency says that the latency is wrong.
            if time_ns < self.latency_ns() {
                self.set_latency(time_ns / 2.0);
            }
            let rate = bytes / (time_ns - self.latency_ns()).max(time_ns / 10.0);
            self.set_rate(approach(self.bytes_per_ns(), rate, count(&self.large_seen)));
        }
    }

    /// Sets what was measured on another day.
    pub(crate) fn seed(&self, latency_ns: f32, bytes_per_ns: f32) {
        if !(latency_ns.is_finite() && bytes_per_ns.is_finite()) {
            return;
        }
        self.set_latency(latency_ns);
        self.set_rate(bytes_per_ns);
        self.small_seen.fetch_max(SETTLED_AFTER, Ordering::Relaxed);
        self.large_seen.fetch_max(SETTLED_AFTER, Ordering::Relaxed);
    }

    /// Whether anything crossed it.
    pub(crate) fn is_measured(&self) -> bool {
        self.small_seen.load(Ordering::Relaxed) | self.large_seen.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn latency_ns(&self) -> f32 {
        f32::from_bits(self.latency_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn bytes_per_ns(&self) -> f32 {
        f32::from_bits(self.bytes_per_ns.load(Ordering::Relaxed))
    }

    fn set_latency(&self, latency_ns: f32) {
        let clamped = latency_ns.clamp(LATENCY_NS_RANGE.0, LATENCY_NS_RANGE.1);
        self.latency_ns.store(clamped.to_bits(), Ordering::Relaxed);
    }

    fn set_rate(&self, bytes_per_ns: f32) {
        let clamped = bytes_per_ns.clamp(BYTES_PER_NS_RANGE.0, BYTES_PER_NS_RANGE.1);
        self.bytes_per_ns.store(clamped.to_bits(), Ordering::Relaxed);
    }
}

/// The average that moves toward the newest value by its weight, in proportion. The first value is taken as it is.
fn approach(known: f32, newest: f32, seen: u32) -> f32 {
    let factor_max = if seen < SETTLED_AFTER { f32::MAX } else { OUTLIER_FACTOR_MAX };
    let factor = (newest / known).clamp(1.0 / factor_max, factor_max);
    let weight = (1.0 / (seen as f32 + 1.0)).max(NEWEST_WEIGHT_MIN);
    known * factor.powf(weight)
}

/// Counts one more, and tells how many there were before.
fn count(seen: &AtomicU32) -> u32 {
    let before = seen.load(Ordering::Relaxed);
    seen.store(before.saturating_add(1), Ordering::Relaxed);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_bandwidth_are_found() {
        let link = Link::default();
        assert_eq!(link.time_ns(0.0), 0.0);
        assert!(!link.is_measured());
        // 4 µs and 25 bytes per nanosecond.
        for _ in 0..200 {
            link.learn(4096.0, 4000.0 + 4096.0 / 25.0);
            link.learn(64e6, 4000.0 + 64e6 / 25.0);
        }
        assert!((link.time_ns(1e6) / 44_000.0 - 1.0).abs() < 0.1, "{}", link.time_ns(1e6));
        assert!(link.is_measured());
    }

    #[test]
    fn the_first_transfers_count_at_once() {
        let link = Link::default();
        link.learn(1e6, 20e6);
        assert!(link.time_ns(1e6) > 15e6, "{}", link.time_ns(1e6));
    }

    #[test]
    fn nonsense_does_no_harm() {
        let link = Link::default();
        for _ in 0..1000 {
            link.learn(1e12, 1.0);
            link.learn(1.0, 1e20);
            link.learn(-1.0, 5.0);
            link.learn(5.0, f32::NAN);
        }
        assert!(link.time_ns(1e6).is_finite());
    }
}
