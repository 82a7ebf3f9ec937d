//! Unusual input: odd vectors, names, paths and terminals.

use super::*;

#[test]
fn a_vector_of_a_wrong_length_is_not_several_queries() {
    let folder = Folder::new("length");
    let path = folder.collection(COLOURS);
    for (vector, code, word) in [
        ("[1, 2, 3, 4, 5, 6]", 1, "holds vectors of 3 components, got 6"),
        ("[1, 2, 3, 4]", 1, "holds vectors of 3 components, got 4"),
        ("[]", 2, "--vector: expected a JSON list of numbers, got an empty one"),
    ] {
        let message = refused(&["vectors", "search", &path, "--vector", vector], code);
        assert!(message.contains(word), "{vector}: {message}");
        let file = folder.write("query.json", vector);
        let output = run(&["vectors", "search", &path, "--vector", &format!("@{file}")]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{vector}");
    }
}

#[test]
fn nothing_that_is_stored_steers_the_terminal() {
    let folder = Folder::new("hostile");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "1", "--metric", "dot", "--name", "a\x1b]0;b\u{9b}c\x07"]);
    let line = r#"{"id": "x\u001b[31m\u009b2J\u202e\r\n", "vector": [1], "f\u001b": "\u001b[H\u007f"}"#;
    printed(&["vectors", "import", &path, &folder.write("rows.jsonl", line)]);
    let id = "x\u{1b}[31m\u{9b}2J\u{202e}\r\n";
    let clean = |text: &str| !text.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}');
    for arguments in [
        &["vectors", "search", &path, "--vector", "[1]"][..],
        &["vectors", "search", &path, "--vector", "[1]", "--json"],
        &["vectors", "info", &path],
        &["vectors", "info", &path, "--json"],
        &["vectors", "ids", &path],
        &["vectors", "get", &path, id],
        &["vectors", "get", &path, id, "--json"],
        &["vectors", "update", &path, id, "--metadata", "{\"n\": 1}"],
    ] {
        let text = printed(arguments).replace('\u{202e}', if arguments.contains(&"--json") { "" } else { "\u{202e}" });
        assert!(clean(&text), "{arguments:?}: {text:?}");
    }
    assert_eq!(json_of(&["vectors", "ids", &path, "--json"])["ids"], json!([id]));
    for arguments in [
        &["vectors", "import", &path, &folder.path("rows.jsonl")][..],
        &["vectors", "search", &path, "--id", "\x1b[2J"],
        &["vectors", "info", "no\x1b[2Jwhere"],
    ] {
        let message = refused(arguments, 1);
        assert!(clean(&message) && message.contains("\\u{1b}["), "{arguments:?}: {message:?}");
    }
}

#[test]
fn tables_fit_narrow_terminals_and_full_disks_are_noticed() {
    let folder = Folder::new("narrow");
    let path = folder.path("a-rather-long-name-of-a-collection-in-a-folder");
    let name = "a-name-that-is-much-longer-than-a-narrow-terminal-is-wide-and-goes-on";
    printed(&["vectors", "create", &path, "--dimension", "4", "--metric", "dot", "--name", name]);
    let lines: String = (0..300)
        .map(|row| format!("{{\"id\": \"record-{row}-日本語日本語日本語日本語\", \"vector\": [{row}e8, 2, 3, 4], \"note\": \"long enough to be cut\"}}\n"))
        .collect();
    printed(&["vectors", "import", &path, &folder.write("in.jsonl", lines)]);
    for arguments in [
        &["vectors", "search", &path, "--vector", "[1, 2, 3, 4]"][..],
        &["vectors", "tune", &path, "--lists", "4", "-k", "100"],
        &["vectors", "info", &path],
        &["vectors", "count", &path],
        &["vectors", "get", &path, "record-7-日本語日本語日本語日本語"],
        &["vectors", "compact", &path],
    ] {
        let output = command(arguments).env("COLUMNS", "40").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains("0/0"), "{arguments:?}: {text}");
        for line in text.lines() {
            let width: usize = line.chars().map(|c| if u32::from(c) >= 0x2e80 { 2 } else { 1 }).sum();
            assert!(width <= 40, "{arguments:?}: {width} columns: {line}");
        }
    }
    if !Path::new("/dev/full").exists() {
        return;
    }
    for arguments in [&["--help"][..], &["--version"], &["vectors", "search", "--help"], &["vectors", "count", &path]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output =
            command(arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains("could not be written"), "{arguments:?}: {message}");
    }
    assert!(printed(&["--help"]).contains("Examples:"));
}

