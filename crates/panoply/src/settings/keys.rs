//! Every key, as data: its section, its name, the values it accepts, and how it is set.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use panoply_core::{Api, CryptoProvider, DeviceId, Domain, MemoryLimits};
use panoply_placement::CoreUse;
use panoply_placement::affinity::RealtimePriority;
use panoply_runtime::{FallbackPolicy, Verify};
use toml::Value;

use super::Settings;
use crate::compiled::{ONNX_RUNTIME_PROVIDERS, api_named, onnxruntime_with};
use crate::selection::{Pick, Power};
use crate::spelling::nearest;

pub(super) const SECTIONS: &[&str] =
    &["devices", "placement", "limits", "routing", "batching", "health", "crypto", "pools", "onnxruntime"];

/// One key. `set` returns `None` for a value that it does not accept.
pub(super) struct SettingKey {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) set: fn(&mut Settings, &Value) -> Option<()>,
}

const COUNT: &str = "a whole number, not negative";
const COUNT_1: &str = "a whole number, at least 1";
const CELSIUS: &str = "degrees, a number from -100 to 300";
const PERCENT: &str = "a percentage from 0 to 100";
const CAPACITY: &str = "a share from 0.05 to 1";
const SHARE: &str = "a share from 0 to 1";
const MILLISECONDS: &str = "milliseconds, a whole number";
const MILLISECONDS_1: &str = "milliseconds, a whole number, at least 1";

const MEMORY: &str = "a table of devices, such as { \"cuda:0\" = { pinned_bytes_max = 1000000 } }; `device_bytes_max`, `pool_bytes_max` and \
     `pinned_bytes_max` are whole numbers, not negative";

const VERIFY: &str = "a table such as { every = 100 }, with at least 1; `wait_max_ms` from 1, `time_percent_max` and `domains = [\"crypto\"]` may stand \
     beside it";

/// A key that stores a converted value in a field of the settings.
macro_rules! key {
    ($section:literal, $name:literal, $expected:expr, $convert:ident => $($field:ident).+) => {
        SettingKey {
            section: $section,
            name: $name,
            expected: $expected,
            set: |settings, value| {
                settings.$($field).+ = $convert(value)?;
                Some(())
            },
        }
    };
}

