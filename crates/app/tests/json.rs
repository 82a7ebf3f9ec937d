//! The JSON output of every command has the keys and types that `docs/json.md` lists.
//!
//! Each run belongs to a section of the page. A key that the page does not list fails, and so does
//! one that the page lists and no run prints, unless its description begins with “Only”.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use panoply::inputs::picture::Picture;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/json.md");
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data");

/// Sections of the page, and runs of the command in order. `DATA` is the folder of the command's
/// data, and the other files lie in a folder of the test.
const RUNS: [(&str, &str); 51] = [
    ("devices", "devices"),
    ("plan", "plan"),
    ("bench", "bench add/f32/64 --api cpu --seconds 0.01"),
    ("bench --list", "bench --list"),
    ("bench --callers", "bench --callers 2 --api cpu --seconds 0.01"),
    ("bench --chains", "bench --chains --api cpu --seconds 0.01"),
    ("bench --trace", "bench --trace --trace-ops 50"),
    ("bench --models", "bench --models models --api cpu --seconds 0.01"),
    ("bench --models --callers", "bench --models models --callers 2 --api cpu --seconds 0.01"),
    ("explain", "explain matmul 64"),
    ("graph", "graph DATA/mlp.graph --size batch=4"),
    ("graph MODEL.onnx", "graph models/relu.onnx"),
    ("demo", "demo"),
    ("train", "train --device cpu:0 --epochs 1"),
    ("infer", "infer DATA/models/ppocr-cls/model.onnx"),
    ("infer", "infer DATA/models/ppocr-cls/model.onnx --input x=DATA/upside-down.npy"),
    (
        "infer",
        "infer DATA/models/ppocr-cls/model.onnx --input x=DATA/upside-down.npy --output save_infer_model/scale_0.tmp_1=out.npy",
    ),
    ("infer", "infer DATA/models/ppocr-cls/model.onnx --image red.png --profile"),
    ("embed", "embed text/counting.onnx --text hello"),
    ("embed --into", "embed text/counting.onnx --text hello --into notes"),
    ("vectors create", "vectors create packages --dimension 384 --storage f16"),
    ("vectors import", "vectors import packages DATA/debian-packages.npy --records DATA/debian-packages.jsonl"),
    ("vectors search", "vectors search packages --id chessx -k 3 --filter section=games"),
    ("vectors get", "vectors get packages chessx none"),
    ("vectors count", "vectors count packages"),
    ("vectors ids", "vectors ids packages --limit 2"),
    ("vectors update", "vectors update packages chessx --metadata {\"section\":\"games\"}"),
    ("vectors tune", "vectors tune packages"),
    ("vectors info", "vectors info packages --verify"),
    ("vectors info", "vectors info notes"),
    ("vectors snapshot", "vectors snapshot notes copy"),
    ("vectors export", "vectors export notes notes.parquet"),
    ("vectors compact", "vectors compact packages"),
    ("vectors repair", "vectors repair packages"),
    ("vectors delete", "vectors delete notes --id 1"),
    ("vectors delete", "vectors delete copy --yes"),
    ("store init", "store init vault --key-file vault.key --generate"),
    ("store put", "store put vault text --key-file vault.key"),
    ("store ls", "store ls vault --key-file vault.key"),
    ("store get", "store get vault text/vocab.txt --to vocab.txt --key-file vault.key"),
    ("store verify", "store verify vault --key-file vault.key"),
    ("store repair", "store repair vault --key-file vault.key"),
    ("store rotate", "store rotate vault --key-file vault.key --new-key-file new.key --generate"),
    ("store rm", "store rm vault text/vocab.txt --key-file new.key"),
    ("store bench", "store bench . --mib 1"),
    ("signal record", "signal record two.sigmf-meta --packet one --packet two"),
    ("signal decode", "signal decode two.sigmf-meta"),
    ("signal spectrum", "signal spectrum two.sigmf-meta --bins 16"),
    ("signal waterfall", "signal waterfall two.sigmf-meta --bins 16 --rows 4"),
    ("signal ber", "signal ber --from 2 --to 3 --bits 100000"),
    ("signal realtime", "signal realtime --seconds 0.2 --rate 200000 --period-us 10000"),
];

/// Sections whose commands run for too long for a test.
const NOT_RUN: [(&str, &str); 1] = [("bench --calibrate", "measures every kind of op for about a minute")];

/// The types of each key of a section.
type Keys = BTreeMap<String, BTreeSet<String>>;

