//! The command as users run it: as a process, without a terminal.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_SIMD").env_remove("PANOPLY_CONFIG");
    // The tests must not use this user's calibration.
    command.env("PANOPLY_CACHE", std::env::temp_dir().join("panoply-cli-no-such-cache"));
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the output of a successful run, and checks that it prints no error.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{arguments:?}");
    stdout(&output)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).unwrap()
}

/// Returns the error text of a failing run, and checks that it prints no output.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(code), ""), "{arguments:?}");
    stderr(&output)
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn help_teaches() {
    let help = printed(&["--help"]);
    for word in ["devices", "plan", "bench", "Examples:", "PANOPLY_SIMD", "NO_COLOR", "Exit codes:", "130"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
    assert!(printed(&["bench", "--help"]).contains("--plot"));
    assert!(printed(&["--version"]).starts_with("panoply "));
}

#[test]
fn nothing_to_do_shows_the_help() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage: panoply"));
}

#[test]
fn completions_and_the_manual_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("panoply") && script.contains("calibrate"), "{shell}: {script}");
    }
    assert!(refused(&["completions", "abacus"], 2).contains("bash"));
    let page = printed(&["man"]);
    assert!(page.contains(".TH panoply 1") && page.contains("PANOPLY_SIMD") && page.contains("bench(1)"), "{page}");
    let page = printed(&["man", "bench"]);
    assert!(page.contains(".TH panoply-bench 1") && page.contains("calibrate"), "{page}");
    assert!(printed(&["man", "vectors", "search"]).contains("filter"));
    assert!(refused(&["man", "vectors", "juggle"], 2).contains("`vectors juggle` is no command"));
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["--version"], &["bench", "--list"], &["plan"], &["man"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output =
            command(arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).starts_with("error: the output could not be written"), "{}", stderr(&output));
    }
}

#[test]
fn devices_are_a_table_without_colour_that_fits_a_hundred_columns() {
    let table = printed(&["devices"]);
    assert!(table.starts_with("DEVICE") && table.contains("cpu:0") && table.contains("ready"), "{table}");
    assert!(table.contains("domains: compute") && table.contains(" %)"), "{table}");
    assert!(widest(&table) <= 100 && !table.contains('\x1b'), "{table}");
    // The line may be folded.
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("not here: ") && words.contains("(--all shows why)"), "{table}");
    assert!(table.contains(" core") && !table.contains("units "), "{table}");
    assert!(table.lines().last().unwrap().starts_with("next: "), "{table}");
    let table = printed(&["devices", "--all"]);
    assert!(table.contains("NOT AVAILABLE BECAUSE") && !table.contains("not here: "), "{table}");
    assert!(widest(&table) <= 100, "{table}");
    // The reason once followed the longest backend name without a blank.
    let named = table.lines().find_map(|line| line.strip_prefix("onnxruntime"));
    assert!(named.is_none_or(|rest| rest.starts_with([' ', ':'])), "{table}");
}

#[test]
fn devices_fit_the_width_that_is_asked_for() {
    let output = command(&["devices"]).env("COLUMNS", "64").output().unwrap();
    let table = stdout(&output);
    assert!(widest(&table) <= 64, "{table}");
}

#[test]
fn devices_as_json_tell_everything() {
    let inventory = json(&["devices", "--json", "--api", "cpu"]);
    let backend = &inventory["backends"][0];
    assert_eq!((backend["api"].as_str(), backend["absent"].is_null()), (Some("cpu"), true));
    let device = &backend["devices"][0];
    assert_eq!(device["id"], "cpu:0");
    assert_eq!(device["worker"]["state"], "ready");
    assert_eq!(device["simulated"], false);
    assert!(device["compute_units"].as_u64().unwrap() >= 1);
    assert!(device["features"].is_array() && device["pci_address"].is_null());
}

#[test]
fn the_vector_level_can_be_lowered() {
    let output = command(&["devices", "--json"]).env("PANOPLY_SIMD", "scalar").output().unwrap();
    let inventory: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(inventory["backends"][0]["devices"][0]["compute_capability"], "scalar");
}

#[test]
fn an_api_that_is_unknown_or_absent_is_refused_with_a_reason() {
    let message = refused(&["devices", "--api", "abacus"], 2);
    assert!(message.contains("expected one of cpu,") && message.contains("got abacus"), "{message}");
    let message = refused(&["bench", "--api", "simulated", "add/f32/64"], 1);
    assert!(message.contains("no device was found: simulated: "), "{message}");
}