pub(super) const KEYS: &[SettingKey] = &[
    key!("crypto", "provider", "\"fastest\" or \"aws-lc\"", provider => open.crypto_provider),
    key!("devices", "only", "a list of APIs, such as [\"cpu\", \"cuda\"] (of cpu, cuda, rocm, vulkan, wgpu, opencl, pjrt, fpga, onnxruntime, openvino, qat, af_alg)", apis => only),
    key!("devices", "leave_out", "a list of devices, such as [\"cuda:1\"]", devices => leave_out),
    key!("devices", "pick", "a list of devices or parts of names, such as [\"wgpu:0\", \"radeon\"]", picks => selection.pick),
    key!("devices", "power", "\"high\" or \"low\"", power => selection.power),
    key!("devices", "threads", COUNT, some_count => open.threads),
    key!("devices", "pool_bytes_max", COUNT, some_count => open.memory.pool_bytes_max),
    key!("devices", "pinned_bytes_max", COUNT, some_count => open.memory.pinned_bytes_max),
    key!("devices", "device_bytes_max", COUNT, some_count => open.memory.device_bytes_max),
    key!("devices", "memory", MEMORY, memory => memory),
    key!("devices", "bitstreams", "a table of FPGA cards and files, such as { \"0000:3b:00.1\" = \"cores.xclbin\" }", files => bitstreams),
    key!("placement", "cores", "\"auto\", \"own\", \"shared\" or \"off\"", core_use => placement.cores),
    key!("placement", "realtime", "a priority from 1 to 99", realtime => placement.wishes.realtime),
    key!("placement", "isolated", "true or false", flag => placement.wishes.isolated),
    key!("placement", "interrupts", "true or false", flag => placement.interrupts),
    key!("onnxruntime", "providers", ONNX_RUNTIME_PROVIDERS, providers => onnxruntime_providers),
    key!("limits", "queue_depth_max", COUNT, count => limits.queue_depth_max),
    key!("limits", "batch_max", COUNT, count => limits.batch_max),
    key!("limits", "in_flight_max", COUNT, count => limits.in_flight_max),
    key!("limits", "op_time_max_ms", MILLISECONDS, milliseconds => limits.op_time_max),
    key!("limits", "reopen_wait_min_ms", MILLISECONDS, milliseconds => limits.reopen_wait_min),
    key!("limits", "reopen_wait_max_ms", MILLISECONDS, milliseconds => limits.reopen_wait_max),
    key!("limits", "reopen_attempts_max", COUNT, small_count => limits.reopen_attempts_max),
    key!("limits", "stuck_threads_max", COUNT, small_count => limits.stuck_threads_max),
    key!("routing", "fallback", "\"none\", \"alternate\", \"cpu\" or \"retry:N\"", policy => fallback),
    key!("routing", "explore_one_in", COUNT, small_count => exploration.one_in),
    key!("routing", "explore_first", COUNT, small_count => exploration.first),
    key!("routing", "profile", "true or false", flag => profile),
    key!("routing", "verify", VERIFY, verify => verify),
    key!(
        "batching", "strategy",
        "\"low-latency\", \"time-or-size\", \"adaptive\" or \"high-throughput\"",
        text => strategy.name
    ),
    key!("batching", "size_max", COUNT, count => strategy.size_max),
    key!("batching", "wait_max_us", "microseconds, a whole number", microseconds => strategy.wait_max),
    key!("health", "hot_celsius", CELSIUS, celsius => health.hot_celsius),
    key!("health", "cool_celsius", CELSIUS, celsius => health.cool_celsius),
    key!("health", "hot_capacity", CAPACITY, capacity => health.hot_capacity),
    key!("health", "memory_percent_max", PERCENT, percent => health.memory_percent_max),
    key!("health", "memory_percent_resume", PERCENT, percent => health.memory_percent_resume),
    key!("health", "queue_depth_max", COUNT, small_count => health.queue_depth_max),
    key!("health", "queue_depth_resume", COUNT, small_count => health.queue_depth_resume),
    key!("health", "deep_capacity", CAPACITY, capacity => health.deep_capacity),
    key!("health", "error_percent_max", PERCENT, error_percent => health.error_percent_max),
    key!("health", "errors_min", COUNT_1, positive => health.errors_min),
    key!("health", "open_wait_min_ms", MILLISECONDS, milliseconds => health.open_wait_min),
    key!("health", "open_wait_max_ms", MILLISECONDS, milliseconds => health.open_wait_max),
    key!("health", "probes_max", COUNT_1, positive => health.probes_max),
    key!("health", "probes_needed", COUNT_1, positive => health.probes_needed),
    key!("health", "look_every_ms", MILLISECONDS_1, some_milliseconds => health.look_every),
    key!("health", "system_capacity_min", SHARE, share => health.system_capacity_min),
    key!("health", "refuse_patient", "true or false", flag => health.refuse_patient),
];

/// A suggestion for an unknown name.
pub(super) fn suggestion(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

/// Returns a value as a message quotes it. Lists are abbreviated after a few elements.
pub(super) fn shown(value: &Value) -> String {
    const ELEMENTS_MAX: usize = 4;
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        // With a point, as TOML writes floats.
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(values) => {
            let mut elements: Vec<String> = values.iter().take(ELEMENTS_MAX).map(shown).collect();
            if values.len() > ELEMENTS_MAX {
                elements.push("…".to_owned());
            }
            format!("[{}]", elements.join(", "))
        }
        Value::Table(_) => "a table".to_owned(),
    }
}

pub(super) fn count(value: &Value) -> Option<usize> {
    value.as_integer().and_then(|number| usize::try_from(number).ok())
}

fn some_count(value: &Value) -> Option<Option<usize>> {
    count(value).map(Some)
}

fn small_count(value: &Value) -> Option<u32> {
    value.as_integer().and_then(|number| u32::try_from(number).ok())
}

fn positive(value: &Value) -> Option<u32> {
    small_count(value).filter(|count| *count > 0)
}

fn some_milliseconds(value: &Value) -> Option<Duration> {
    milliseconds(value).filter(|time| !time.is_zero())
}

fn milliseconds(value: &Value) -> Option<Duration> {
    count(value).map(|count| Duration::from_millis(count as u64))
}

pub(super) fn microseconds(value: &Value) -> Option<Duration> {
    count(value).map(|count| Duration::from_micros(count as u64))
}

pub(super) fn double(value: &Value) -> Option<f64> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.filter(|number| number.is_finite())
}

fn within(value: &Value, least: f64, most: f64) -> Option<f32> {
    double(value).filter(|number| (least..=most).contains(number)).map(|number| number as f32)
}

