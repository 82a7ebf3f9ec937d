//! How much memory this process may use, on the whole machine or on one NUMA node.

use std::path::Path;

use super::cgroup;
use super::nodes::{NODE_MAX, NODES};
use super::sysfs::Tree;

/// The memory of a machine or node, within the limits of the process's control group. Values that
/// the system does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// The part that could be allocated now.
    pub available_bytes: Option<u64>,
}

impl Memory {
    /// The memory of a node, or of the whole machine, by the `sys` and `proc` below `root`, which
    /// is `/` except in tests. The only node of a machine has the whole machine's memory: virtual
    /// machines often report less for it.
    ///
    /// A control group with less memory than that counts instead, in both of its versions, and so
    /// do the groups above it. On a machine with several nodes each node may claim the whole limit,
    /// because the kernel does not divide it.
    pub fn read(root: &Path, node: Option<u32>) -> Memory {
        let mut tree = Tree::new(root);
        let nodes = tree.numbered(NODES, "node", NODE_MAX).len();
        let of_node = node.filter(|_| nodes > 1).and_then(|node| tree.text(&format!("{NODES}/node{node}/meminfo")));
        let text = of_node.or_else(|| tree.text("proc/meminfo")).or_else(|| {
            let only = node.filter(|_| nodes == 1)?;
            tree.text(&format!("{NODES}/node{only}/meminfo"))
        });
        let text = text.unwrap_or_default();
        let (mut total, mut available) = (meminfo_bytes(&text, "MemTotal:"), available_bytes(&text));
        for limit in cgroup::read_memory(&mut tree) {
            let left = limit.limit_bytes.saturating_sub(limit.used_bytes);
            total = Some(total.map_or(limit.limit_bytes, |bytes| bytes.min(limit.limit_bytes)));
            available = Some(available.map_or(left, |bytes| bytes.min(left)));
        }
        Memory { total_bytes: total, available_bytes: available }
    }

    /// The share of memory in use, 0 to 100.
    pub fn used_percent(&self) -> Option<f32> {
        let total = self.total_bytes.filter(|total| *total > 0)?;
        Some(total.saturating_sub(self.available_bytes?) as f32 / total as f32 * 100.0)
    }
}

/// A node's `meminfo` has no `MemAvailable`: free pages plus the page cache come close.
fn available_bytes(meminfo: &str) -> Option<u64> {
    meminfo_bytes(meminfo, "MemAvailable:").or_else(|| {
        let cache = meminfo_bytes(meminfo, "FilePages:").unwrap_or(0);
        Some(meminfo_bytes(meminfo, "MemFree:")? + cache)
    })
}

/// Reads `MemTotal:  131072 kB`, also with `Node 0` in front of it.
pub(super) fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_ascii_whitespace().any(|word| word == key))?;
    let number = line.split_once(key)?.1.trim_ascii().strip_suffix("kB")?.trim_ascii_end();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_both_forms() {
        assert_eq!(meminfo_bytes("MemTotal:  1024 kB\n", "MemTotal:"), Some(1 << 20));
        assert_eq!(meminfo_bytes("Node 0 MemTotal:  2 kB\n", "MemTotal:"), Some(2048));
        assert_eq!(meminfo_bytes("MemTotal: many kB\n", "MemTotal:"), None);
        assert_eq!(meminfo_bytes("", "MemTotal:"), None);
    }
}
