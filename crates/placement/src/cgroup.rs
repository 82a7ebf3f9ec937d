//! The limits of the process's control group: which CPUs, how much of their time, and how much
//! memory.
//!
//! Version 2 is read from `/sys/fs/cgroup`, version 1 from `/sys/fs/cgroup/<controller>`; a machine
//! may have both. In a container the group's path is often that of the host while the mount shows
//! the container's own group at its root, so a path that does not exist stands for the root of the
//! mount.

use panoply_core::cpu_set::CpuSet;

use super::sysfs::{Problem, Tree};

/// The most levels of nested groups that are read.
const DEPTH_MAX: usize = 64;

/// The most lines of `/proc/self/cgroup` that are read: there is one per hierarchy.
const HIERARCHIES_MAX: usize = 64;

/// CPU time that a control group grants: `quota_us` in every `period_us`, summed over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time per period.
    pub quota_us: u64,
    /// The period in microseconds, never zero.
    pub period_us: u64,
}

impl CpuQuota {
    /// The number of whole CPUs that the quota keeps busy, at least one. Rounded down: a worker on
    /// a fraction of a CPU is throttled in the middle of its work.
    pub fn cpus(&self) -> usize {
        usize::try_from(self.quota_us / self.period_us).unwrap_or(usize::MAX).max(1)
    }

    fn is_below(&self, other: &CpuQuota) -> bool {
        u128::from(self.quota_us) * u128::from(other.period_us)
            < u128::from(other.quota_us) * u128::from(self.period_us)
    }
}

/// Both limits. `None` if there is no limit.
#[derive(Default)]
pub(super) struct Limits {
    pub cpus: Option<CpuSet>,
    pub quota: Option<CpuQuota>,
}

/// Reads the limits of the control group that `/proc/self/cgroup` names.
pub(super) fn read_limits(tree: &mut Tree<'_>) -> Limits {
    let mut limits = Limits::default();
    for (controllers, path) in groups(tree) {
        if controllers.is_empty() {
            VERSION_2.iter().for_each(|mount| limits.read_version_2(tree, mount, &path));
        }
        for controller in controllers.split(',') {
            match controller {
                "cpuset" => limits.read_cpuset(tree, "sys/fs/cgroup/cpuset", &path),
                "cpu" if tree.exists("sys/fs/cgroup/cpu") => limits.read_cfs(tree, "sys/fs/cgroup/cpu", &path),
                "cpu" => limits.read_cfs(tree, "sys/fs/cgroup/cpu,cpuacct", &path),
                _ => {}
            }
        }
    }
    limits
}

/// Where version 2 is mounted, alone or beside version 1.
const VERSION_2: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];

/// The memory of a control group with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    /// The most bytes that the group may use.
    pub limit_bytes: u64,
    /// The bytes that it uses, without cached files that the kernel can drop at once.
    pub used_bytes: u64,
}

/// A limit from here on means that there is none: version 1 writes the largest number of pages.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The memory limits of the process's control group and of those above it.
pub(super) fn read_memory(tree: &mut Tree<'_>) -> Vec<MemoryLimit> {
    let mut limits = Vec::new();
    for (controllers, path) in groups(tree) {
        if controllers.is_empty() {
            let files = ["memory.max", "memory.current", "inactive_file"];
            VERSION_2.iter().for_each(|mount| read_memory_of(tree, mount, &path, files, &mut limits));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            let files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
            read_memory_of(tree, "sys/fs/cgroup/memory", &path, files, &mut limits);
        }
    }
    limits
}

fn read_memory_of(
    tree: &mut Tree<'_>,
    mount: &str,
    path: &str,
    [limit, used, dropped]: [&str; 3],
    limits: &mut Vec<MemoryLimit>,
) {
    for group in ancestry(tree, mount, path) {
        let mut number = |file: &str| tree.optional_text(&format!("{group}/{file}"))?.trim_ascii().parse::<u64>().ok();
        let (limit_bytes, used_bytes) = (number(limit), number(used).unwrap_or(0));
        let Some(limit_bytes) = limit_bytes.filter(|bytes| *bytes < NO_LIMIT_BYTES) else { continue };
        let stat = tree.optional_text(&format!("{group}/memory.stat")).unwrap_or_default();
        let is_it = |line: &&str| line.split_ascii_whitespace().next() == Some(dropped);
        let line = stat.lines().find(is_it).and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        limits.push(MemoryLimit { limit_bytes, used_bytes: used_bytes.saturating_sub(line.unwrap_or(0)) });
    }
}

