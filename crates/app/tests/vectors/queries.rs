//! Queries through pipes, and filters that cannot be meant.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use super::{COLOURS, Folder, command, ids, printed, records, refused};

/// Returns the output of a command that reads this text from the standard input.
fn piped(arguments: &[&str], input: &str) -> Output {
    let mut command = command(arguments);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn queries_come_through_a_pipe() {
    let folder = Folder::new("piped-queries");
    let path = folder.collection(COLOURS);
    let found = |input: &str| -> Vec<Vec<String>> {
        let output = piped(&["vectors", "search", &path, "--vector", "-", "-k", "1", "--json"], input);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.as_str()), (Some(0), ""), "{input}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let results = found["results"].as_array().unwrap();
        results.iter().map(|result| ids(result).into_iter().map(str::to_owned).collect()).collect()
    };
    assert_eq!(found(" [0.9, 0.1, 0]\n"), [["red"]]);
    assert_eq!(found("\n{\"vector\": [0, 0, 1]}\n{\"id\": \"x\", \"vector\": [1, 0.4, 0]}\n"), [["blue"], ["orange"]]);
    for (input, expected) in [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("[1, 2]", "components"),
        ("nonsense", "the standard input"),
        ("[1,", "JSON"),
    ] {
        let output = piped(&["vectors", "search", &path, "--vector", "-"], input);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && complaint.contains(expected), "{input:?}: {complaint}");
    }
}

/// Regression: "0 hits for 1 query among 0 rows, on nowhere".
#[test]
fn filters_that_cannot_be_meant_are_refused() {
    let folder = Folder::new("filter-types");
    let path = folder.collection(COLOURS);
    let search = ["vectors", "search", &path, "--vector", "[0, 0, 0]", "--filter"];
    let count = ["vectors", "count", &path, "--filter"];
    let ids = ["vectors", "ids", &path, "--filter"];
    let delete = ["vectors", "delete", &path, "--filter"];
    for command in [&search[..], &count, &ids, &delete] {
        let message = refused(&[command, &["rank < abc"]].concat(), 1);
        assert!(message.contains("`rank` is a number in the records") && message.contains("a text"), "{message}");
        let message = refused(&[command, &["rnak < 2"]].concat(), 1);
        assert!(message.contains("`rnak`") && message.contains("did you mean `rank`?"), "{message}");
    }
    assert_eq!(records(&path), 4);
    assert_eq!(printed(&["vectors", "count", &path, "--filter", "rank < 3"]), "2 records\n");
}
