//! Known faults of certain adapters and drivers, as data.

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

#[cfg(test)]
mod tests {
    use super::*;

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
