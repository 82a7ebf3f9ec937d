//! Known faults of certain adapters and drivers, and the fastest ways to transfer their bytes, as
//! data.

/// One op that one adapter with one driver does not run, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirk {
    /// Part of the adapter's name; empty for all.
    pub adapter: &'static str,
    /// Part of the driver's name and version; empty for all.
    pub driver: &'static str,
    /// The op's name.
    pub op: &'static str,
    /// The fault.
    pub reason: &'static str,
}

/// The quirk of an op on an adapter, if there is one.
pub fn find(quirks: &[Quirk], adapter: &str, driver: &str, op: &str) -> Option<Quirk> {
    let applies = |quirk: &&Quirk| adapter.contains(quirk.adapter) && driver.contains(quirk.driver) && op == quirk.op;
    quirks.iter().find(applies).copied()
}

/// The ways of one adapter with one driver that were measured to be faster than the default.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredWays<W> {
    /// Part of the adapter's name; empty for all.
    pub adapter: &'static str,
    /// Part of the driver's name and version; empty for all.
    pub driver: &'static str,
    /// The ways to use.
    pub ways: W,
    /// The measured figures.
    pub reason: &'static str,
}

/// The known ways for this adapter and driver, if there are any.
pub fn known_ways<W: Copy>(known: &[MeasuredWays<W>], adapter: &str, driver: &str) -> Option<W> {
    let applies = |known: &&MeasuredWays<W>| adapter.contains(known.adapter) && driver.contains(known.driver);
    known.iter().find(applies).map(|known| known.ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_ways_are_those_of_their_adapter_and_driver() {
        let known = [MeasuredWays { adapter: "Example", driver: "1.2", ways: 7, reason: "40 GB/s instead of 30" }];
        assert_eq!(known_ways(&known, "Example GPU", "driver 1.2.3"), Some(7));
        assert_eq!(known_ways(&known, "Example GPU", "driver 1.3"), None);
        assert_eq!(known_ways(&known, "Other GPU", "driver 1.2.3"), None);
    }

    #[test]
    fn a_quirk_applies_to_its_adapter_driver_and_op_only() {
        let quirk = Quirk { adapter: "Example", driver: "1.2", op: "sort", reason: "hangs" };
        let quirks = [quirk];
        assert_eq!(find(&quirks, "Example GPU", "driver 1.2.3", "sort"), Some(quirk));
        assert_eq!(find(&quirks, "Example GPU", "driver 1.3", "sort"), None);
        assert_eq!(find(&quirks, "Other GPU", "driver 1.2.3", "sort"), None);
        assert_eq!(find(&quirks, "Example GPU", "driver 1.2.3", "scan"), None);
    }
}