fn celsius(value: &Value) -> Option<f32> {
    within(value, -100.0, 300.0)
}

fn percent(value: &Value) -> Option<f32> {
    within(value, 0.0, 100.0)
}

fn error_percent(value: &Value) -> Option<f64> {
    percent(value).map(f64::from)
}

fn capacity(value: &Value) -> Option<f32> {
    within(value, 0.05, 1.0)
}

fn share(value: &Value) -> Option<f32> {
    within(value, 0.0, 1.0)
}

fn flag(value: &Value) -> Option<bool> {
    value.as_bool()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn apis(value: &Value) -> Option<Option<Vec<Api>>> {
    let names = value.as_array()?.iter();
    names.map(|name| api_named(name.as_str()?)).collect::<Option<Vec<Api>>>().map(Some)
}

pub(super) fn devices(value: &Value) -> Option<Vec<DeviceId>> {
    value.as_array()?.iter().map(|name| name.as_str()?.parse().ok()).collect()
}

fn picks(value: &Value) -> Option<Vec<Pick>> {
    value.as_array()?.iter().map(|name| name.as_str().filter(|name| !name.is_empty()).map(Pick::new)).collect()
}

fn providers(value: &Value) -> Option<Option<Vec<String>>> {
    let texts = value.as_array()?.iter().map(text).collect::<Option<Vec<String>>>()?;
    onnxruntime_with(&texts).ok()?;
    Some(Some(texts))
}

fn provider(value: &Value) -> Option<CryptoProvider> {
    CryptoProvider::named(value.as_str()?)
}

fn files(value: &Value) -> Option<BTreeMap<String, PathBuf>> {
    let file = |value: &Value| value.as_str().filter(|file| !file.is_empty()).map(PathBuf::from);
    value.as_table()?.iter().map(|(card, value)| Some((card.clone(), file(value)?))).collect()
}

fn core_use(value: &Value) -> Option<CoreUse> {
    let name = value.as_str()?;
    CoreUse::ALL.into_iter().find(|choice| choice.name() == name)
}

pub(super) fn realtime(value: &Value) -> Option<Option<RealtimePriority>> {
    let number = value.as_integer().and_then(|number| u8::try_from(number).ok())?;
    RealtimePriority::new(number).ok().map(Some)
}

fn memory(value: &Value) -> Option<Vec<(DeviceId, MemoryLimits)>> {
    let limits_of = |(device, limits): (&String, &Value)| {
        let mut own = MemoryLimits::default();
        for (name, value) in limits.as_table()? {
            let place = match name.as_str() {
                "device_bytes_max" => &mut own.device_bytes_max,
                "pool_bytes_max" => &mut own.pool_bytes_max,
                "pinned_bytes_max" => &mut own.pinned_bytes_max,
                _ => return None,
            };
            *place = some_count(value)?;
        }
        Some((device.parse().ok()?, own))
    };
    value.as_table()?.iter().map(limits_of).collect()
}

fn power(value: &Value) -> Option<Option<Power>> {
    Some(Some(match value.as_str()? {
        "high" => Power::High,
        "low" => Power::Low,
        _ => return None,
    }))
}

fn verify(value: &Value) -> Option<Option<Verify>> {
    let mut verify = Verify::default();
    let table = value.as_table().filter(|table| table.contains_key("every"))?;
    for (name, value) in table {
        match name.as_str() {
            "every" => verify.every = small_count(value).filter(|every| *every > 0)?,
            "wait_max_ms" => verify.wait_max = milliseconds(value).filter(|wait| !wait.is_zero())?,
            "time_percent_max" => verify.time_percent_max = small_count(value).filter(|percent| *percent <= 100)?,
            "domains" => verify.domains = value.as_array()?.iter().map(domain).collect::<Option<_>>()?,
            _ => return None,
        }
    }
    Some(Some(verify))
}

fn domain(value: &Value) -> Option<Domain> {
    let name = value.as_str()?;
    Domain::ALL.iter().copied().find(|domain| domain.name() == name)
}

fn policy(value: &Value) -> Option<FallbackPolicy> {
    Some(match value.as_str()? {
        "none" => FallbackPolicy::None,
        "alternate" => FallbackPolicy::Alternate,
        "cpu" => FallbackPolicy::Cpu,
        retry => FallbackPolicy::Retry { times: retry.strip_prefix("retry:")?.parse().ok()? },
    })
}
