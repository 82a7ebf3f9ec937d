//! The memory that the process can still get: of the machine or a NUMA node, within the memory
//! limits of its cgroups.

use std::fs;
use std::path::Path;

use crate::backend::{free_and_reclaimable_bytes, meminfo_bytes};

/// The most groups above each other that are looked at.
const GROUPS_MAX: usize = 32;

/// Bytes that are available below `root`, which is `/` except in tests, if the kernel reports them.
pub(crate) fn available_bytes(root: &Path, node: Option<u32>) -> Option<u64> {
    let file = match node {
        Some(node) => root.join(format!("sys/devices/system/node/node{node}/meminfo")),
        None => root.join("proc/meminfo"),
    };
    let meminfo = fs::read_to_string(file).ok()?;
    let free = meminfo_bytes(&meminfo, "MemAvailable:").or_else(|| free_and_reclaimable_bytes(&meminfo))?;
    Some(left_in_groups(root).map_or(free, |left| left.min(free)))
}

/// The least that the limits of the process' cgroup and of the groups above it leave. `None` if
/// there is no limit.
fn left_in_groups(root: &Path) -> Option<u64> {
    let listed = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, limit, usage) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max", "memory.current"),
            named if named.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return None,
        };
        let top = root.join(mount);
        // A path above the process' own view of the groups begins with `..`.
        let path = if path.contains("..") { "" } else { path.trim_start_matches('/') };
        let group = top.join(path);
        let groups = group.ancestors().take_while(|group| group.starts_with(&top)).take(GROUPS_MAX);
        groups.filter_map(|group| left_in(group, limit, usage)).min()
    };
    listed.lines().filter_map(of_line).min()
}

fn left_in(group: &Path, limit: &str, usage: &str) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // The word `max` means that there is no limit.
    let (limit, used) = (number(limit)?, number(usage)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The kernel drops unused pages of files before it refuses memory.
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_of_the_groups_counts() {
        let root = std::env::temp_dir().join(format!("panoply-available-{}", std::process::id()));
        let write = |file: &str, content: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 800 kB\n");
        assert_eq!(available_bytes(&root, None), Some(800 * 1024), "without groups");
        write("proc/self/cgroup", "0::/outer/inner\n");
        write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
        write("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
        assert_eq!(available_bytes(&root, None), Some(800 * 1024), "without a limit");
        write("sys/fs/cgroup/outer/memory.max", "100000\n");
        write("sys/fs/cgroup/outer/memory.current", "70000\n");
        assert_eq!(available_bytes(&root, None), Some(30_000), "the limit of the group above");
        write("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 5000\n");
        assert_eq!(available_bytes(&root, None), Some(35_000), "the cache of files is given up");
        write("proc/self/cgroup", "4:cpu,memory:/job\n0::/\n");
        write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9000\n");
        write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "9500\n");
        assert_eq!(available_bytes(&root, None), Some(0), "the older form, over its limit");
        write("sys/devices/system/node/node1/meminfo", "Node 1 MemFree: 3 kB\nNode 1 FilePages: 4 kB\n");
        write("proc/self/cgroup", "0::/../../elsewhere\n");
        assert_eq!(available_bytes(&root, Some(1)), Some(7 * 1024));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(available_bytes(&root, None), None);
    }
}
