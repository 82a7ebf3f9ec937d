//! Compiled programs: in memory by the hash of their text, and on disk if the plugin can serialise
//! them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use panoply_kernels::cache::Cache;

use crate::client::{Client, Executable, compile_options};
use crate::plugin::PjrtError;
use crate::program::Program;

/// Maximum number of programs that an engine keeps. The least recently used one is evicted.
const PROGRAMS_MAX: usize = 1024;

/// The compiled programs of one engine.
pub(crate) struct Programs {
    client: Arc<Client>,
    compiled: HashMap<[u64; 2], (Rc<Executable>, u64)>,
    disk: Option<Cache>,
    /// Identifies the compiler in a file's key: the plugin, its version, and the machine.
    maker: String,
    clock: u64,
    /// Number of programs that were compiled or read from disk.
    pub(crate) counts: ProgramCounts,
}

/// The sources of an engine's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    /// Programs compiled from text.
    pub compiled: u64,
    /// Programs read from disk.
    pub read: u64,
}

impl Programs {
    pub(crate) fn new(client: &Arc<Client>, device_kind: &str, disk: Option<Cache>) -> Programs {
        let (major, minor) = client.plugin.version();
        let (platform, version, machine) = (&client.platform, &client.version, machine());
        let maker = format!("{platform}\n{version}\n{major}.{minor}\n{device_kind}\n{machine}");
        let (compiled, counts) = (HashMap::new(), ProgramCounts::default());
        Programs { client: Arc::clone(client), compiled, disk, maker, clock: 0, counts }
    }

    /// Returns the compiled program, and compiles it first if necessary.
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
        Ok(executable)
    }

    fn make(&mut self, program: &Program) -> Result<Executable, PjrtError> {
        let key = self.file_key(program);
        if let Some(bytes) = self.disk.as_ref().and_then(|disk| disk.read(&key)) {
            let results = program.outputs.len() + program.checks.len();
            // A file of another version is ignored, and the program is compiled again.
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
                // After the first failure, this engine stops serialising programs.
                Err(_) => self.disk = None,
            }
        }
        Ok(executable)
    }

    fn file_key(&self, program: &Program) -> Vec<u8> {
        [self.maker.as_bytes(), &compile_options(), program.text.as_bytes()].concat()
    }
}

/// Identifies the CPU's features, on which programs compiled for a CPU depend.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let told = |line: &&str| ["model name", "flags", "Features"].iter().any(|name| line.starts_with(name));
    let lines: Vec<&str> = text.lines().filter(told).take(2).collect();
    format!("{} {}", std::env::consts::ARCH, lines.join("\n"))
}
