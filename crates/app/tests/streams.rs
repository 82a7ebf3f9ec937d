//! Standard streams that are closed, or open in the wrong direction.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::process::{Command, Output, Stdio};

use crate::store::support::Folder;
use crate::store_safety::told;

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
        let output = command.args(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(told(&output), (Some(0), String::new()), "{arguments:?}");
    }
}

/// Regression: an empty object was stored.
#[test]
fn a_closed_input_is_not_an_empty_one() {
    let folder = Folder::new("closed-input");
    let put = ["store", "put", "safe", "-", "--name", "empty", "--key-file", "safe.key"];
    let import = ["vectors", "import", "words", "-"];
    folder.write("output", "");
    assert!(run(&folder, &["vectors", "create", "words", "--dimension", "3"], "").status.success());
    for redirection in ["<&-", "0>output"] {
        for arguments in [&put[..], &import] {
            let (code, complaint) = told(&run(&folder, arguments, redirection));
            assert_eq!(code, Some(1), "{arguments:?} {redirection}: {complaint}");
            assert!(complaint.contains("the standard input is closed or not open for reading"), "{complaint}");
        }
    }
    assert!(!folder.printed(&["ls", "safe", "--key-file", "safe.key"]).contains("empty"));
    assert!(run(&folder, &put, "</dev/null").status.success());
    assert!(folder.printed(&["ls", "safe", "--key-file", "safe.key"]).contains("empty"));
}
