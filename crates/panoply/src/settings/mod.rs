//! Settings from a file and from the environment.
//!
//! [`Settings::load`] reads `panoply.toml` in the current folder, or the file that `PANOPLY_CONFIG`
//! names, and then the environment: `PANOPLY_LIMITS_QUEUE_DEPTH_MAX=64` is the key
//! `queue_depth_max` of the section `[limits]`. Keys that are not set keep their defaults. An
//! unknown key is an error that suggests the most similar one.
//!
//! ```toml
//! [devices]
//! only = ["cpu", "cuda"]         # APIs
//! leave_out = ["cuda:1"]
//! pick = ["radeon", "cpu:0"]     # no others: ids, or parts of names
//! power = "low"                  # integrated GPUs rather than discrete ones; high is the other way round
//! threads = 8                    # of a CPU device
//! pinned_bytes_max = 1000000000  # cached host memory for transfers; see `MemoryLimits`
//! bitstreams = { "0000:3b:00.1" = "cores.xclbin" }   # of FPGA cards; or by id (fpga:0)
//!
//! [devices.memory."cuda:0"]      # the same for one device
//! device_bytes_max = 8000000000
//! pool_bytes_max = 4000000000
//!
//! [placement]
//! cores = "auto"                 # own: workers of accelerators have a core each; shared; off
//! realtime = 50                  # SCHED_FIFO for them; needs CAP_SYS_NICE, or RLIMIT_RTPRIO
//! isolated = true                # on CPUs of isolcpus
//! interrupts = true              # moves interrupts off their cores; needs root
//!
//! [limits]
//! queue_depth_max = 1024
//! op_time_max_ms = 60000
//!
//! [routing]
//! fallback = "alternate"         # none, cpu, or retry:3
//! profile = true                 # begin with what `panoply bench --calibrate` has learned
//! verify = { every = 100 }       # compare one of 100 answers of each device with another's; see `Verify`
//!
//! [batching]
//! strategy = "adaptive"          # low-latency, time-or-size, high-throughput
//! size_max = 64
//! wait_max_us = 200
//!
//! [health]
//! hot_celsius = 85               # hotter devices have `hot_capacity`: smaller batches, fewer ops
//! memory_percent_max = 95        # fuller devices get no new ops
//! system_capacity_min = 0.75     # with a smaller share of all devices fit for work: degraded
//! refuse_patient = true          # ops of low priority are refused meanwhile; false is the default
//!
//! [pools.short]                  # the pool for short ops, which never wait for long ones
//! run_us_max = 200               # the longest expected time of an op that goes there
//!
//! [pools.crypto]                 # workers for one domain: compute, crypto, signal or graph
//! workers = 2                    # on each device
//! devices = ["cpu:0"]            # the devices that run ops of the domain
//! cores = "0-1"                  # the CPUs of its threads; or
//! core_share = 0.5               # the share of the device's cores that each engine uses
//! queue_depth_max = 256          # of each worker
//! batch_size_max = 32            # ops that go to the engine together
//! batch_size_min = 4             # to an idle engine; otherwise full batches
//! batch_wait_us_max = 100        # however few there are
//! memory_bytes_max = 67108864    # that each engine may keep for reuse
//! priority = "patient"           # its threads give way to all others
//! realtime = 10                  # its workers run before every normal thread (SCHED_FIFO)
//! isolated = true                # on CPUs to which the scheduler moves no other thread
//!
//! [crypto]
//! provider = "aws-lc"            # ciphers, hashes and signatures in AWS-LC alone; fastest is the default
//!
//! [onnxruntime]
//! providers = ["cpu", "cuda"]    # execution providers of the library that PANOPLY_ONNXRUNTIME names
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use panoply_core::{Api, DeviceId, MemoryLimits, OpenOptions};
use panoply_placement::PlacementOptions;
use panoply_runtime::{
    Batching, BuildError, Exploration, FallbackPolicy, HealthRules, PoolName, Pools, Verify, WorkerLimits,
};
use toml::{Table, Value};

