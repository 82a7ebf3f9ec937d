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
//! bitstreams = { "0000:3b:00.1" = "cores.xclbin" }   # of FPGA cards; or by id (fpga:0)
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
//! hot_celsius = 85
//!
//! [crypto]
//! provider = "aws-lc"            # ciphers, hashes and signatures in AWS-LC alone; fastest is the default
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use panoply_core::{Api, DeviceId, OpenOptions};
use panoply_placement::PlacementOptions;
use panoply_runtime::{Batching, BuildError, Exploration, FallbackPolicy, HealthRules, Verify, WorkerLimits};
use toml::{Table, Value};

use crate::builder::Builder;
use crate::runtime::Runtime;
use crate::selection::Selection;
use crate::small_file::read_text;

mod keys;

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
            limits: WorkerLimits::default(),
            health: HealthRules::default(),
            fallback: FallbackPolicy::default(),
            exploration: Exploration::default(),
            profile: true,
            verify: None,
            batching: Batching::default(),
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
        self.set(section, key, &parsed.unwrap_or_else(|| Value::String(value.to_owned())), name)
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
            .placement(self.placement.clone())
            .leave_out(self.leave_out.iter().copied())
            .selection(self.selection.clone());
        if let Some(verify) = &self.verify {
            builder = builder.verify(verify.clone());
        }
        for (card, file) in &self.bitstreams {
            builder = builder.bitstream(card, file);
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
                self.set(section, key, value, origin)?;
            }
        }
        Ok(())
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
             [health]\nhot_celsius = 70\nopen_wait_min_ms = 5\n[crypto]\nprovider = \"aws-lc\"\n",
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
                "a list of APIs, such as [\"cpu\", \"cuda\"] (of cpu, cuda, rocm, vulkan, wgpu, opencl, pjrt, fpga, onnxruntime, qat, af_alg)",
            ),
            (
                "[batching]\nstrategy = \"fast\"\n",
                "\"low-latency\", \"time-or-size\", \"adaptive\" or \"high-throughput\"",
            ),
            ("[devices]\npower = \"much\"\n", "\"high\" or \"low\""),
            ("[health]\nhot_celsius = true\n", "a number"),
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
