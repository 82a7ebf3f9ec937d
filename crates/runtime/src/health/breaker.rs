//! A circuit breaker for one device.
//!
//! 1. **Closed**: the device works. The last [`WINDOW`] outcomes are remembered. When more than
//!    `error_percent_max` percent of them, and at least `errors_min`, are failures of the device,
//!    the circuit opens.
//! 2. **Open**: the device gets no ops that another device can run, for a wait that doubles with
//!    each opening in a row.
//! 3. **Half-open**: after the wait, up to `probes_max` ops at a time are sent as probes.
//!    `probes_needed` successes close the circuit; one failure opens it again.
//! 4. The circuit does not flap: the wait is reset to its minimum only after a whole window without
//!    a failure. It does not stick: an open circuit always becomes half-open when its wait is over,
//!    and a probe that ends without a verdict gives its place back.
//!
//! Routing reads a few atomics; only outcomes and transitions write. Time is in nanoseconds since
//! the lane's epoch, so that a virtual clock can drive the breaker.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::HealthRules;
use crate::time::nanoseconds;

/// How many outcomes are remembered.
pub(crate) const WINDOW: u32 = 64;

/// The breaker's answer to whether an op may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Send the op.
    Free,
    /// Send the op as a probe, after taking one of the few places for probes.
    Probe,
    /// Send the op elsewhere.
    Barred,
}

/// The state of a device's circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Circuit {
    /// Ops pass.
    Closed = 0,
    /// The device failed too often; ops go elsewhere.
    Open = 1,
    /// A few ops are sent as probes.
    HalfOpen = 2,
}

/// The verdict of a probe, or of any other op, on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Success,
    Failure,
    /// No verdict on the device: the op was cancelled, was too late, or failed through the caller's
    /// fault.
    Neither,
}

/// The circuit breaker of one device. See the module's rules.
pub(crate) struct Breaker {
    /// One bit per outcome, the newest in the lowest bit. A set bit is a failure of the device.
    window: AtomicU64,
    seen: AtomicU32,
    circuit: AtomicU8,
    /// When an open circuit becomes half-open.
    until_ns: AtomicU64,
    /// Number of openings in a row.
    openings: AtomicU32,
    probes_out: AtomicU32,
    probes_passed: AtomicU32,
    transitions: AtomicU64,
}

impl Breaker {
    pub(crate) fn new() -> Breaker {
        Breaker {
            window: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            circuit: AtomicU8::new(Circuit::Closed as u8),
            until_ns: AtomicU64::new(0),
            openings: AtomicU32::new(0),
            probes_out: AtomicU32::new(0),
            probes_passed: AtomicU32::new(0),
            transitions: AtomicU64::new(0),
        }
    }

    /// Whether an op may be sent now. `now_ns` is called only if the time matters.
    pub(crate) fn passage(&self, now_ns: impl FnOnce() -> u64, rules: &HealthRules) -> Admission {
        match self.circuit() {
            Circuit::Closed => Admission::Free,
            Circuit::Open if now_ns() < self.until_ns.load(Ordering::Relaxed) => Admission::Barred,
            Circuit::Open => {
                self.half_open();
                Admission::Probe
            }
            Circuit::HalfOpen if self.probes_out.load(Ordering::Relaxed) < rules.probes_max => Admission::Probe,
            Circuit::HalfOpen => Admission::Barred,
        }
    }

