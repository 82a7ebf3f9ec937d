//! Every key of the settings changes a setting, and the values of `[health]` have bounds.

use super::{Settings, SettingsError, keys, pools};

fn parse(text: &str) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    settings.set_from_table(&text.parse().unwrap(), "panoply.toml")?;
    Ok(settings)
}

/// A value for each key that differs from the default.
const OTHER_VALUES: &[(&str, &str, &str)] = &[
    ("crypto", "provider", "\"aws-lc\""),
    ("devices", "only", "[\"cpu\"]"),
    ("devices", "leave_out", "[\"cuda:1\"]"),
    ("devices", "pick", "[\"radeon\"]"),
    ("devices", "power", "\"low\""),
    ("devices", "threads", "3"),
    ("devices", "pool_bytes_max", "4096"),
    ("devices", "pinned_bytes_max", "4096"),
    ("devices", "device_bytes_max", "4096"),
    ("devices", "memory", "{ \"cuda:0\" = { pool_bytes_max = 4096 } }"),
    ("devices", "bitstreams", "{ \"fpga:0\" = \"cores.xclbin\" }"),
    ("onnxruntime", "providers", "[\"cuda\"]"),
    ("placement", "cores", "\"own\""),
    ("placement", "realtime", "7"),
    ("placement", "isolated", "true"),
    ("placement", "interrupts", "true"),
    ("limits", "queue_depth_max", "7"),
    ("limits", "batch_max", "7"),
    ("limits", "in_flight_max", "7"),
    ("limits", "op_time_max_ms", "7"),
    ("limits", "reopen_wait_min_ms", "7"),
    ("limits", "reopen_wait_max_ms", "7"),
    ("limits", "reopen_attempts_max", "7"),
    ("limits", "stuck_threads_max", "7"),
    ("routing", "fallback", "\"cpu\""),
    ("routing", "explore_one_in", "7"),
    ("routing", "explore_first", "7"),
    ("routing", "profile", "false"),
    ("routing", "verify", "{ every = 7 }"),
    ("batching", "strategy", "\"adaptive\""),
    ("batching", "size_max", "7"),
    ("batching", "wait_max_us", "7"),
    ("health", "hot_celsius", "90"),
    ("health", "cool_celsius", "70.5"),
    ("health", "hot_capacity", "0.25"),
    ("health", "memory_percent_max", "97"),
    ("health", "memory_percent_resume", "80"),
    ("health", "queue_depth_max", "20_000"),
    ("health", "queue_depth_resume", "8000"),
    ("health", "deep_capacity", "0.5"),
    ("health", "error_percent_max", "20"),
    ("health", "errors_min", "7"),
    ("health", "open_wait_min_ms", "7"),
    ("health", "open_wait_max_ms", "7000"),
    ("health", "probes_max", "7"),
    ("health", "probes_needed", "7"),
    ("health", "look_every_ms", "7"),
    ("health", "system_capacity_min", "0.5"),
    ("health", "refuse_patient", "true"),
];

/// The same for the keys of pools.
const OTHER_POOL_VALUES: &[(&str, &str)] = &[
    ("workers", "7"),
    ("cores", "\"0\""),
    ("core_share", "0.5"),
    ("devices", "[\"cpu:0\"]"),
    ("queue_depth_max", "7"),
    ("batch_size_max", "7"),
    ("batch_size_min", "7"),
    ("batch_wait_us_max", "7"),
    ("memory_bytes_max", "7"),
    ("priority", "\"patient\""),
    ("realtime", "7"),
    ("isolated", "true"),
    ("run_us_max", "7"),
];