/// Regression: an API without a device was an error without a table, and --json printed nothing.
#[test]
fn an_api_without_a_device_is_shown_with_its_reason() {
    let table = printed(&["devices", "--api", "simulated"]);
    assert!(table.contains("NOT AVAILABLE BECAUSE") && !table.contains("DEVICE  "), "{table}");
    assert!(table.lines().any(|line| line.starts_with("simulated ")), "{table}");
    let inventory = json(&["devices", "--api", "simulated", "--json"]);
    let backend = &inventory["backends"][0];
    assert_eq!((backend["api"].as_str(), backend["devices"].as_array().unwrap().len()), (Some("simulated"), 0));
    assert!(!backend["absent"]["reason"].as_str().unwrap().is_empty(), "{inventory}");
    assert_eq!(inventory["hardware"].is_object(), cfg!(target_os = "linux"), "{inventory}");
    assert!(inventory["hardware"]["gpus"].is_array() || !cfg!(target_os = "linux"), "{inventory}");
}

#[test]
fn the_plan_is_a_table_and_json() {
    let table = printed(&["plan"]);
    assert!(table.contains("worker            role") && table.contains("cpu:0             application"), "{table}");
    let plan = json(&["plan", "--json"]);
    let slots = plan["slots"].as_array().unwrap();
    let is_application = |slot: &&Value| slot["role"] == "application";
    let application = slots.iter().find(is_application).unwrap();
    assert!(!application["cpus"].as_array().unwrap().is_empty());
    assert!(plan["machine"]["cpus_effective"].as_u64().unwrap() >= 1);
}

#[test]
fn bench_lists_its_cases() {
    let list = printed(&["bench", "--list"]);
    assert!(list.lines().any(|line| line == "add/f32/64"), "{list}");
    let names = json(&["bench", "--list", "--json", "add/"]);
    assert!(names.as_array().unwrap().iter().all(|name| name.as_str().unwrap().starts_with("add/")));
}

#[test]
fn bench_prints_a_table() {
    let table = printed(&["bench", "add/f32/64", "--seconds", "0.01"]);
    assert!(table.starts_with("CASE") && table.lines().count() == 2, "{table}");
    assert!(table.contains("add/f32/64") && table.contains("cpu:0") && table.contains("µs"), "{table}");
    assert!(widest(&table) <= 100);
}

