//! How long data takes to a device and back, learned from actual transfers under the actual load.
//! Time is latency plus bytes over bandwidth. A transfer updates both estimates, each in proportion
//! to its share of the expected time: small transfers determine the latency, large ones the
//! bandwidth, and those between have little weight in either.

use std::sync::atomic::{AtomicU32, Ordering};

/// The assumptions about a link before its first transfer.
const LATENCY_NS_FIRST: f32 = 10_000.0;
const BYTES_PER_NS_FIRST: f32 = 10.0;
/// The weight of the newest transfer once a link is known.
const NEWEST_WEIGHT_MIN: f32 = 1.0 / 8.0;
/// Until this much evidence has accumulated, outliers are not clamped. The unit is a transfer whose
/// time was all latency, or all bandwidth.
const SETTLED_AFTER: f32 = 3.0;
/// Evidence is capped here. The newest transfer has its minimum weight long before.
const EVIDENCE_MAX: f32 = 1e6;
/// Outliers are clamped to this factor times the average.
const OUTLIER_FACTOR_MAX: f32 = 4.0;
/// Limits that keep a nonsensical measurement from spoiling the estimate.
const LATENCY_NS_RANGE: (f32, f32) = (50.0, 1e8);
const BYTES_PER_NS_RANGE: (f32, f32) = (1e-3, 1e4);

/// Both directions of the link to one device.
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
    /// The evidence for each estimate: the sum of the transfers' weights, as f32 bits.
    latency_evidence: AtomicU32,
    rate_evidence: AtomicU32,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            latency_ns: AtomicU32::new(LATENCY_NS_FIRST.to_bits()),
            bytes_per_ns: AtomicU32::new(BYTES_PER_NS_FIRST.to_bits()),
            latency_evidence: AtomicU32::new(0),
            rate_evidence: AtomicU32::new(0),
        }
    }
}

impl Link {
    /// The predicted time of a transfer. Zero bytes take no time.
    pub(crate) fn time_ns(&self, bytes: f32) -> f32 {
        if bytes <= 0.0 { 0.0 } else { self.latency_ns() + bytes / self.bytes_per_ns() }
    }

    /// Learns from one transfer. Only one thread, the device's worker, calls this.
    pub(crate) fn learn(&self, bytes: f32, time_ns: f32) {
        if !(bytes > 0.0 && time_ns > 0.0) {
            return;
        }
        // A transfer that is faster than both the latency and the time for its bytes shows that the
        // latency is wrong.
        if time_ns < self.latency_ns().min(bytes / self.bytes_per_ns()) {
            self.set_latency(time_ns / 2.0);
        }
        let (latency, rate) = (self.latency_ns(), self.bytes_per_ns());
        let moving_share = (bytes / rate) / (latency + bytes / rate);
        let waited = (time_ns - bytes / rate).max(time_ns / 10.0);
        self.set_latency(approach(latency, waited, 1.0 - moving_share, &self.latency_evidence));
        let moved = bytes / (time_ns - latency).max(time_ns / 10.0);
        self.set_rate(approach(rate, moved, moving_share, &self.rate_evidence));
    }

    /// Sets values that were measured in an earlier run.
    pub(crate) fn seed(&self, latency_ns: f32, bytes_per_ns: f32) {
        if !(latency_ns.is_finite() && bytes_per_ns.is_finite()) {
            return;
        }
        self.set_latency(latency_ns);
        self.set_rate(bytes_per_ns);
        for evidence in [&self.latency_evidence, &self.rate_evidence] {
            // Non-negative floats have the same order as their bits.
            evidence.fetch_max(SETTLED_AFTER.to_bits(), Ordering::Relaxed);
        }
    }

    /// Whether any transfer has crossed the link.
    pub(crate) fn is_measured(&self) -> bool {
        self.latency_evidence.load(Ordering::Relaxed) | self.rate_evidence.load(Ordering::Relaxed) != 0
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

/// Moves the average toward the newest value, as a ratio. `share` is the value's share of the
/// transfer's time. Its square is the transfer's weight relative to the evidence so far, and a
/// share below one half scales the step down once more.
fn approach(known: f32, newest: f32, share: f32, evidence: &AtomicU32) -> f32 {
    let before = f32::from_bits(evidence.load(Ordering::Relaxed));
    let weight = share * share;
    let after = before + weight.max(f32::MIN_POSITIVE);
    evidence.store(after.min(EVIDENCE_MAX).to_bits(), Ordering::Relaxed);
    let factor_max = if before < SETTLED_AFTER { f32::MAX } else { OUTLIER_FACTOR_MAX };
    let factor = (newest / known).clamp(1.0 / factor_max, factor_max);
    let step = (weight / after).max(weight * NEWEST_WEIGHT_MIN);
    known * factor.powf(if share < 0.5 { step * share } else { step })
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

    /// Most transfers of a program are of medium size, and their latency varies; the bandwidth must
    /// not follow that.
    #[test]
    fn transfers_of_medium_size_do_not_disturb_the_bandwidth() {
        let link = Link::default();
        let time = |bytes: f32, jitter: f32| 10_000.0 * jitter + bytes / 55.0;
        for round in 0..100 {
            let jitter = 0.8 + 0.4 * (round % 7) as f32 / 6.0;
            link.learn(4096.0, time(4096.0, jitter));
            if round < 6 {
                link.learn(256e6, time(256e6, jitter));
            }
            for bytes in [65_536.0, 131_072.0, 262_144.0, 1e6] {
                link.learn(bytes, time(bytes, jitter));
            }
        }
        assert!((link.bytes_per_ns() / 55.0 - 1.0).abs() < 0.15, "{} bytes/ns", link.bytes_per_ns());
        assert!((link.latency_ns() / 10_000.0 - 1.0).abs() < 0.25, "{} ns", link.latency_ns());
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