/// Regression: on a terminal the spinner of `tune` showed a count of an unknown length.
#[cfg(target_os = "linux")]
#[test]
fn a_spinner_counts_nothing() {
    let folder = Folder::new("spinner");
    let path = folder.collection(COLOURS);
    let line = format!("{} vectors tune {path} --lists 2", env!("CARGO_BIN_EXE_panoply"));
    match Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("RECALL@10") && !text.contains("0/0"), "{text}");
        }
        Err(error) => println!("skipped: no `script` to make a terminal with: {error}"),
    }
}

/// Regression: JSON cannot hold a path that is not UTF-8, and commands that printed one panicked.
#[test]
#[cfg(target_os = "linux")]
fn a_path_that_is_not_utf_8_can_be_named_in_json() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("not-utf-8");
    let name = std::ffi::OsStr::from_bytes(b"odd-\xff");
    let path = std::path::Path::new(&folder.path("")).join(name);
    let run = |arguments: &[&str], path: &std::path::Path| {
        let output = command(&["vectors"]).arg(arguments[0]).arg(path).args(&arguments[1..]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let made = run(&["create", "--dimension", "2", "--json"], &path);
    assert!(made["path"].as_str().unwrap().ends_with("odd-\u{fffd}"), "{made}");
    for command in ["info", "count", "compact", "repair"] {
        assert_eq!(run(&[command, "--json"], &path)["path"], made["path"], "{command}");
    }
    let copy = path.with_extension("copy").into_os_string();
    let copied = command(&["vectors", "snapshot", "--json"]).arg(&path).arg(&copy).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(run(&["delete", "--yes", "--json"], &path)["path"], made["path"]);
}

#[test]
fn offsets_and_files_without_end_are_bounded() {
    let folder = Folder::new("bounded");
    let path = folder.collection(r#"{"id": "a", "vector": [1, 0, 0]}"#);
    let offset = usize::MAX.to_string();
    let found = json_of(&["vectors", "search", &path, "--id", "a", "--offset", &offset, "--json"]);
    assert_eq!(found["results"][0]["hits"], json!([]));
    #[cfg(unix)]
    assert!(
        refused(&["vectors", "search", &path, "--vector", "@/dev/zero"], 1).contains("more than the 16777216 bytes")
    );
}

/// Regression: trailing blanks of an id were missing in the list.
#[test]
fn listed_ids_are_whole() {
    let folder = Folder::new("whole-ids");
    let path =
        folder.collection("{\"id\": \"a \", \"vector\": [1, 0, 0]}\n{\"id\": \"b\\u202e\", \"vector\": [1, 0, 0]}");
    assert_eq!(printed(&["vectors", "ids", &path]), "a \nb\\u{202e}\n");
    assert!(printed(&["vectors", "ids", &path, "--json"]).contains("\"b\\u202e\""));
}

/// Regression: each page was searched together with all earlier ones, each time among other
/// candidates.
#[test]
fn ranked_pages_repeat_nothing() {
    let folder = Folder::new("ranked-pages");
    let row = |n: u32| {
        let angle = f64::from(n * 7 % 100) * 0.015;
        format!("{{\"id\": \"r{n}\", \"vector\": [{}, {}, 0]}}\n", 3500.0 * angle.cos(), 3500.0 * angle.sin())
    };
    let path = folder.collection(&(0..100).map(row).collect::<String>());
    // A record is not among its own hits.
    for (query, others) in [(["--vector", "[0, 0, 0]"], 100), (["--id", "r5"], 99)] {
        let mut seen = Vec::new();
        for page in 0..10 {
            let offset = (page * 10).to_string();
            let [kind, value] = query;
            let arguments = ["vectors", "search", &path, kind, value, "--rerank", "--offset", &offset, "--json"];
            seen.extend(ids(&json_of(&arguments)["results"][0]).into_iter().map(ToOwned::to_owned));
        }
        assert_eq!(seen.len(), others, "{query:?}");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), others, "{query:?}");
    }
}