use crate::builder::Builder;
use crate::runtime::Runtime;
use crate::selection::Selection;
use crate::small_file::read_text;

#[cfg(test)]
mod checks;
#[cfg(test)]
mod key_tests;
mod keys;
mod pools;

/// The default file.
const FILE_NAME: &str = "panoply.toml";
/// The variable that names another file.
const FILE_VARIABLE: &str = "PANOPLY_CONFIG";
/// Maximal size of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The APIs whose devices are used; `None` means all of them.
    pub only: Option<Vec<Api>>,
    /// Devices that are not opened.
    pub leave_out: Vec<DeviceId>,
    /// The selection among the available devices.
    pub selection: Selection,
    /// How devices are opened.
    pub open: OpenOptions,
    /// The execution providers of ONNX Runtime; `None` means the processor's cores.
    pub onnxruntime_providers: Option<Vec<String>>,
    /// Sizes of the memory pools of single devices, where they differ from `open`.
    pub memory: Vec<(DeviceId, MemoryLimits)>,
    /// The bounds of every device worker.
    pub limits: WorkerLimits,
    /// When a device counts as hot, full or faulty.
    pub health: HealthRules,
    /// How an op goes on when its device fails.
    pub fallback: FallbackPolicy,
    /// How much the router explores.
    pub exploration: Exploration,
    /// Whether the router starts with the learned profile.
    pub profile: bool,
    /// The share of results that is compared with another device's; `None` means no comparison.
    pub verify: Option<Verify>,
    /// When ops that could run as one are sent to an engine.
    pub batching: Batching,
    /// Which kinds of work have workers of their own.
    pub pools: Pools,
    /// Where the workers' threads run.
    pub placement: PlacementOptions,
    /// The bitstreams of FPGA cards, by their PCI addresses or ids.
    pub bitstreams: BTreeMap<String, PathBuf>,
    strategy: Strategy,
}

/// The parts of the strategy, which may be set in any order.
#[derive(Clone, Debug)]
struct Strategy {
    name: String,
    size_max: usize,
    wait_max: Duration,
}

/// Why settings could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file could not be read.
    #[error("the settings file {} (PANOPLY_CONFIG, or panoply.toml here) cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}{}: {message}", path.display(), line.map_or_else(String::new, |line| format!(", line {line}")))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The number of the line, counted from 1, if the parser names a place.
        line: Option<usize>,
        /// The fault.
        message: String,
    },
    /// A key does not exist.
    #[error("{origin}: there is no `{key}`; {suggestion}")]
    UnknownKey {
        /// The file or the environment.
        origin: String,
        /// The key, with its section.
        key: String,
        /// The most similar key, or all keys.
        suggestion: String,
    },
    /// A value is invalid.
    #[error("{origin}: `{key}`: expected {expected}, got {got}")]
    BadValue {
        /// The file or the environment.
        origin: String,
        /// The key, with its section.
        key: String,
        /// The accepted values.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// The settings are valid individually, but not together, or there is no device.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            only: None,
            leave_out: Vec::new(),
            selection: Selection::default(),
            open: OpenOptions::default(),
            onnxruntime_providers: None,
            memory: Vec::new(),
            limits: WorkerLimits::default(),
            health: HealthRules::default(),
            fallback: FallbackPolicy::default(),
            exploration: Exploration::default(),
            profile: true,
            verify: None,
            batching: Batching::default(),
            pools: Pools::default(),
            placement: PlacementOptions::default(),
            bitstreams: BTreeMap::new(),
            strategy: Strategy { name: "low-latency".to_owned(), size_max: 64, wait_max: Duration::from_micros(200) },
        }
    }
}

/// The settings' file that [`Settings::load`] reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInUse {
    /// Its path.
    pub path: PathBuf,
    /// Whether `PANOPLY_CONFIG` names it. Otherwise it is the `panoply.toml` in the current folder.
    pub is_named: bool,
    /// Whether it sets a key to another value than the default.
    pub changes_something: bool,
}

