//! Standard streams that are closed, blocked, or open in the wrong direction, and limits of the
//! system.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::store::support::Folder;
use crate::store_safety::{full_pipe, noise, signal, told};

/// Runs the command with a redirection of the shell.
fn run(folder: &Folder, arguments: &[&str], redirection: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$@\" {redirection}"), "sh", env!("CARGO_BIN_EXE_panoply")]).args(arguments);
    command.current_dir(&folder.0).env("XDG_STATE_HOME", folder.path("state")).env_remove("PANOPLY_CONFIG");
    command.env("PANOPLY_CACHE", folder.path("cache")).stdin(Stdio::null()).output().unwrap()
}

/// Regression: the output was lost, and the exit code was 0.
#[test]
fn a_closed_output_is_an_error() {
    let folder = Folder::new("closed-output");
    folder.write("file", "content");
    let kept = ["--key-file", "safe.key"];
    let lines: [&[&str]; 15] = [
        &["devices"],
        &["devices", "--json"],
        &["plan", "--json"],
        &["--help"],
        &["bench", "--help"],
        &["--version"],
        &["bench", "--list"],
        &["explain", "map", "64", "--api", "cpu", "--json"],
        &["man"],
        &["completions", "bash"],
        &["signal", "decode"],
        &["vectors", "create", "words", "--dimension", "3", "--json"],
        &["store", "ls", "safe", kept[0], kept[1], "--json"],
        &["store", "put", "safe", "file", kept[0], kept[1]],
        &["store", "get", "safe", "--all", "--to", "copy", kept[0], kept[1]],
    ];
    for arguments in lines {
        for redirection in [">&-", "1</dev/null"] {
            let (code, complaint) = told(&run(&folder, arguments, redirection));
            assert_eq!(code, Some(1), "{arguments:?} {redirection}: {complaint}");
            let expected = "error: the standard output is closed or not open for writing, so nothing was done";
            assert!(complaint.starts_with(expected) && complaint.contains("/dev/null"), "{arguments:?}: {complaint}");
        }
    }
    assert!(!folder.path("words").exists() && !folder.path("copy").exists(), "nothing was done");
    assert!(!folder.printed(&["ls", "safe", kept[0], kept[1]]).contains("file"));
    // An error in the command line is printed elsewhere.
    assert_eq!(told(&run(&folder, &["bench", "--api", "abacus"], ">&-")).0, Some(2));
}

#[test]
fn an_output_that_leads_nowhere_is_no_error() {
    let folder = Folder::new("no-reader");
    for arguments in [&["devices"][..], &["devices", "--json"], &["plan"], &["--help"], &["--version"]] {
        for redirection in ["", ">/dev/null", "1<>/dev/null", "2>&-", "<&-"] {
            let (code, complaint) = told(&run(&folder, arguments, redirection));
            assert_eq!((code, complaint.as_str()), (Some(0), ""), "{arguments:?} {redirection}");
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
        command.args(arguments).env_remove("PANOPLY_CONFIG").env("PANOPLY_CACHE", folder.path("cache"));
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(told(&output), (Some(0), String::new()), "{arguments:?}");
    }
}

/// Regression: an empty object was stored.
#[test]
fn a_closed_input_is_not_an_empty_one() {
    let folder = Folder::new("closed-input");
    let put = ["store", "put", "safe", "-", "--name", "empty", "--key-file", "safe.key"];
    let import = ["vectors", "import", "words", "-"];
    let search = ["vectors", "search", "words", "--vector", "-"];
    folder.write("output", "");
    assert!(run(&folder, &["vectors", "create", "words", "--dimension", "3"], "").status.success());
    for redirection in ["<&-", "0>output"] {
        for arguments in [&put[..], &import, &search] {
            let (code, complaint) = told(&run(&folder, arguments, redirection));
            assert_eq!(code, Some(1), "{arguments:?} {redirection}: {complaint}");
            assert!(complaint.contains("the standard input is closed or not open for reading"), "{complaint}");
        }
    }
    assert!(!folder.printed(&["ls", "safe", "--key-file", "safe.key"]).contains("empty"));
    assert!(run(&folder, &put, "</dev/null").status.success());
    assert!(folder.printed(&["ls", "safe", "--key-file", "safe.key"]).contains("empty"));
}

/// Regression: a process that could not write its final message could not be ended by a signal.
#[test]
fn a_signal_ends_a_command_whose_error_output_is_blocked() {
    let folder = Folder::new("blocked");
    let (_reader, writer) = full_pipe();
    let put = Folder::keyed(&["put", "safe", "-", "--name", "endless"]);
    let mut child = folder.command(&put).stdin(Stdio::piped()).stderr(writer).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // More bytes than a pipe holds, so the command has begun to read.
    input.write_all(&[7; 3_000_000]).unwrap();
    signal(&child, Signal::TERM);
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// Regression: the system ended the process, without a message.
#[test]
fn a_limit_of_file_sizes_is_an_error_like_a_full_disk() {
    let folder = Folder::new("file-limit");
    folder.write("noise", noise(400_000));
    assert!(folder.run(&Folder::keyed(&["put", "safe", "noise"])).status.success());
    for (arguments, reason) in
        [("put safe noise --replace", "no space is left"), ("get safe noise --to copy", "the output: File too large")]
    {
        let mut command = Command::new("sh");
        let line = format!("ulimit -f 100; exec \"$0\" store {arguments} --key-file safe.key");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_panoply")]).current_dir(&folder.0);
        let output = command.env("XDG_STATE_HOME", folder.path("state")).output().unwrap();
        let (code, complaint) = told(&output);
        assert!(code == Some(1) && complaint.contains(reason), "{arguments}: {code:?}: {complaint}");
    }
    assert!(!folder.path("copy").exists());
    folder.printed(&Folder::keyed(&["verify", "safe"]));
}

/// Regression: the key took the whole input, and an empty object was stored.
#[test]
fn the_input_is_not_read_as_two_things() {
    let folder = Folder::new("two-readers");
    for input in ["/dev/stdin", "/dev/fd/0"] {
        let put = ["put", "safe", "-", "--name", "object", "--key-file", input];
        let rotate = ["rotate", "safe", "--key-file", input, "--new-key-file", input];
        for arguments in [&put[..], &rotate] {
            let refused = folder.refused(arguments, 2);
            assert!(refused.contains(&format!("{input}: expected another source of the key")), "{refused}");
        }
        let import = ["vectors", "import", "words", "-", "--passphrase-file", input];
        assert_eq!(told(&run(&folder, &import, "")).0, Some(2));
    }
    assert_eq!(folder.json(&["ls", "safe"])["objects"].as_array().unwrap().len(), 0);
}
