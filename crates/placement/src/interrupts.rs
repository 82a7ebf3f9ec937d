//! Keeps interrupts away from the cores of workers, as far as the system allows it, and puts them
//! back.
//!
//! Only interrupts that exist are moved; a device that is plugged in later may bring others. The
//! kernel moves no interrupt that it manages itself, such as those of some disks' queues.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use panoply_core::cpu_set::CpuSet;

use super::sysfs::Tree;

const FOLDER: &str = "proc/irq";
/// The most interrupts that are looked at, and the largest number of one.
const INTERRUPTS_MAX: usize = 65_535;

/// The interrupts that were moved. They are put back when this is dropped; a process that is killed
/// leaves them where they are.
#[derive(Debug)]
pub struct Interrupts {
    root: PathBuf,
    moved: BTreeMap<usize, MovedInterrupt>,
}

/// The change of one interrupt's CPUs.
#[derive(Debug, Default)]
struct MovedInterrupt {
    removed: CpuSet,
    added: CpuSet,
}

impl MovedInterrupt {
    /// Notes a further change. CPUs that were added before and are gone again need no mention, nor
    /// do those that were removed and are back.
    fn note(&mut self, gone: &CpuSet, new: &CpuSet) {
        let (removed, added) =
            (&(&self.removed - new) | &(gone - &self.added), &(&self.added - gone) | &(new - &self.removed));
        (self.removed, self.added) = (removed, added);
    }
}

impl Interrupts {
    /// No interrupt was moved yet. Interrupts are those of the `proc` below `root`, which is `/`
    /// except in tests.
    pub fn new(root: &Path) -> Interrupts {
        Interrupts { root: root.to_owned(), moved: BTreeMap::new() }
    }

    /// Moves interrupts off `cpus`. An interrupt that has no other CPUs goes to `others`. Returns
    /// notes about those that stay.
    pub fn keep_off(&mut self, cpus: &CpuSet, others: &CpuSet) -> Vec<String> {
        let others = others - cpus;
        if cpus.is_empty() {
            return Vec::new();
        }
        if others.is_empty() {
            return vec![format!("interrupts stay on CPUs {cpus}: no other CPU is left for them")];
        }
        let root = self.root.clone();
        let mut tree = Tree::new(&root);
        let mut refusals = BTreeMap::<String, usize>::new();
        for number in tree.numbered(FOLDER, "", INTERRUPTS_MAX) {
            let Some(before) = tree.optional_cpus(&file(number)).filter(|before| !before.is_disjoint(cpus)) else {
                continue;
            };
            let kept = &before - cpus;
            let after = if kept.is_empty() { others.clone() } else { kept };
            match self.write(number, &after) {
                Ok(()) => {
                    self.moved.entry(number).or_default().note(&(&before - &after), &(&after - &before));
                }
                Err(error) => *refusals.entry(reason(&error)).or_default() += 1,
            }
        }
        let note = |(reason, count)| format!("{count} interrupts stay on CPUs {cpus}: {reason}");
        refusals.into_iter().map(note).collect()
    }

    /// The numbers of the interrupts that were moved.
    pub fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        self.moved.keys().copied()
    }

    /// Puts the interrupts back. Changes that others have made since are kept.
    pub fn restore(&mut self) {
        let root = self.root.clone();
        let mut tree = Tree::new(&root);
        for (number, MovedInterrupt { removed, added }) in std::mem::take(&mut self.moved) {
            if let Some(now) = tree.optional_cpus(&file(number)) {
                // An interrupt whose device is gone needs nothing.
                let _ = self.write(number, &(&(&now - &added) | &removed));
            }
        }
    }

    fn write(&self, number: usize, cpus: &CpuSet) -> io::Result<()> {
        std::fs::write(self.root.join(file(number)), cpus.to_string())
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.restore();
    }
}

fn file(number: usize) -> String {
    format!("{FOLDER}/{number}/smp_affinity_list")
}

/// Why an interrupt stays, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}; only root may move them, outside of containers")
        }
        // The kernel answers so for interrupts that it manages itself.
        _ if error.raw_os_error() == Some(5) => "the kernel manages them itself".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::Fixture;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn interrupts_move_off_the_cores_and_come_back() {
        let list = |number: usize| format!("proc/irq/{number}/smp_affinity_list");
        let machine = Fixture::new().file(&list(0), "0-7\n").file(&list(24), "6\n").file(&list(25), "2-3\n");
        let machine = machine.file(&list(26), "0-1\n").file("proc/irq/default_smp_affinity", "ff\n");
        let machine = machine.file("proc/irq/27/spurious", "count 0\n");
        let read = |number: usize| cpus(&std::fs::read_to_string(machine.root().join(list(number))).unwrap());
        let mut interrupts = Interrupts::new(machine.root());
        assert_eq!(interrupts.keep_off(&cpus("6-7"), &cpus("0-7")), [""; 0]);
        assert_eq!([0, 24, 25, 26].map(read), ["0-5", "0-5", "2-3", "0-1"].map(cpus));
        // A second worker comes later.
        assert_eq!(interrupts.keep_off(&cpus("2"), &cpus("0-5")), [""; 0]);
        assert_eq!([0, 24, 25, 26].map(read), ["0-1,3-5", "0-1,3-5", "3", "0-1"].map(cpus));
        assert_eq!(interrupts.moved().collect::<Vec<_>>(), [0, 24, 25]);
        // Somebody else moves one of them meanwhile.
        std::fs::write(machine.root().join(list(25)), "3,5").unwrap();
        drop(interrupts);
        assert_eq!([0, 24, 25, 26].map(read), ["0-7", "6", "2-3,5", "0-1"].map(cpus));
    }

    #[test]
    fn two_owners_put_back_their_own_part_in_any_order() {
        let list = "proc/irq/9/smp_affinity_list";
        let machine = Fixture::new().file(list, "0-3\n");
        let read = || cpus(&std::fs::read_to_string(machine.root().join(list)).unwrap());
        let [mut first, mut second] = [0, 1].map(|_| Interrupts::new(machine.root()));
        first.keep_off(&cpus("2"), &cpus("0-3"));
        second.keep_off(&cpus("3"), &cpus("0-3"));
        assert_eq!(read(), cpus("0-1"));
        first.restore();
        assert_eq!(read(), cpus("0-2"));
        second.restore();
        assert_eq!(read(), cpus("0-3"));
    }

    #[test]
    fn what_stays_is_noted() {
        let machine = Fixture::new().file("proc/irq/9/smp_affinity_list", "0-1\n");
        let mut interrupts = Interrupts::new(machine.root());
        let notes = interrupts.keep_off(&cpus("0-1"), &cpus("0-1"));
        assert!(notes[0].contains("no other CPU is left"), "{notes:?}");
        assert_eq!(interrupts.keep_off(&CpuSet::new(), &cpus("0")), [""; 0]);
        let denied = reason(&io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(denied.contains("only root"), "{denied}");
        assert!(reason(&io::Error::from_raw_os_error(5)).contains("kernel manages"));
    }
}