#[test]
fn each_key_of_a_pool_changes_a_setting_of_its_own() {
    let mut results = vec![format!("{:?}", Settings::default())];
    for key in pools::POOL_KEYS {
        let value = OTHER_POOL_VALUES.iter().find(|(name, _)| *name == key.name);
        let (name, value) = value.unwrap_or_else(|| panic!("`OTHER_POOL_VALUES` has no value for {}", key.name));
        let set = format!("{:?}", parse(&format!("[pools.short]\n{name} = {value}\n")).unwrap());
        assert!(!results.contains(&set), "pools.short.{name} = {value} changes nothing, or what another key changes");
        results.push(set);
    }
    assert_eq!(OTHER_POOL_VALUES.len(), pools::POOL_KEYS.len(), "`OTHER_POOL_VALUES` has a key that does not exist");
}

#[test]
fn each_key_changes_a_setting_of_its_own() {
    let mut results = vec![format!("{:?}", Settings::default())];
    for key in keys::KEYS {
        let of_key = |(section, name, _): &&(&str, &str, &str)| (key.section, key.name) == (*section, *name);
        let (section, name, value) = OTHER_VALUES
            .iter()
            .find(of_key)
            .unwrap_or_else(|| panic!("`OTHER_VALUES` has no value for {}.{}", key.section, key.name));
        let set = format!("{:?}", parse(&format!("[{section}]\n{name} = {value}\n")).unwrap());
        assert!(!results.contains(&set), "{section}.{name} = {value} changes nothing, or what another key changes");
        results.push(set);
    }
    assert_eq!(OTHER_VALUES.len(), keys::KEYS.len(), "`OTHER_VALUES` has a key that does not exist");
}

/// The bounds of each value of `[health]`, in the file and in the builder.
#[test]
fn values_of_health_beyond_their_bounds_are_refused_by_name() {
    for (key, values) in [
        ("hot_celsius", ["-101", "301", "\"hot\""]),
        ("cool_celsius", ["-101", "301", "nan"]),
        ("hot_capacity", ["0", "1.01", "-1"]),
        ("memory_percent_max", ["-1", "100.5", "true"]),
        ("memory_percent_resume", ["-1", "100.5", "inf"]),
        ("queue_depth_max", ["-1", "4294967296", "1.5"]),
        ("queue_depth_resume", ["-1", "4294967296", "1.5"]),
        ("deep_capacity", ["0", "1.01", "0.04"]),
        ("error_percent_max", ["-0.1", "101", "[]"]),
        ("errors_min", ["0", "-1", "1.5"]),
        ("open_wait_min_ms", ["-1", "1.5", "\"1 s\""]),
        ("open_wait_max_ms", ["-1", "1.5", "\"1 s\""]),
        ("probes_max", ["0", "-1", "1.5"]),
        ("probes_needed", ["0", "-1", "1.5"]),
        ("look_every_ms", ["0", "-1", "1.5"]),
        ("system_capacity_min", ["-0.1", "1.1", "nan"]),
        ("refuse_patient", ["1", "\"yes\"", "0.5"]),
    ] {
        for value in values {
            let error = parse(&format!("[health]\n{key} = {value}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("`health.{key}`: expected ")), "{key} = {value}: {error}");
        }
    }
    let tested = OTHER_VALUES.iter().filter(|(section, _, _)| *section == "health").count();
    assert_eq!(tested, 17, "a new key of [health] needs its bounds here");
    for (text, names) in [
        ("cool_celsius = 86", ["cool_celsius", "hot_celsius"]),
        ("memory_percent_resume = 96", ["memory_percent_resume", "memory_percent_max"]),
        ("queue_depth_resume = 10001", ["queue_depth_resume", "queue_depth_max"]),
        ("open_wait_min_ms = 60001", ["open_wait_min", "open_wait_max"]),
    ] {
        let settings = parse(&format!("[health]\n{text}\n")).unwrap();
        let error = settings.builder().build().unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
    }
    let mut settings = Settings::default();
    settings.health.deep_capacity = f32::NAN;
    let error = settings.builder().build().unwrap_err().to_string();
    assert_eq!(error, "deep_capacity: expected a share from 0.05 to 1, got NaN");
}