#[test]
fn every_command_prints_the_keys_of_the_page() {
    let folder = std::env::temp_dir().join(format!("panoply-json-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("models")).unwrap();
    std::fs::create_dir_all(folder.join("text")).unwrap();
    std::fs::write(folder.join("models/relu.onnx"), super::models::RELU).unwrap();
    std::fs::write(folder.join("text/counting.onnx"), super::models::counting()).unwrap();
    std::fs::write(folder.join("text/vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld\n").unwrap();
    let red = Picture::from_rgb(4, 3, [255, 0, 0].repeat(12)).unwrap();
    std::fs::write(folder.join("red.png"), red.encode(false).unwrap()).unwrap();
    let mut printed: BTreeMap<&str, Keys> = BTreeMap::new();
    for (section, line) in RUNS {
        let keys = printed.entry(section).or_default();
        documents(&folder, line).iter().for_each(|value| collect(value, String::new(), keys));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let page = sections();
    let mut problems = Vec::new();
    for (section, keys) in &printed {
        match page.get(*section) {
            Some(rows) => problems.extend(differences(section, keys, rows)),
            None => problems.push(format!("no section `{section}`, with {}", rows_of(keys))),
        }
    }
    let known =
        |section: &&String| printed.contains_key(section.as_str()) || NOT_RUN.iter().any(|run| run.0 == **section);
    problems.extend(page.keys().filter(|section| !known(section)).map(|section| format!("no run of `{section}`")));
    assert!(problems.is_empty(), "docs/json.md:\n{}", problems.join("\n"));
}

#[test]
fn every_command_with_json_has_a_section() {
    let mut commands = Vec::new();
    commands_with_json(&[], &mut commands);
    assert!(commands.len() > 30, "{commands:?}");
    let page = sections();
    let missing: Vec<&String> = commands.iter().filter(|name| !page.contains_key(*name)).collect();
    assert!(missing.is_empty(), "docs/json.md has no section of {missing:?}");
}

/// Runs the command with `--json`, and returns the JSON documents that it prints.
fn documents(folder: &Path, line: &str) -> Vec<Value> {
    let arguments = line.split(' ').map(|word| word.replace("DATA/", &format!("{DATA}/")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).arg("--json").current_dir(folder).env_remove("PANOPLY_CONFIG");
    command.env("PANOPLY_CACHE", folder.join("cache")).env("XDG_STATE_HOME", folder.join("state"));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let values = serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<Vec<Value>, _>>();
    let values = values.unwrap_or_else(|error| panic!("{line}: {error} in\n{text}"));
    assert!(!values.is_empty(), "{line} printed nothing");
    values
}

/// Adds the path and the type of each value. `[]` stands for the elements of an array.
fn collect(value: &Value, path: String, keys: &mut Keys) {
    let kind = match value {
        Value::Array(values) if !values.is_empty() => {
            return values.iter().for_each(|value| collect(value, format!("{path}[]"), keys));
        }
        Value::Object(fields) if !fields.is_empty() => {
            let dot = if path.is_empty() { "" } else { "." };
            return fields.iter().for_each(|(name, value)| collect(value, format!("{path}{dot}{name}"), keys));
        }
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    keys.entry(path).or_default().insert(kind.to_owned());
}

/// A line of the page's tables.
struct Row {
    path: String,
    types: BTreeSet<String>,
    /// Whether the key is printed in some cases only.
    sometimes: bool,
}

impl Row {
    fn parse(line: &str) -> Option<Row> {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (path, types, meaning) = (cells.next()?, cells.next()?, cells.next()?);
        let path = path.trim_end_matches('`').to_owned();
        let types = types.split(", ").map(str::to_owned).collect();
        Some(Row { path, types, sometimes: meaning.starts_with("Only") })
    }

    /// Whether the row describes a value at this path. Empty arrays and objects match rows of their
    /// contents.
    fn describes(&self, path: &str, kind: &str) -> bool {
        let free = self.path.strip_suffix(".*");
        let stem = free.unwrap_or(&self.path);
        let below = |end: &str| stem.strip_prefix(path).is_some_and(|rest| rest.starts_with(end));
        let is_exact = match free {
            Some(stem) => path == stem || path.starts_with(&format!("{stem}.")),
            None => self.path == path && self.types.contains(kind),
        };
        is_exact || (kind == "array" && below("[]")) || (kind == "object" && below("."))
    }
}

/// Returns the rows of each section of the page.
fn sections() -> BTreeMap<String, Vec<Row>> {
    let mut sections = BTreeMap::new();
    for text in PAGE.split("\n## `panoply ").skip(1) {
        let (name, body) = text.split_once("`\n").unwrap();
        sections.insert(name.to_owned(), body.lines().filter_map(Row::parse).collect());
    }
    sections
}

fn differences(section: &str, keys: &Keys, rows: &[Row]) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, kinds) in keys {
        let unknown = |kind: &&String| !rows.iter().any(|row| row.describes(path, kind));
        let unknown: Vec<&String> = kinds.iter().filter(unknown).collect();
        if !unknown.is_empty() {
            problems.push(format!("`{section}` prints `{path}` of {unknown:?}"));
        }
    }
    for row in rows.iter().filter(|row| !row.sometimes) {
        if !keys.iter().any(|(path, kinds)| kinds.iter().any(|kind| row.describes(path, kind))) {
            problems.push(format!("`{section}` does not print `{}`", row.path));
        }
    }
    problems
}

fn rows_of(keys: &Keys) -> String {
    let row = |(path, kinds): (&String, &BTreeSet<String>)| {
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        format!("\n| `{path}` | {} |  |", kinds.join(", "))
    };
    keys.iter().map(row).collect()
}

/// Adds the names of all commands below `words` whose help has `--json`.
fn commands_with_json(words: &[&str], found: &mut Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_panoply")).args(words).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    // Examples in the help begin with the command's name.
    if help.lines().any(|line| line.trim() == "--json" || line.trim().starts_with("--json ")) {
        found.push(words.join(" "));
    }
    let nested = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or(rest));
    for name in nested.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
        if !name.is_empty() && name != "help" {
            commands_with_json(&[words, &[name]].concat(), found);
        }
    }
}
