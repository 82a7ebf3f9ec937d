//! Compiled programs: in memory by the hash of their text, and on disk where the plugin can write them down.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_kernels::cache::Cache;

use crate::client::{Client, Executable, compile_options};
use crate::plugin::PjrtError;
use crate::program::Program;

/// Programs that an engine keeps; of more, the one that was not used for longest goes.
const PROGRAMS_MAX: usize = 1024;

/// The compiled programs of one engine.
pub(crate) struct Programs {
    client: Arc<Client>,
    compiled: HashMap<[u64; 2], (Rc<Executable>, u64)>,
    disk: Option<Cache>,
    /// What a file must have been made by: the plugin, its version, and the machine.
    maker: String,
    warm: Arc<Warm>,
    clock: u64,
    /// Programs that were compiled, and those that were read instead.
    pub(crate) counts: Counts,
}

/// How programs were come by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Compiled from text.
    pub compiled: u64,
    /// Read from the disk.
    pub read: u64,
}

impl Programs {
    pub(crate) fn new(client: &Arc<Client>, device_kind: &str, warm: Arc<Warm>, disk: Option<Cache>) -> Programs {
        let (major, minor) = client.plugin.version();
        let (platform, version, machine) = (&client.platform, &client.version, machine());
        let maker = format!("{platform}\n{version}\n{major}.{minor}\n{device_kind}\n{machine}");
        let (compiled, counts) = (HashMap::new(), Counts::default());
        Programs { client: Arc::clone(client), compiled, disk, maker, warm, clock: 0, counts }
    }

    /// The program, compiled where it has not been.
    pub(crate) fn get(&mut self, program: &Program) -> Result<Rc<Executable>, PjrtError> {
        self.clock += 1;
        if let Some((executable, used)) = self.compiled.get_mut(&program.key) {
            *used = self.clock;
            return Ok(Rc::clone(executable));
        }
        let executable = Rc::new(self.make(program)?);
        if self.compiled.len() >= PROGRAMS_MAX
            && let Some(oldest) = self.compiled.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key)
        {
            self.compiled.remove(&oldest);
        }
        self.compiled.insert(program.key, (Rc::clone(&executable), self.clock));
        self.warm.insert(program.key);
        Ok(executable)
    }

    fn make(&mut self, program: &Program) -> Result<Executable, PjrtError> {
        let key = self.file_key(program);
        if let Some(bytes) = self.disk.as_ref().and_then(|disk| disk.read(&key)) {
            let results = program.outputs.len() + program.checks.len();
            // A file that another version left is compiled anew.
            let loaded = self.client.load(&bytes).ok().filter(|loaded| loaded.outputs() == Ok(results));
            if let Some(executable) = loaded {
                self.counts.read += 1;
                return Ok(executable);
            }
        }
        let executable = self.client.compile(&program.text)?;
        self.counts.compiled += 1;
        if let Some(disk) = &self.disk {
            match executable.serialize() {
                Ok(bytes) => disk.write(&key, &bytes),
                // A plugin that cannot write programs down is not asked again.
                Err(_) => self.disk = None,
            }
        }
        Ok(executable)
    }

    fn file_key(&self, program: &Program) -> Vec<u8> {
        [self.maker.as_bytes(), &compile_options(), program.text.as_bytes()].concat()
    }
}

/// What programs for a processor depend on: what its cores can do.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let told = |line: &&str| ["model name", "flags", "Features"].iter().any(|name| line.starts_with(name));
    let lines: Vec<&str> = text.lines().filter(told).take(2).collect();
    format!("{} {}", std::env::consts::ARCH, lines.join("\n"))
}

/// Which programs are compiled, as anybody may ask without a lock: a table of hashes, of which some may be forgotten.
pub(crate) struct Warm(Box<[AtomicU64]>);

const WARM_PLACES: usize = 8192;
const WARM_PROBES: usize = 8;

impl Default for Warm {
    fn default() -> Warm {
        Warm((0..WARM_PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Warm {
    fn places(&self, key: [u64; 2]) -> impl Iterator<Item = &AtomicU64> {
        (0..WARM_PROBES).map(move |probe| &self.0[(key[1] as usize).wrapping_add(probe) % WARM_PLACES])
    }

    pub(crate) fn contains(&self, key: [u64; 2]) -> bool {
        self.places(key).any(|place| place.load(Ordering::Relaxed) == key[0] | 1)
    }

    fn insert(&self, key: [u64; 2]) {
        let name = key[0] | 1;
        for place in self.places(key) {
            let known = place.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed);
            if known.is_ok() || known == Err(name) {
                return;
            }
        }
        // All places are taken: the first one is forgotten.
        if let Some(place) = self.places(key).next() {
            place.store(name, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_found_even_where_places_are_taken() {
        let warm = Warm::default();
        assert!(!warm.contains([3, 7]));
        for key in 0..100 {
            warm.insert([key * 2, 7]);
            assert!(warm.contains([key * 2, 7]), "{key}");
        }
        assert!(!warm.contains([1000, 7]));
    }
}
