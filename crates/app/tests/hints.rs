//! Messages that say what to do next, in the words of the command.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs;
use std::process::{Command, Output};

use crate::store::support::Folder;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_SIMD").env_remove("PANOPLY_CONFIG");
    command.env("PANOPLY_CACHE", std::env::temp_dir().join("panoply-hints-no-such-cache"));
    command
}

fn refused(mut command: Command, code: i32) -> String {
    let output: Output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((output.status.code(), printed.as_str()), (Some(code), ""), "{command:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The text on one line.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_folder_of_objects_is_removed_by_its_prefix() {
    let folder = Folder::new("hints-prefix");
    for name in ["letters/first.txt", "letters/second.txt", "letters.txt", "notes.txt"] {
        folder.write(name, "text");
    }
    folder.printed(&Folder::keyed(&["put", "safe", "letters", "letters.txt", "notes.txt"]));
    let message = folder.refused(&Folder::keyed(&["rm", "safe", "letters"]), 1);
    let expected = "there is no object `letters`, but 2 objects below it; --prefix letters/ removes all of them";
    assert!(message.contains(expected), "{message}");
    let message = folder.refused(&Folder::keyed(&["rm", "safe", "nothing"]), 1);
    assert!(message.contains("`panoply store ls` names") && !message.contains("append"), "{message}");
    let message = folder.refused(&Folder::keyed(&["rm", "safe", "--prefix", "letter-"]), 1);
    assert!(message.contains("no object has a name that begins with `letter-`"), "{message}");
    assert!(folder.refused(&Folder::keyed(&["rm", "safe", "--prefix", ""]), 2).contains("the beginning of a name"));
    assert!(folder.refused(&Folder::keyed(&["rm", "safe"]), 2).contains("required"));
    assert!(folder.refused(&Folder::keyed(&["rm", "safe", "notes.txt", "--prefix", "l"]), 2).contains("--prefix"));
    let removed = folder.json(&["rm", "safe", "--prefix", "letters/"]);
    assert_eq!((removed["removed"].as_u64(), removed["left"].as_u64()), (Some(2), Some(2)), "{removed}");
    let left = folder.json(&["ls", "safe"]);
    let names: Vec<&str> = left["objects"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["letters.txt", "notes.txt"]);
}

#[test]
fn hints_of_stores_fit_the_command() {
    let folder = Folder::new("hints-store");
    folder.write("etc/passwd", "root");
    let message = folder.refused(&Folder::keyed(&["ls", "etc"]), 1);
    assert!(message.contains("name the folder of a store") && !message.contains("--generate"), "{message}");
    let message = folder.refused(&Folder::keyed(&["ls", "new"]), 1);
    assert!(
        message.contains("`panoply store init ") && message.contains("new --key-file FILE --generate`"),
        "{message}"
    );
    let message = folder.refused(&["init", "other", "--key-file", "new.key"], 1);
    assert!(message.contains("new.key does not exist; --generate makes a new key"), "{message}");
    assert!(!folder.path("other").join("HEAD").exists());
    folder.write("more.txt", "text");
    let message = folder.refused(&Folder::keyed(&["put", "safe", "more.txt", "--append"]), 1);
    assert!(message.contains("`put` without --append makes a new object"), "{message}");
}

#[test]
fn the_bench_of_a_store_says_what_it_will_write() {
    let folder = Folder::new("hints-bench");
    let shown = unwrapped(&folder.printed(&["bench", ".", "--mib", "2"]));
    assert!(shown.starts_with("Writes ") && shown.contains(" of 2.0 MiB in ."), "{shown}");
    assert!(shown.contains("twice, and deletes them again"), "{shown}");
}

#[test]
fn hints_of_collections_fit_the_command() {
    let folder = Folder::new("hints-vectors");
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (collection, rows) = (path("colours"), path("rows.jsonl"));
    assert!(command(&["vectors", "create", &collection, "--dimension", "2"]).status().unwrap().success());
    fs::write(&rows, "{\"id\": \"red\", \"vector\": [1, 0]}\n").unwrap();
    assert!(command(&["vectors", "import", &collection, &rows]).status().unwrap().success());
    let ids = format!("`panoply vectors ids {collection}` lists all ids");
    for arguments in [
        &["vectors", "search", &collection, "--id", "green"][..],
        &["vectors", "get", &collection, "green"],
        &["vectors", "update", &collection, "green", "--metadata", "null"],
    ] {
        let message = refused(command(arguments), 1);
        assert!(message.contains("no record") && message.contains(&ids), "{message}");
    }
    let message = refused(command(&["vectors", "create", &collection, "--dimension", "2"]), 1);
    assert!(message.contains("vectors info") && !message.contains("delete"), "{message}");
    let message = refused(command(&["vectors", "import", &collection, &rows]), 1);
    assert!(message.contains("import with --replace") && !message.contains("upsert"), "{message}");
    let message = refused(command(&["vectors", "info", &path(".")]), 1);
    assert!(message.contains("name the folder of a collection") && !message.contains("--dimension"), "{message}");
    for (number, expected) in [
        ("-3", "--dimension: expected a whole number, not negative, got -3"),
        ("3.5", "--dimension: expected a whole number, not negative, got 3.5"),
        ("99999999999999999999999", "--dimension: expected a smaller number, got 999"),
    ] {
        let message = refused(command(&["vectors", "create", "x", "--dimension", number]), 2);
        assert!(message.contains(expected) && !message.contains("digit"), "{message}");
    }
    let message = refused(command(&["vectors", "search", &collection, "--id", "red", "--within", "near"]), 2);
    assert!(message.contains("--within: expected a number, got near"), "{message}");
}

#[test]
fn pictures_have_the_ending_of_their_kind() {
    for (option, file) in [("--svg", "x.png"), ("--png", "x.svg")] {
        for kind in ["spectrum", "waterfall"] {
            let message = unwrapped(&refused(command(&["signal", kind, "none.wav", option, file]), 2));
            let expected = format!("{option}: expected a file name that ends in .{}, got {file}", &option[2..]);
            assert!(message.contains(&expected), "{message}");
        }
    }
    for arguments in [
        &["graph", "g.txt", "--svg", "x.png"][..],
        &["explain", "sort", "1000", "--plot", "x.PNG"],
        &["train", "--curve", "x.pdf"],
        &["bench", "--plot", "x.jpg"],
    ] {
        let message = unwrapped(&refused(command(arguments), 2));
        assert!(message.contains("expected a file name that ends in .svg, got x."), "{message}");
    }
}

#[test]
fn a_fault_in_the_settings_is_named_with_its_line() {
    let folder = Folder::new("hints-settings");
    folder.write("panoply.toml", "[devices]\nthreads = 2\n[limits\n");
    let mut devices = command(&["devices", "--api", "cpu"]);
    devices.current_dir(&folder.0);
    let message = refused(devices, 1);
    assert!(message.contains("panoply.toml, line 3: unclosed table"), "{message}");
}

#[test]
fn devices_that_the_settings_leave_out_are_said_to_be() {
    let mut devices = command(&["devices"]);
    devices.env("PANOPLY_DEVICES_LEAVE_OUT", "[\"cpu:0\"]").env("PANOPLY_DEVICES_ONLY", "[\"cpu\"]");
    let shown = unwrapped(&String::from_utf8(devices.output().unwrap().stdout).unwrap());
    assert!(shown.contains("not used") && shown.contains("the settings leave these devices out"), "{shown}");
    assert!(!shown.contains("searches on these devices"), "{shown}");
    let mut devices = command(&["devices"]);
    devices.env("PANOPLY_DEVICES_ONLY", "[\"qat\"]");
    let shown = unwrapped(&String::from_utf8(devices.output().unwrap().stdout).unwrap());
    assert!(shown.contains("the settings allow these APIs alone"), "{shown}");
    let mut explain = command(&["explain", "sort", "1000"]);
    explain.env("PANOPLY_DEVICES_ONLY", "[\"qat\"]");
    let message = unwrapped(&refused(explain, 1));
    assert!(message.contains("the settings leave devices out"), "{message}");
}

/// Regression: `--calibrate` measured for half a minute before it found that it could keep nothing.
#[cfg(unix)]
#[test]
fn a_cache_that_cannot_be_written_is_found_before_anything_is_measured() {
    let mut calibrate = command(&["bench", "--calibrate", "--api", "cpu"]);
    calibrate.env("PANOPLY_CACHE", "/dev/null/panoply");
    let message = refused(calibrate, 1);
    assert!(message.contains("nothing was measured") && message.contains("PANOPLY_CACHE"), "{message}");
    let message = refused(command(&["bench", "--calibrate", "--seconds", "0.01"]), 2);
    assert!(message.contains("--seconds"), "{message}");
}

#[test]
fn predictions_before_a_calibration_say_that_they_are_guesses() {
    let explained = command(&["explain", "sort", "1000", "--api", "cpu"]).output().unwrap();
    let shown = unwrapped(&String::from_utf8(explained.stdout).unwrap());
    assert!(shown.contains("(guessed)") && shown.contains("not measured on cpu:0 yet"), "{shown}");
    assert!(shown.contains("`panoply bench --calibrate`"), "{shown}");
    let help = String::from_utf8(command(&["explain", "--help"]).output().unwrap().stdout).unwrap();
    for op in ["matmul", "search", "seal", "hash", "compress"] {
        assert!(help.contains(op), "{op}: {help}");
    }
    let help = unwrapped(&String::from_utf8(command(&["bench", "--help"]).output().unwrap().stdout).unwrap());
    assert!(help.contains("RATE is computed from ON DEVICE, else from BEST"), "{help}");
}
