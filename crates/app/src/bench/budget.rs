//! Selects the cases that suit a device, and divides the time among them.

use std::time::{Duration, Instant};

use panoply::DeviceKind;

use super::cases::Scale;

/// The longest time for one case when the total time is limited.
const CASE_TIME_MAX: Duration = Duration::from_secs(1);
/// The share of a case's time that is measured; the rest is for making its inputs and warming up.
const MEASURED_SHARE: f64 = 0.4;

/// Selects which cases are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Cases that suit the device and are quick to prepare.
    Short,
    /// The cases of the next larger scale as well.
    Full,
    /// The cases that were named on the command line.
    Named,
}

/// Limits the time of measuring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// This time for each case.
    PerCase(Duration),
    /// This time for all cases together.
    InAll(Duration),
}

impl Time {
    /// Whether the total time is limited.
    pub fn is_budget(self) -> bool {
        matches!(self, Time::InAll(_))
    }
}

/// Whether a case says enough about a device to be worth its time.
pub fn suits(scale: Scale, device: DeviceKind, extent: Extent) -> bool {
    let (short, full) = match device {
        DeviceKind::SoftwareGpu => (Scale::Small, Scale::Medium),
        DeviceKind::DiscreteGpu => (Scale::Large, Scale::Huge),
        _ => (Scale::Medium, Scale::Large),
    };
    match extent {
        Extent::Short => scale <= short,
        Extent::Full => scale <= full,
        Extent::Named => true,
    }
}

/// Divides the remaining time among the remaining cases.
pub struct Budget {
    time: Time,
    begun: Instant,
    cases_left: usize,
}

impl Budget {
    /// Starts the budget for this number of cases.
    pub fn new(time: Time, cases: usize) -> Budget {
        Budget { time, begun: Instant::now(), cases_left: cases }
    }

    /// Returns how long the next case is measured. `None` if no time is left.
    pub fn next(&mut self) -> Option<Duration> {
        let share = share(self.time, self.begun.elapsed(), self.cases_left);
        self.cases_left = self.cases_left.saturating_sub(1);
        share
    }
}

fn share(time: Time, elapsed: Duration, cases_left: usize) -> Option<Duration> {
    match time {
        Time::PerCase(time) => Some(time),
        Time::InAll(limit) => {
            let left = limit.checked_sub(elapsed).filter(|left| !left.is_zero())?;
            Some((left / cases_left.max(1) as u32).mul_f64(MEASURED_SHARE).min(CASE_TIME_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_in_all_is_shared_by_what_is_left() {
        let minute = Time::InAll(60 * SECOND);
        assert_eq!(share(minute, Duration::ZERO, 60), Some(SECOND.mul_f64(MEASURED_SHARE)));
        assert_eq!(share(minute, Duration::ZERO, 2), Some(CASE_TIME_MAX));
        assert_eq!(share(minute, 59 * SECOND, 10), Some(SECOND.mul_f64(MEASURED_SHARE) / 10));
        assert_eq!(share(minute, 60 * SECOND, 10), None);
        assert_eq!(share(Time::PerCase(3 * SECOND), 600 * SECOND, 10), Some(3 * SECOND));
    }

    #[test]
    fn larger_devices_get_larger_cases() {
        assert!(!suits(Scale::Medium, DeviceKind::SoftwareGpu, Extent::Short));
        assert!(suits(Scale::Medium, DeviceKind::Cpu, Extent::Short));
        assert!(
            !suits(Scale::Large, DeviceKind::Cpu, Extent::Short) && suits(Scale::Large, DeviceKind::Cpu, Extent::Full)
        );
        assert!(suits(Scale::Large, DeviceKind::DiscreteGpu, Extent::Short));
        assert!(suits(Scale::Huge, DeviceKind::SoftwareGpu, Extent::Named));
    }
}
