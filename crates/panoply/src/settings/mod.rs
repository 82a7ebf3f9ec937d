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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{Pick, Power};
    use panoply_core::Domain;
    use panoply_placement::WorkerWishes;
    use panoply_placement::affinity::RealtimePriority;
    use panoply_runtime::{DevicePool, PoolPriority};

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        settings.set_from_table(&text.parse().unwrap(), "panoply.toml")?;
        Ok(settings)
    }

    #[test]
    fn every_key_can_be_set() {
        let settings = parse(
            "[devices]\nonly = [\"cpu\"]\nleave_out = [\"cuda:1\"]\nthreads = 3\npick = [\"wgpu:1\", \"iris\"]\npower = \"low\"\n\
             [limits]\nqueue_depth_max = 32\nop_time_max_ms = 1500\n\
             [routing]\nfallback = \"retry:3\"\nprofile = false\nexplore_one_in = 0\n\
             [batching]\nstrategy = \"adaptive\"\nsize_max = 16\nwait_max_us = 90\n\
             [health]\nhot_celsius = 70\nopen_wait_min_ms = 5\n[crypto]\nprovider = \"aws-lc\"\n\
             [pools.short]\nrun_us_max = 90\nworkers = 0\n[pools.graph]\n\
             [pools.crypto]\nworkers = 2\ncores = \"0-1,4\"\ncore_share = 0.5\ndevices = [\"cpu:0\"]\n\
             queue_depth_max = 16\nbatch_size_min = 3\nbatch_size_max = 8\nbatch_wait_us_max = 70\n\
             memory_bytes_max = 4096\npriority = \"patient\"\nrealtime = 3\nisolated = true\n",
        )
        .unwrap();
        assert_eq!(settings.only, Some(vec![Api::CPU]));
        assert_eq!(settings.selection.pick, [Pick::new("wgpu:1"), Pick::new("Iris")]);
        assert_eq!(settings.selection.power, Some(Power::Low));
        assert_eq!(settings.limits.queue_depth_max, 32);
        assert_eq!(settings.limits.op_time_max, Duration::from_millis(1500));
        assert_eq!(settings.fallback, FallbackPolicy::Retry { times: 3 });
        assert_eq!(settings.batching, Batching::Adaptive { size_max: 16, wait_max: Duration::from_micros(90) });
        assert_eq!((settings.health.hot_celsius, settings.profile), (70.0, false));
        assert_eq!(settings.open.crypto_provider, panoply_core::CryptoProvider::AwsLc);
        assert!(parse("[crypto]\nprovider = \"openssl\"\n").is_err());
        assert_eq!(settings.pools.short_run_max, Duration::from_micros(90));
        assert_eq!(settings.pools.short.workers, 0);
        assert_eq!(settings.pools.get(PoolName::Domain(Domain::Graph)), Some(&DevicePool::default()));
        let crypto = DevicePool {
            workers: 2,
            cores: Some("0-1,4".parse().unwrap()),
            core_share: 0.5,
            devices: vec![DeviceId { api: Api::CPU, index: 0 }],
            queue_depth_max: Some(16),
            batching: Some(Batching::AtLeast { size_min: 3, size_max: 8, wait_max: Duration::from_micros(70) }),
            memory_bytes_max: Some(4096),
            priority: PoolPriority::Patient,
            wishes: WorkerWishes { realtime: RealtimePriority::new(3).ok(), isolated: true },
        };
        assert_eq!(settings.pools.get(PoolName::Domain(Domain::Crypto)), Some(&crypto));
    }

    #[test]
    fn pools_that_cannot_be_are_refused() {
        let refusal = |text: &str| parse(text).unwrap_err().to_string();
        for (key, value, expected) in [
            ("workers", "0", "1 to 16"),
            ("workers", "17", "1 to 16"),
            ("cores", "\"3-1\"", "a list of CPUs"),
            ("cores", "\"\"", "a list of CPUs"),
            ("core_share", "0", "above 0, at most 1"),
            ("core_share", "1.01", "above 0, at most 1"),
            ("devices", "[\"cpu:\"]", "a list of devices"),
            ("queue_depth_max", "0", "1 to 1048576"),
            ("queue_depth_max", "1048577", "1 to 1048576"),
            ("batch_size_max", "0", "1 to 1048576"),
            ("batch_size_min", "0", "1 to 1048576"),
            ("batch_wait_us_max", "-1", "microseconds"),
            ("memory_bytes_max", "-1", "not negative"),
            ("priority", "\"urgent\"", "\"normal\" or \"patient\""),
            ("realtime", "100", "1 to 99"),
            ("isolated", "1", "true or false"),
        ] {
            let error = refusal(&format!("[pools.crypto]\n{key} = {value}\n"));
            assert!(error.contains(&format!("`pools.crypto.{key}`")) && error.contains(expected), "{error}");
        }
        assert!(refusal("[pools.short]\nrun_us_max = 1000001\n").contains("1 to 1000000"));
        assert!(refusal("[pools.crypto]\nrun_us_max = 5\n").contains("there is no `pools.crypto.run_us_max`"));
        assert!(refusal("[pools.crypto]\nworker = 5\n").ends_with("did you mean `workers`?"));
        assert!(refusal("[pools.cripto]\nworkers = 5\n").ends_with("did you mean `crypto`?"));
        assert!(refusal("[pools]\ncrypto = 5\n").contains("expected a section"));
    }

    #[test]
    fn pools_are_set_by_the_environment_too() {
        let mut settings = Settings::default();
        settings.set_from_environment("PANOPLY_POOLS_CRYPTO_QUEUE_DEPTH_MAX", "64").unwrap();
        settings.set_from_environment("PANOPLY_POOLS_SHORT_WORKERS", "2").unwrap();
        let crypto = settings.pools.get(PoolName::Domain(Domain::Crypto)).unwrap();
        assert_eq!((crypto.queue_depth_max, settings.pools.short.workers), (Some(64), 2));
        let error = settings.set_from_environment("PANOPLY_POOLS_CRYPTO_WORKER", "1").unwrap_err();
        assert!(error.to_string().contains("did you mean `workers`"), "{error}");
        let error = settings.set_from_environment("PANOPLY_POOLS_CRIPTO_WORKERS", "1").unwrap_err();
        assert!(error.to_string().contains("did you mean `crypto`"), "{error}");
    }

    #[test]
    fn workers_are_placed_as_the_file_says() {
        use panoply_placement::{CoreUse, WorkerWishes};
        assert_eq!(parse("").unwrap().placement, PlacementOptions::default());
        let placement = parse("[placement]\ncores = \"own\"\nrealtime = 7\nisolated = true\ninterrupts = true\n");
        let placement = placement.unwrap().placement;
        assert_eq!((placement.cores, placement.interrupts), (CoreUse::Own, true));
        let WorkerWishes { realtime, isolated } = placement.wishes;
        assert_eq!((realtime.map(|priority| priority.get()), isolated), (Some(7), true));
        for wrong in ["cores = \"all\"", "realtime = 0", "realtime = 100", "realtime = true", "isolated = 1"] {
            let error = parse(&format!("[placement]\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("expected"), "{wrong}: {error}");
        }
        let mut settings = Settings::default();
        settings.set_from_environment("PANOPLY_PLACEMENT_CORES", "off").unwrap();
        assert_eq!(settings.placement.cores, CoreUse::Off);
    }

    #[test]
    fn bitstreams_are_set_for_each_card() {
        let settings =
            parse("[devices.bitstreams]\n\"0000:3b:00.1\" = \"a.xclbin\"\n\"fpga:1\" = \"b.xclbin\"\n").unwrap();
        let files: Vec<_> = settings.bitstreams.iter().map(|(card, file)| (card.as_str(), file.to_str())).collect();
        assert_eq!(files, [("0000:3b:00.1", Some("a.xclbin")), ("fpga:1", Some("b.xclbin"))]);
        for wrong in ["\"a.xclbin\"", "{ \"fpga:0\" = 3 }", "{ \"fpga:0\" = \"\" }"] {
            let error = parse(&format!("[devices]\nbitstreams = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("devices.bitstreams") && error.contains("xclbin"), "{wrong}: {error}");
        }
        let mut settings = Settings::default();
        settings.set_from_environment("PANOPLY_DEVICES_BITSTREAMS", "{ \"fpga:0\" = \"c.xclbin\" }").unwrap();
        assert_eq!(settings.bitstreams.len(), 1);
        // The variable for all cards is no setting of this kind.
        settings.set_from_environment("PANOPLY_FPGA_XCLBIN", "d.xclbin").unwrap();
    }

    #[test]
    fn memory_pools_are_limited_for_all_devices_and_for_one() {
        let text = "[devices]\npool_bytes_max = 0\npinned_bytes_max = 5\ndevice_bytes_max = 7\n\
             [devices.memory.\"cuda:1\"]\npinned_bytes_max = 9\n";
        let settings = parse(text).unwrap();
        let (device_bytes_max, pool_bytes_max, pinned_bytes_max) = (Some(7), Some(0), Some(5));
        assert_eq!(settings.open.memory, MemoryLimits { device_bytes_max, pool_bytes_max, pinned_bytes_max });
        let own = MemoryLimits { pinned_bytes_max: Some(9), ..MemoryLimits::default() };
        assert_eq!(settings.memory, [("cuda:1".parse().unwrap(), own)]);
        for wrong in ["{ \"cuda:1\" = { pol_bytes_max = 1 } }", "{ \"GPU:0\" = {} }", "3", "{ \"cpu:0\" = 3 }"] {
            let error = parse(&format!("[devices]\nmemory = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("devices.memory") && error.contains("pinned_bytes_max"), "{wrong}: {error}");
        }
        let mut settings = Settings::default();
        settings.set_from_environment("PANOPLY_DEVICES_PINNED_BYTES_MAX", "3").unwrap();
        assert_eq!(settings.open.memory.pinned_bytes_max, Some(3));
    }

    /// The CPU's pool keeps what an op has left, unless its limit is zero; its own limit counts.
    #[cfg(feature = "cpu")]
    #[test]
    fn a_limit_of_a_pool_changes_what_a_runtime_keeps() {
        use crate::prelude::*;
        let only_cpu = "[devices]\nonly = [\"cpu\"]\n";
        let limits =
            [("", true), ("pool_bytes_max = 0\n", false), ("memory = { \"cpu:0\" = { pool_bytes_max = 0 } }\n", false)];
        for (text, keeps) in limits {
            let runtime = parse(&format!("{only_cpu}{text}")).unwrap().builder().build().unwrap();
            let device = runtime.devices().next().unwrap().id;
            let large = Tensor::zeros(DType::F32, [1 << 20]).unwrap();
            drop(runtime.run_with(Map::neg(&large), RunOptions::require(device)).wait().unwrap());
            assert_eq!(runtime.trim(device).unwrap() >= 4 << 20, keeps, "{text}");
        }
        let text = format!("{only_cpu}device_bytes_max = 1000000\n");
        let runtime = parse(&text).unwrap().builder().build().unwrap();
        let large = Tensor::zeros(DType::F32, [1 << 20]).unwrap();
        let refused = runtime.run(Map::neg(&large)).wait().unwrap_err();
        assert!(matches!(&refused, Error::OutOfMemory { asked: 4_194_304, free: 1_000_000, .. }), "{refused}");
    }

    #[test]
    fn answers_are_compared_as_the_file_says() {
        assert_eq!(parse("").unwrap().verify, None);
        let plain = parse("[routing]\nverify = { every = 7 }\n").unwrap();
        assert_eq!(plain.verify, Some(Verify::every(7)));
        let text =
            "[routing.verify]\nevery = 3\nwait_max_ms = 20\ntime_percent_max = 5\ndomains = [\"crypto\", \"signal\"]\n";
        let verify = parse(text).unwrap().verify.unwrap();
        assert_eq!((verify.every, verify.wait_max, verify.time_percent_max), (3, Duration::from_millis(20), 5));
        assert_eq!(verify.domains, [panoply_core::Domain::Crypto, panoply_core::Domain::Signal]);
        for wrong in [
            "{ every = 0 }",
            "{ every = 1, wait_max_ms = 0 }",
            "{ evry = 3 }",
            "{}",
            "{ every = 1, domains = [\"maths\"] }",
            "7",
            "true",
        ] {
            let error = parse(&format!("[routing]\nverify = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("routing.verify") && error.contains("every = 100"), "{wrong}: {error}");
        }
        let mut settings = Settings::default();
        settings.set_from_environment("PANOPLY_ROUTING_VERIFY", "{ every = 5 }").unwrap();
        assert_eq!(settings.verify, Some(Verify::every(5)));
    }

    #[test]
    fn wrong_keys_suggest_the_right_ones() {
        let error = parse("[limits]\nqueue_dept_max = 3\n").unwrap_err().to_string();
        assert_eq!(error, "panoply.toml: there is no `limits.queue_dept_max`; did you mean `queue_depth_max`?");
        let error = parse("[limit]\nqueue_depth_max = 3\n").unwrap_err().to_string();
        assert!(error.ends_with("did you mean `limits`?"), "{error}");
        let error = parse("[routing]\nzzz = 3\n").unwrap_err().to_string();
        assert!(error.contains("expected one of fallback"), "{error}");
    }

    #[test]
    fn wrong_values_say_what_is_expected() {
        for (text, expected) in [
            ("[limits]\nqueue_depth_max = -3\n", "a whole number, not negative"),
            ("[limits]\nqueue_depth_max = \"many\"\n", "a whole number, not negative"),
            ("[routing]\nfallback = \"maybe\"\n", "\"none\", \"alternate\", \"cpu\" or \"retry:N\""),
            (
                "[devices]\nonly = [\"gpu9\"]\n",
                "a list of APIs, such as [\"cpu\", \"cuda\"] (of cpu, cuda, rocm, vulkan, wgpu, opencl, pjrt, fpga, onnxruntime, openvino, qat, af_alg)",
            ),
            (
                "[batching]\nstrategy = \"fast\"\n",
                "\"low-latency\", \"time-or-size\", \"adaptive\" or \"high-throughput\"",
            ),
            ("[devices]\npower = \"much\"\n", "\"high\" or \"low\""),
            ("[health]\nhot_celsius = true\n", "degrees, a number from -100 to 300"),
            ("[onnxruntime]\nproviders = [\"gpu\"]\n", crate::compiled::ONNX_RUNTIME_PROVIDERS),
            ("[onnxruntime]\nproviders = [\"cuda\", \"cuda\"]\n", crate::compiled::ONNX_RUNTIME_PROVIDERS),
        ] {
            match parse(text).unwrap_err() {
                SettingsError::BadValue { expected: said, .. } => assert_eq!(said, expected, "{text}"),
                other => panic!("{text}: {other}"),
            }
        }
        let error = parse("[devices]\nonly = [\"gpu9\"]\n").unwrap_err().to_string();
        for api in crate::apis() {
            assert!(error.contains(api.name()), "{}: {error}", api.name());
        }
        let error = parse("limits = 3\n").unwrap_err().to_string();
        assert!(error.ends_with("expected a section, got 3"), "{error}");
        let error = parse("[devices]\nonly = [1, \"a\", 0.5, true, 2]\n").unwrap_err().to_string();
        assert!(error.ends_with("got [1, \"a\", 0.5, true, …]"), "{error}");
    }

    #[test]
    fn the_environment_counts_last_and_strangers_are_left_alone() {
        let mut settings = parse("[limits]\nqueue_depth_max = 32\n").unwrap();
        settings.set_from_environment("PANOPLY_LIMITS_QUEUE_DEPTH_MAX", "64").unwrap();
        settings.set_from_environment("PANOPLY_ROUTING_FALLBACK", "cpu").unwrap();
        settings.set_from_environment("PANOPLY_DEVICES_ONLY", "[\"cpu\"]").unwrap();
        settings.set_from_environment("PANOPLY_SIMD", "scalar").unwrap();
        settings.set_from_environment("PATH", "/bin").unwrap();
        assert_eq!((settings.limits.queue_depth_max, settings.fallback), (64, FallbackPolicy::Cpu));
        let error = settings.set_from_environment("PANOPLY_LIMITS_QUEUE_DEPHT", "1").unwrap_err();
        assert!(error.to_string().contains("did you mean `queue_depth_max`"), "{error}");
    }

    #[test]
    fn impossible_combinations_are_found_when_the_runtime_is_built() {
        let settings = parse("[limits]\nreopen_wait_min_ms = 90\nreopen_wait_max_ms = 10\n").unwrap();
        let error = settings.builder().build().unwrap_err().to_string();
        assert!(error.contains("reopen_wait_min") && error.contains("reopen_wait_max"), "{error}");
    }
}