    /// Takes a place for a probe. Returns false if none is left.
    pub(crate) fn take_probe(&self, rules: &HealthRules) -> bool {
        let taken = self.probes_out.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |out| {
            (self.circuit() == Circuit::HalfOpen && out < rules.probes_max).then_some(out + 1)
        });
        taken.is_ok()
    }

    /// Notes how an op ended. Returns true if this opened the circuit.
    pub(crate) fn note(&self, mark: Mark, probe: bool, now_ns: u64, rules: &HealthRules) -> bool {
        if probe {
            let _ = self.probes_out.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |out| out.checked_sub(1));
        }
        let failed = match mark {
            Mark::Neither => return false,
            Mark::Failure => true,
            Mark::Success => false,
        };
        match self.circuit() {
            Circuit::Closed => self.note_closed(failed, now_ns, rules),
            Circuit::HalfOpen if probe && failed => self.open(now_ns, rules),
            Circuit::HalfOpen if probe => {
                if self.probes_passed.fetch_add(1, Ordering::AcqRel) + 1 >= rules.probes_needed {
                    self.close();
                }
                false
            }
            // Ops that were sent before the circuit opened, or that had nowhere else to go, change
            // nothing.
            Circuit::HalfOpen | Circuit::Open => false,
        }
    }

    /// Starts over with a closed circuit. Probes that are in flight give their places back as
    /// before.
    pub(crate) fn forget(&self) {
        self.openings.store(0, Ordering::Relaxed);
        self.close();
    }

    pub(crate) fn circuit(&self) -> Circuit {
        match self.circuit.load(Ordering::Acquire) {
            0 => Circuit::Closed,
            1 => Circuit::Open,
            _ => Circuit::HalfOpen,
        }
    }

    /// Number of probes that have not come back.
    #[cfg(test)]
    pub(crate) fn probes_out(&self) -> u32 {
        self.probes_out.load(Ordering::Relaxed)
    }

    /// How often the circuit changed its state.
    pub(crate) fn transitions(&self) -> u64 {
        self.transitions.load(Ordering::Relaxed)
    }

    fn note_closed(&self, failed: bool, now_ns: u64, rules: &HealthRules) -> bool {
        let window = self.window.load(Ordering::Relaxed);
        let seen = self.seen.load(Ordering::Relaxed);
        if !failed && window == 0 && seen >= WINDOW {
            return false;
        }
        let window = (window << 1) | u64::from(failed);
        let seen = (seen + 1).min(WINDOW);
        self.window.store(window, Ordering::Relaxed);
        self.seen.store(seen, Ordering::Relaxed);
        if window == 0 && seen == WINDOW {
            self.openings.store(0, Ordering::Relaxed);
        }
        let errors = window.count_ones();
        let too_many = f64::from(errors) * 100.0 > rules.error_percent_max * f64::from(seen);
        failed && errors >= rules.errors_min && too_many && self.open(now_ns, rules)
    }

    fn open(&self, now_ns: u64, rules: &HealthRules) -> bool {
        let openings = self.openings.fetch_add(1, Ordering::AcqRel);
        let doubled = rules.open_wait_min.saturating_mul(1 << openings.min(20));
        let wait: Duration = doubled.min(rules.open_wait_max);
        self.until_ns.store(now_ns.saturating_add(nanoseconds(wait)), Ordering::Relaxed);
        self.change_to(Circuit::Open)
    }

    fn half_open(&self) {
        let swapped = self.circuit.compare_exchange(
            Circuit::Open as u8,
            Circuit::HalfOpen as u8,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if swapped.is_ok() {
            self.probes_passed.store(0, Ordering::Relaxed);
            self.transitions.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn close(&self) {
        self.window.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.change_to(Circuit::Closed);
    }

    fn change_to(&self, circuit: Circuit) -> bool {
        let before = self.circuit.swap(circuit as u8, Ordering::AcqRel);
        let changed = before != circuit as u8;
        if changed {
            self.transitions.fetch_add(1, Ordering::Relaxed);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn fail(breaker: &Breaker, times: u32, now_ns: u64, rules: &HealthRules) {
        (0..times).for_each(|_| _ = breaker.note(Mark::Failure, false, now_ns, rules));
    }

    #[test]
    fn it_opens_above_the_limit_and_not_at_it() {
        let rules = HealthRules { errors_min: 1, ..HealthRules::default() };
        let breaker = Breaker::new();
        (0..90).for_each(|_| _ = breaker.note(Mark::Success, false, 0, &rules));
        fail(&breaker, 6, 0, &rules);
        assert_eq!(breaker.circuit(), Circuit::Closed, "6 of 64 is not above 10 %");
        fail(&breaker, 1, 0, &rules);
        assert_eq!(breaker.circuit(), Circuit::Open, "7 of 64 is");
        assert_eq!(breaker.passage(|| 0, &rules), Admission::Barred);
    }

    #[test]
    fn a_few_errors_at_the_start_do_not_open_it() {
        let rules = HealthRules::default();
        let breaker = Breaker::new();
        fail(&breaker, rules.errors_min - 1, 0, &rules);
        assert_eq!(breaker.circuit(), Circuit::Closed);
        (0..1000).for_each(|_| _ = breaker.note(Mark::Neither, false, 0, &rules));
        assert_eq!(breaker.circuit(), Circuit::Closed, "what says nothing about the device does not count");
    }

    #[test]
    fn probes_close_it_and_their_failure_opens_it_for_longer() {
        let rules = HealthRules::default();
        let breaker = Breaker::new();
        fail(&breaker, 10, 0, &rules);
        let mut now = nanoseconds(rules.open_wait_min);
        assert_eq!(breaker.passage(|| now - 1, &rules), Admission::Barred);
        assert_eq!(breaker.passage(|| now, &rules), Admission::Probe);
        for _ in 0..rules.probes_max {
            assert!(breaker.take_probe(&rules));
        }
        assert!(!breaker.take_probe(&rules) && breaker.passage(|| now, &rules) == Admission::Barred);
        assert!(breaker.note(Mark::Failure, true, now, &rules));
        (1..rules.probes_max).for_each(|_| _ = breaker.note(Mark::Neither, true, now, &rules));
        now += nanoseconds(rules.open_wait_min);
        assert_eq!(breaker.passage(|| now, &rules), Admission::Barred, "the second wait is longer");
        now += nanoseconds(rules.open_wait_min);
        assert_eq!(breaker.passage(|| now, &rules), Admission::Probe);
        for _ in 0..rules.probes_needed {
            assert!(breaker.take_probe(&rules));
            breaker.note(Mark::Success, true, now, &rules);
        }
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert_eq!(breaker.passage(|| now, &rules), Admission::Free);
    }

    #[test]
    fn a_device_that_fails_half_the_time_does_not_flap() {
        let rules = HealthRules::default();
        let breaker = Breaker::new();
        let mut openings = 0_u32;
        for step in 0..36_000_u64 {
            let now = step * SECOND / 10;
            let probe = match breaker.passage(|| now, &rules) {
                Admission::Barred => continue,
                Admission::Free => false,
                Admission::Probe => breaker.take_probe(&rules),
            };
            let mark = if step % 2 == 0 { Mark::Failure } else { Mark::Success };
            openings += u32::from(breaker.note(mark, probe, now, &rules));
        }
        let longest = 3600 / rules.open_wait_max.as_secs() as u32;
        assert!(openings <= longest + 12, "{openings} openings in an hour");
    }
}
