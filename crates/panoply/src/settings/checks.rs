//! Tables become settings, and wrong ones typed errors.

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
    let settings = parse("[devices.bitstreams]\n\"0000:3b:00.1\" = \"a.xclbin\"\n\"fpga:1\" = \"b.xclbin\"\n").unwrap();
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
        ("[batching]\nstrategy = \"fast\"\n", "\"low-latency\", \"time-or-size\", \"adaptive\" or \"high-throughput\""),
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
