//! `panoply demo` as users run it: as a process, without a terminal, in an empty folder.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// An empty folder for one test, removed at its end.
struct EmptyFolder(PathBuf);

impl EmptyFolder {
    fn new(name: &str) -> EmptyFolder {
        let path = std::env::temp_dir().join(format!("panoply-demo-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        EmptyFolder(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
        command.args(arguments).current_dir(&self.0).env_remove("COLUMNS").env_remove("PANOPLY_SIMD");
        command.output().unwrap()
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.as_str()), (Some(0), ""), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for EmptyFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ids(question: &Value) -> Vec<&str> {
    question["hits"].as_array().unwrap().iter().map(|hit| hit["id"].as_str().unwrap()).collect()
}

#[test]
fn the_demonstration_finds_what_is_meant_in_an_empty_folder() {
    let folder = EmptyFolder::new("json");
    let findings: Value = serde_json::from_str(&folder.printed(&["demo", "--json"])).unwrap();
    assert_eq!((findings["rows"].as_u64(), findings["dimension"].as_u64()), (Some(10_000), Some(384)));
    let questions = findings["questions"].as_array().unwrap();
    assert_eq!(questions.len(), 12);
    assert_eq!(ids(&questions[0]), ["hoichess", "chessx", "3dchess"]);
    for question in questions.iter().filter(|question| question["filter"] == "section = games") {
        assert!(question["hits"].as_array().unwrap().iter().all(|hit| hit["metadata"]["section"] == "games"));
    }
    let devices = findings["devices"].as_array().unwrap();
    assert!(devices.iter().all(|device| device["agrees"] == true && device["one_ms"].as_f64().unwrap() > 0.0));
    let cpu = devices.iter().find(|device| device["device"] == "cpu:0").unwrap();
    assert_eq!(cpu["answered_by"], json!(["cpu:0"]));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "the demonstration leaves nothing behind");
}

#[test]
fn the_demonstration_is_text_that_fits() {
    let folder = EmptyFolder::new("text");
    let text = folder.printed(&["demo"]);
    assert!(text.contains("“play chess against the computer”") && text.contains("hoichess"), "{text}");
    assert!(
        text.contains("DEVICE") && text.contains("cpu:0") && text.contains("plain loop") && text.contains('█'),
        "{text}"
    );
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100 && !text.contains('\x1b'), "{widest}: {text}");
}

#[test]
fn data_may_come_from_a_folder() {
    let folder = EmptyFolder::new("data");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
    let findings: Value = serde_json::from_str(&folder.printed(&["demo", "--json", "--data", data])).unwrap();
    assert_eq!(ids(&findings["questions"][0]), ["hoichess", "chessx", "3dchess"]);
    let output = folder.run(&["demo", "--data", "/nonexistent"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(message.contains("/nonexistent") && message.contains("cannot be read"), "{message}");
}