/// The controllers and the path of each control group of the process. Version 2 has no controllers
/// here.
fn groups(tree: &mut Tree<'_>) -> Vec<(String, String)> {
    let text = tree.optional_text("proc/self/cgroup").unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines().take(HIERARCHIES_MAX) {
        let mut fields = line.splitn(3, ':');
        match (fields.next(), fields.next(), fields.next()) {
            (Some(_), Some(controllers), Some(path)) => groups.push((controllers.to_owned(), path.to_owned())),
            _ => tree.note("proc/self/cgroup", Problem::malformed("hierarchy:controllers:path", line)),
        }
    }
    groups
}

impl Limits {
    fn read_version_2(&mut self, tree: &mut Tree<'_>, mount: &str, path: &str) {
        for group in ancestry(tree, mount, path) {
            // The nearest file already takes the groups above it into account.
            if self.cpus.is_none() {
                self.cpus =
                    tree.optional_cpus(&format!("{group}/cpuset.cpus.effective")).filter(|cpus| !cpus.is_empty());
            }
            let file = format!("{group}/cpu.max");
            if let Some(text) = tree.optional_text(&file) {
                match parse_cpu_max(&text) {
                    Some(quota) => self.limit(quota),
                    None => tree.note(&file, Problem::malformed("a quota and a period in microseconds", &text)),
                }
            }
        }
    }

    fn read_cpuset(&mut self, tree: &mut Tree<'_>, mount: &str, path: &str) {
        for group in ancestry(tree, mount, path) {
            for file in ["cpuset.effective_cpus", "cpuset.cpus"] {
                if self.cpus.is_none() {
                    self.cpus = tree.optional_cpus(&format!("{group}/{file}")).filter(|cpus| !cpus.is_empty());
                }
            }
        }
    }

    fn read_cfs(&mut self, tree: &mut Tree<'_>, mount: &str, path: &str) {
        for group in ancestry(tree, mount, path) {
            let (quota, period) = (format!("{group}/cpu.cfs_quota_us"), format!("{group}/cpu.cfs_period_us"));
            if !tree.exists(&quota) {
                continue;
            }
            let (Some(quota_us), Some(period_us)) = (tree.number(&quota), tree.number(&period)) else { continue };
            match (u64::try_from(quota_us), u64::try_from(period_us)) {
                (Ok(quota_us), Ok(period_us)) if period_us > 0 => self.limit(Some(CpuQuota { quota_us, period_us })),
                // A quota of -1 is no limit.
                (Err(_), _) => {}
                _ => tree.note(&period, Problem::malformed("a period in microseconds", &period_us.to_string())),
            }
        }
    }

    /// Applies the quota of one group. Every ancestor limits its descendants, so the smallest share
    /// counts.
    fn limit(&mut self, quota: Option<CpuQuota>) {
        if let Some(quota) = quota
            && self.quota.is_none_or(|known| quota.is_below(&known))
        {
            self.quota = Some(quota);
        }
    }
}

/// The group's folder and those above it, down to the mount itself.
fn ancestry(tree: &Tree<'_>, mount: &str, path: &str) -> Vec<String> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let mut folders = vec![mount.to_owned()];
    // A path with `..` lies outside this process's view of the hierarchy.
    if names.len() <= DEPTH_MAX && names.iter().all(|name| *name != "..") {
        for name in names {
            let folder = format!("{}/{name}", folders[folders.len() - 1]);
            if !tree.exists(&folder) {
                break;
            }
            folders.push(folder);
        }
    }
    folders.reverse();
    folders
}

/// Parses `150000 100000` or `max 100000`. The outer `None` is a parse error, the inner one means
/// no limit.
fn parse_cpu_max(text: &str) -> Option<Option<CpuQuota>> {
    let mut words = text.split_ascii_whitespace();
    let quota = words.next()?;
    let period_us: u64 = words.next().unwrap_or("100000").parse().ok()?;
    if period_us == 0 || words.next().is_some() {
        return None;
    }
    if quota == "max" {
        return Some(None);
    }
    Some(Some(CpuQuota { quota_us: quota.parse().ok()?, period_us }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_become_whole_cpus() {
        let cpus = |text| parse_cpu_max(text).unwrap().map(|quota| quota.cpus());
        assert_eq!(cpus("max 100000\n"), None);
        assert_eq!(cpus("150000 100000"), Some(1));
        assert_eq!(cpus("400000 100000"), Some(4));
        assert_eq!(cpus("5000 100000"), Some(1));
        assert_eq!(cpus("300000"), Some(3));
        for garbage in ["", "max 0", "-1 100000", "1 2 3", "many 100000", "100000 99999999999999999999999"] {
            assert_eq!(parse_cpu_max(garbage), None, "{garbage:?}");
        }
    }
}