impl Settings {
    /// The file that [`Settings::load`] reads, if there is one. A program that runs in folders of
    /// others should mention it.
    pub fn file_in_use() -> Option<FileInUse> {
        let (path, is_named) = file_in_use()?;
        let defaults = format!("{:?}", Settings::default());
        let changes_something = Settings::from_file(&path).is_ok_and(|settings| format!("{settings:?}") != defaults);
        Some(FileInUse { path, is_named, changes_something })
    }

    /// Loads the settings of the file and the environment.
    pub fn load() -> Result<Settings, SettingsError> {
        let mut settings = match file_in_use() {
            Some((path, _)) => Settings::from_file(&path)?,
            None => Settings::default(),
        };
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value)));
        for (name, value) in variables {
            settings.set_from_environment(&name, &value.to_string_lossy())?;
        }
        Ok(settings)
    }

    /// Loads the settings of one file.
    pub fn from_file(path: &Path) -> Result<Settings, SettingsError> {
        let unreadable = |source| SettingsError::Unreadable { path: path.to_owned(), source };
        let text = read_text(path, FILE_BYTES_MAX).map_err(unreadable)?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| SettingsError::Syntax {
            path: path.to_owned(),
            line: error.span().map(|span| line_of(text.trim_end(), span.start)),
            message: error.message().to_owned(),
        })?;
        let mut settings = Settings::default();
        settings.set_from_table(&table, &path.display().to_string())?;
        Ok(settings)
    }

    /// Applies one environment variable, if it is a setting.
    pub fn set_from_environment(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let Some(rest) = name.strip_prefix("PANOPLY_") else { return Ok(()) };
        let rest = rest.to_ascii_lowercase();
        let section =
            keys::SECTIONS.iter().find(|section| rest.strip_prefix(**section).is_some_and(|r| r.starts_with('_')));
        // Variables without a section's name are not settings (`PANOPLY_SIMD`, `PANOPLY_CONFIG`,
        // …).
        let Some(section) = section else { return Ok(()) };
        let key = &rest[section.len() + 1..];
        // A value that is not valid TOML is a plain string.
        let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
        let parsed = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
        if *section != "pools" {
            return self.set(section, key, &parsed, name);
        }
        // The name of a pool has no underscore.
        let (pool, key) = key.split_once('_').unwrap_or((key, ""));
        match PoolName::named(pool) {
            Some(pool) => self.set_pool_key(pool, key, &parsed, name),
            None => self.set_pool(pool, &parsed, name),
        }
    }

    /// A builder with these settings, starting with every backend of this build.
    pub fn builder(&self) -> Builder {
        let mut builder = Runtime::builder()
            .limits(self.limits.clone())
            .open_options(self.open.clone())
            .health(self.health.clone())
            .fallback(self.fallback)
            .exploration(self.exploration.clone())
            .batching(self.batching)
            .pools(self.pools.clone())
            .placement(self.placement.clone())
            .leave_out(self.leave_out.iter().copied())
            .selection(self.selection.clone());
        for (device, limits) in &self.memory {
            builder = builder.memory_of(*device, *limits);
        }
        if let Some(verify) = &self.verify {
            builder = builder.verify(verify.clone());
        }
        for (card, file) in &self.bitstreams {
            builder = builder.bitstream(card, file);
        }
        if let Some(providers) = &self.onnxruntime_providers {
            builder = builder.onnxruntime_providers(providers.iter().cloned());
        }
        if let Some(apis) = &self.only {
            builder = builder.only(apis);
        }
        if self.profile { builder } else { builder.without_profile() }
    }

    fn set_from_table(&mut self, table: &Table, origin: &str) -> Result<(), SettingsError> {
        for (section, content) in table {
            if !keys::SECTIONS.contains(&section.as_str()) {
                let (origin, key) = (origin.to_owned(), format!("[{section}]"));
                let suggestion = keys::suggestion(section, keys::SECTIONS);
                return Err(SettingsError::UnknownKey { origin, key, suggestion });
            }
            let Value::Table(content) = content else {
                let (origin, key, got) = (origin.to_owned(), section.clone(), keys::shown(content));
                return Err(SettingsError::BadValue { origin, key, expected: "a section", got });
            };
            for (key, value) in content {
                match section.as_str() {
                    "pools" => self.set_pool(key, value, origin)?,
                    _ => self.set(section, key, value, origin)?,
                }
            }
        }
        Ok(())
    }

    /// Sets the keys of one section `[pools.<name>]`.
    fn set_pool(&mut self, name: &str, content: &Value, origin: &str) -> Result<(), SettingsError> {
        let Some(pool) = PoolName::named(name) else {
            let (origin, key) = (origin.to_owned(), format!("[pools.{name}]"));
            return Err(SettingsError::UnknownKey { origin, key, suggestion: keys::suggestion(name, &pools::names()) });
        };
        let Value::Table(content) = content else {
            let (origin, key, got) = (origin.to_owned(), format!("pools.{name}"), keys::shown(content));
            return Err(SettingsError::BadValue { origin, key, expected: "a section", got });
        };
        // A section without keys has the defaults.
        self.pools.entry(pool);
        content.iter().try_for_each(|(key, value)| self.set_pool_key(pool, key, value, origin))
    }

    fn set_pool_key(&mut self, pool: PoolName, name: &str, value: &Value, origin: &str) -> Result<(), SettingsError> {
        let (origin, key) = (origin.to_owned(), format!("pools.{pool}.{name}"));
        let Some(known) = pools::keys_of(pool).find(|known| known.name == name) else {
            let names: Vec<&str> = pools::keys_of(pool).map(|key| key.name).collect();
            return Err(SettingsError::UnknownKey { origin, key, suggestion: keys::suggestion(name, &names) });
        };
        let got = || keys::shown(value);
        let set = (known.set)(&mut self.pools, pool, value);
        set.ok_or_else(|| SettingsError::BadValue { origin, key, expected: known.expected, got: got() })
    }

    fn set(&mut self, section: &str, name: &str, value: &Value, origin: &str) -> Result<(), SettingsError> {
        let key = format!("{section}.{name}");
        let Some(known) = keys::KEYS.iter().find(|known| known.section == section && known.name == name) else {
            let names: Vec<&str> = keys::KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
            let suggestion = keys::suggestion(name, &names);
            return Err(SettingsError::UnknownKey { origin: origin.to_owned(), key, suggestion });
        };
        let bad = || {
            let (origin, got) = (origin.to_owned(), keys::shown(value));
            SettingsError::BadValue { origin, key: key.clone(), expected: known.expected, got }
        };
        (known.set)(self, value).ok_or_else(bad)?;
        self.batching = self.strategy.batching().ok_or_else(bad)?;
        Ok(())
    }
}

/// The path of the settings' file, and whether `PANOPLY_CONFIG` names it.
fn file_in_use() -> Option<(PathBuf, bool)> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    match named {
        Some(path) => Some((path, true)),
        None => Path::new(FILE_NAME).exists().then(|| (PathBuf::from(FILE_NAME), false)),
    }
}

/// The number of the line that a byte of the text is in, counted from 1.
fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
}

impl Strategy {
    fn batching(&self) -> Option<Batching> {
        let Strategy { size_max, wait_max, .. } = *self;
        Some(match self.name.as_str() {
            "low-latency" => Batching::LowLatency,
            "time-or-size" => Batching::TimeOrSize { size_max, wait_max },
            "adaptive" => Batching::Adaptive { size_max, wait_max },
            "high-throughput" => Batching::HighThroughput { size_max, wait_max },
            _ => return None,
        })
    }
}