#[test]
fn bench_prints_json_lines() {
    let arguments = ["bench", "add/f32/", "--api", "cpu", "--seconds", "0.01", "--threads", "1", "--json"];
    let rows: Vec<Value> = printed(&arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!((row["api"].as_str(), row["device"].as_str()), (Some("cpu"), Some("cpu:0")));
        assert_eq!(row["threads"], 1);
        assert!(row["ms"].as_f64().unwrap() > 0.0 && row["ms"].as_f64() <= row["wall_ms"].as_f64());
        assert!(row["repeats"].as_u64().unwrap() >= 3);
    }
    assert!(rows[0].get("gb_per_s").is_none() && rows[1]["gb_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_draws_a_chart() {
    let path = std::env::temp_dir().join(format!("panoply-cli-{}.svg", std::process::id()));
    printed(&["bench", "add/f32/64", "--seconds", "0.01", "--plot", path.to_str().unwrap()]);
    let chart = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("add/f32/64 cpu") && chart.contains("class=\"bar\""));
}

#[test]
fn bench_refuses_what_makes_no_sense_before_it_measures() {
    let message = refused(&["bench", "matmull"], 2);
    assert!(message.contains("no case begins with `matmull`") && message.contains(" add, "), "{message}");
    assert!(message.contains("--list") && !message.contains("\\n") && !message.contains("add/"), "{message}");
    for seconds in ["0", "-1", "nan", "inf", "1e9"] {
        let message = refused(&["bench", &format!("--seconds={seconds}")], 2);
        assert!(message.contains("--seconds: expected more than 0"), "{message}");
    }
    for (argument, value) in
        [("--threads", "0"), ("--repeats", "0"), ("--trace-ops", "0"), ("--callers", "0"), ("--callers", "100000000")]
    {
        let message = refused(&["bench", argument, value], 2);
        assert!(message.contains(&format!("{argument}: expected 1 to")), "{message}");
    }
    for ratio in ["0", "-1", "nan"] {
        let message = refused(&["bench", "--chains", ratio], 2);
        assert!(message.contains("--chains: expected a ratio above 0"), "{message}");
    }
    assert!(refused(&["bench", "--threads", "-1"], 2).contains("--threads"));
    let message = refused(&["bench", "--plot", "/nonexistent/folder/chart.svg"], 1);
    assert!(message.contains("/nonexistent/folder/chart.svg"), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    for arguments in [
        &["devices", "--json"][..],
        &["plan"],
        &["--help"],
        &["bench", "--list"],
        &["bench", "add/", "--seconds", "0.01"],
    ] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!((child.wait().unwrap().code(), complaint.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_at_once_and_keeps_the_rows_so_far() {
    let arguments = ["bench", "add/", "map/", "--json", "--seconds", "0.7"];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let start = std::time::Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(start.elapsed().as_millis() < 600, "it went on for {:?}", start.elapsed());
    let row: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(row["case"], "add/f32/64");
}

#[test]
fn explain_says_where_and_why() {
    let lines = printed(&["explain", "matmul", "64", "8x16x4", "--api", "cpu", "--json"]);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_size = |size: &str| rows.iter().filter(|row| row["size"] == size).count();
    assert!(of_size("64") >= 1 && of_size("8x16x4") >= 1, "{lines}");
    assert!(rows.iter().any(|row| row["verdict"].as_str().unwrap().starts_with("chosen")), "{lines}");
    assert!(rows.iter().all(|row| row["finish_us"].as_f64().unwrap() > 0.0), "{lines}");
    let table = printed(&["explain", "sort", "1000", "--api", "cpu"]);
    assert!(table.contains("sort 1000") && table.contains("cpu:0"), "{table}");
}

#[test]
fn explain_draws_curves() {
    let file = std::env::temp_dir().join(format!("panoply-cli-{}.svg", std::process::id()));
    printed(&["explain", "map", "64", "--api", "cpu", "--plot", file.to_str().unwrap()]);
    let chart = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("class=\"curve\"") && chart.contains("cpu:0"));
}

#[test]
fn explain_refuses_what_it_does_not_know() {
    assert!(refused(&["explain", "juggle", "64"], 2).contains("expected one of matmul"));
    assert!(refused(&["explain", "matmul", "64xx"], 2).contains("N or MxKxN"));
    assert!(refused(&["explain", "sort", "4x4", "--api", "cpu"], 2).contains("of the form N"));
}

#[test]
fn settings_are_read_and_mistakes_in_them_are_told() {
    let folder = std::env::temp_dir().join(format!("panoply-cli-settings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("settings.toml");
    let with = |content: &str| {
        std::fs::write(&file, content).unwrap();
        command(&["devices", "--api", "cpu", "--json"]).env("PANOPLY_CONFIG", &file).output().unwrap()
    };
    let wrong = with("[limits]\nqueue_dept_max = 7\n");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("did you mean `queue_depth_max`?"), "{}", stderr(&wrong));
    let right = with("[limits]\nqueue_depth_max = 7\n");
    let inventory: Value = serde_json::from_str(&stdout(&right)).unwrap();
    assert_eq!(inventory["backends"][0]["devices"][0]["worker"]["queue_depth_max"], 8);
    assert_eq!(inventory["backends"][0]["devices"][0]["worker"]["health"]["circuit"], "closed");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Regression: an endless file was read until memory ran out.
#[test]
#[cfg(target_os = "linux")]
fn settings_without_an_end_are_refused_and_an_empty_name_is_none() {
    let with = |file: &str| command(&["devices", "--api", "cpu"]).env("PANOPLY_CONFIG", file).output().unwrap();
    let endless = with("/dev/zero");
    assert_eq!(endless.status.code(), Some(1));
    assert!(stderr(&endless).contains("regular file"), "{}", stderr(&endless));
    assert_eq!(with("").status.code(), Some(0));
}

/// Regression: both were warnings, and the command went on as if they were not set.
#[test]
fn variables_that_are_not_understood_are_refused() {
    for (variable, value, expected) in
        [("PANOPLY_SIMD", "avx9", "scalar, neon, avx2 or avx512"), ("PANOPLY_CACHE", "relative", "an absolute path")]
    {
        let output = command(&["explain", "sort", "64", "--api", "cpu"]).env(variable, value).output().unwrap();
        let told = format!("{variable}: expected {expected}, got {value}");
        assert!(output.status.code() == Some(1) && stderr(&output).contains(&told), "{}", stderr(&output));
    }
}

#[test]
fn misspelt_names_are_recognised() {
    for (arguments, meant) in [
        (&["explain", "matmull", "64"][..], "matmul"),
        (&["devices", "--api", "cudaa"], "cuda"),
        (&["bench", "serach/f32", "--list"], "search"),
    ] {
        let message = refused(arguments, 2);
        assert!(message.to_lowercase().contains(&format!("did you mean `{meant}`?")), "{message}");
    }
    assert!(!refused(&["explain", "xyz", "64"], 2).contains("did you mean"));
}

/// Runs a command in a new folder with this `panoply.toml`, and returns its notes.
fn notes_with(settings: &str, name: &str, arguments: &[&str]) -> String {
    let folder = std::env::temp_dir().join(format!("panoply-cli-notes-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("panoply.toml"), settings).unwrap();
    let output = command(arguments).current_dir(&folder).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stdout(&output).is_empty());
    stderr(&output)
}

/// Regression: a file in a stranger's folder changed the command without a word.
#[test]
fn settings_of_the_current_folder_are_mentioned() {
    const SETTINGS: &str = "[limits]\nqueue_depth_max = 7\n";
    let list = ["bench", "--list"];
    let with = |option: &'static str| [&list[..], &[option]].concat();
    let note = notes_with(SETTINGS, "some", &list);
    assert!(note.starts_with("note: ") && note.contains("panoply.toml") && note.lines().count() == 1, "{note}");
    assert_eq!(notes_with(SETTINGS, "quiet", &with("-q")), "");
    assert_eq!(notes_with("# nothing\n", "default", &list), "");
    assert!(notes_with("# nothing\n", "verbose", &with("--verbose")).contains("panoply.toml"));
    assert!(refused(&with("-qv"), 2).contains("--verbose"));
}

#[test]
fn an_error_in_the_settings_has_its_line() {
    let folder = std::env::temp_dir().join(format!("panoply-cli-line-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("wrong.toml");
    std::fs::write(&file, "# one\n[limits]\nqueue_depth_max = = 7\n").unwrap();
    let output = command(&["devices", "--api", "cpu"]).env("PANOPLY_CONFIG", &file).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(stderr(&output).contains("wrong.toml, line 3: "), "{}", stderr(&output));
}

#[test]
fn colours_are_used_when_they_are_wanted() {
    let coloured = |arguments: &[&str], no_color: &str| {
        let output = command(arguments).env("NO_COLOR", no_color).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).contains('\x1b')
    };
    assert!(!coloured(&["plan"], "") && !coloured(&["plan", "--color", "auto"], ""));
    assert!(coloured(&["--color", "always", "plan"], "1") && coloured(&["plan", "--color=always"], ""));
    assert!(!coloured(&["plan", "--color", "never"], ""));
    assert!(refused(&["plan", "--color", "often"], 2).contains("always"));
}

/// Regression: tables, and bars of 172 columns, were wider than the terminal.
#[test]
fn nothing_is_wider_than_the_terminal() {
    let graph = concat!(env!("CARGO_MANIFEST_DIR"), "/data/mlp.graph");
    for columns in ["40", "80"] {
        for arguments in [
            &["devices"][..],
            &["plan"],
            &["explain", "matmul", "64", "1024"],
            &["bench", "sort/f32", "--seconds", "0.01", "--api", "cpu"],
            &["graph", graph, "--size", "batch=64"],
            &["signal", "decode"],
            &["signal", "ber", "--from", "2", "--to", "4", "--bits", "100000"],
            &["signal", "realtime", "--seconds", "0.1", "--rate", "200000", "--period-us", "10000"],
            &["demo"],
        ] {
            let output = command(arguments).env("COLUMNS", columns).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
            for line in stdout(&output).lines() {
                // A word that is wider stays whole.
                let fits = line.chars().count() <= columns.parse().unwrap() || !line.trim().contains(' ');
                assert!(fits, "{arguments:?} at {columns} columns: {line:?}");
                assert!(line.matches('█').count() <= 60, "{line:?}");
            }
        }
    }
}

#[test]
fn a_damaged_profile_is_a_warning_and_no_more() {
    let folder = std::env::temp_dir().join(format!("panoply-cli-profile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("profile.txt"), "panoply profile 2\nnonsense\n").unwrap();
    let output = command(&["explain", "sort", "64", "--api", "cpu"]).env("PANOPLY_CACHE", &folder).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = stderr(&output);
    assert!(said.starts_with("warning: ") && said.contains("line 2") && said.contains("--calibrate"), "{said}");
}
