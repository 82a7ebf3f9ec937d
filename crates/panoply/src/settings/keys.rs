//! Every key, as data: its section, its name, the values it accepts, and how it is set.

use std::time::Duration;

use panoply_core::{Api, CryptoProvider, DeviceId, Domain, MemoryLimits};
use panoply_runtime::{FallbackPolicy, Verify};
use toml::Value;

use super::Settings;
use crate::compiled::api_named;
use crate::selection::{Pick, Power};
use crate::spelling::nearest;

pub(super) const SECTIONS: &[&str] = &["devices", "limits", "routing", "batching", "health", "crypto"];

/// One key. `set` returns `None` for a value that it does not accept.
pub(super) struct SettingKey {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) set: fn(&mut Settings, &Value) -> Option<()>,
}

const COUNT: &str = "a whole number, not negative";
const NUMBER: &str = "a number";
const MILLISECONDS: &str = "milliseconds, a whole number";

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
    key!("devices", "only", "a list of APIs, such as [\"cpu\", \"cuda\"] (of cpu, cuda, rocm, vulkan, wgpu, opencl, pjrt, fpga, onnxruntime, qat, af_alg)", apis => only),
    key!("devices", "leave_out", "a list of devices, such as [\"cuda:1\"]", devices => leave_out),
    key!("devices", "pick", "a list of devices or parts of names, such as [\"wgpu:0\", \"radeon\"]", picks => selection.pick),
    key!("devices", "power", "\"high\" or \"low\"", power => selection.power),
    key!("devices", "threads", COUNT, some_count => open.threads),
    key!("devices", "pool_bytes_max", COUNT, some_count => open.memory.pool_bytes_max),
    key!("devices", "pinned_bytes_max", COUNT, some_count => open.memory.pinned_bytes_max),
    key!("devices", "device_bytes_max", COUNT, some_count => open.memory.device_bytes_max),
    key!("devices", "memory", MEMORY, memory => memory),
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
    key!("health", "hot_celsius", NUMBER, number => health.hot_celsius),
    key!("health", "cool_celsius", NUMBER, number => health.cool_celsius),
    key!("health", "hot_capacity", NUMBER, number => health.hot_capacity),
    key!("health", "memory_percent_max", NUMBER, number => health.memory_percent_max),
    key!("health", "memory_percent_resume", NUMBER, number => health.memory_percent_resume),
    key!("health", "error_percent_max", NUMBER, double => health.error_percent_max),
    key!("health", "errors_min", COUNT, small_count => health.errors_min),
    key!("health", "open_wait_min_ms", MILLISECONDS, milliseconds => health.open_wait_min),
    key!("health", "open_wait_max_ms", MILLISECONDS, milliseconds => health.open_wait_max),
    key!("health", "probes_max", COUNT, small_count => health.probes_max),
    key!("health", "probes_needed", COUNT, small_count => health.probes_needed),
    key!("health", "look_every_ms", MILLISECONDS, milliseconds => health.look_every),
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

fn count(value: &Value) -> Option<usize> {
    value.as_integer().and_then(|number| usize::try_from(number).ok())
}

fn some_count(value: &Value) -> Option<Option<usize>> {
    count(value).map(Some)
}

fn small_count(value: &Value) -> Option<u32> {
    value.as_integer().and_then(|number| u32::try_from(number).ok())
}

fn milliseconds(value: &Value) -> Option<Duration> {
    count(value).map(|count| Duration::from_millis(count as u64))
}

fn microseconds(value: &Value) -> Option<Duration> {
    count(value).map(|count| Duration::from_micros(count as u64))
}

fn double(value: &Value) -> Option<f64> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.filter(|number| number.is_finite())
}

fn number(value: &Value) -> Option<f32> {
    double(value).map(|number| number as f32)
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

fn devices(value: &Value) -> Option<Vec<DeviceId>> {
    value.as_array()?.iter().map(|name| name.as_str()?.parse().ok()).collect()
}

fn picks(value: &Value) -> Option<Vec<Pick>> {
    value.as_array()?.iter().map(|name| name.as_str().filter(|name| !name.is_empty()).map(Pick::new)).collect()
}

fn provider(value: &Value) -> Option<CryptoProvider> {
    CryptoProvider::named(value.as_str()?)
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
