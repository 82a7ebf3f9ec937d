//! `panoply graph` as users run it, with valid, invalid and hostile files.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.arg("graph").args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_CONFIG");
    command.output().unwrap()
}

fn file(name: &str, contents: &[u8]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-graph-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

/// Attention, written out as single ops.
const LAYER: &str = "
graph layer
symbol n
input q f32 [2, n, 8]
input k f32 [2, n, 8]
input v f32 [2, n, 4]
t = permute(k, order=[0, 2, 1])
s = matmul(q, t)
d = div(s, by=2.5)
w = softmax(d)
y = matmul(w, v)
turned = permute(y, order=[2, 1, 0])
flat = reshape(turned, to=[8*n])
output flat
";

#[test]
fn a_listing_has_attention_the_peak_and_the_copies() {
    let path = file("layer.graph", LAYER.as_bytes());
    let path = path.to_str().unwrap();
    let output = run(&[path, "--size", "n=16", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ops: Vec<&str> = document["after"].as_array().unwrap().iter().map(|row| row["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["attention", "map: a copy"]);
    assert_eq!((document["layout_copies"].as_u64(), document["layout_copied_bytes"].as_u64()), (Some(1), Some(1024)));
    // The inputs q, k and v, the output of attention, and the graph's output.
    let peak = 2 * 16 * (8 + 8 + 4) * 4 + 2 * 512;
    assert_eq!(document["peak_bytes"].as_u64(), Some(peak));
    let table = run(&[path, "--size", "n=16"]);
    let words = String::from_utf8(table.stdout).unwrap();
    assert!(words.contains("memory at its peak") && words.contains("copies that only change the layout: 1"), "{words}");
}

/// Regression: the picture overwrote the graph's own file.
#[test]
fn a_graph_is_not_overwritten_by_its_picture() {
    let path = file("kept.graph", LAYER.as_bytes());
    let dotted = path.parent().unwrap().join(".").join("kept.graph");
    for svg in [path.to_str().unwrap(), dotted.to_str().unwrap()] {
        let output = run(&[path.to_str().unwrap(), "--svg", svg]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--svg"));
    }
    assert_eq!(std::fs::read(&path).unwrap(), LAYER.as_bytes());
    let twice = run(&[path.to_str().unwrap(), "--size", "n=5", "--size", "n=6"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("each symbol once"));
}

/// The example in the help is a valid graph.
#[test]
fn the_example_of_the_help_works() {
    let help = run(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let lines: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  | ")).collect();
    assert!(lines.len() > 3, "{help}");
    let path = file("help.graph", lines.join("\n").as_bytes());
    let output = run(&[path.to_str().unwrap(), "--size", "batch=64"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn hostile_files_are_refused_and_nothing_grows() {
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("cycle", b"input x f32 [3]\ny = add(x, z)\nz = relu(y)\noutput y".to_vec(), "cycles"),
        ("dangling", b"input x f32 [3]\ny = relu(q)\noutput y".to_vec(), "no node"),
        ("shapes", b"input x f32 [3]\ninput y f32 [4]\nz = add(x, y)\noutput z".to_vec(), "line 3"),
        ("binary", vec![0xff, 0xfe, 0, 1, 2], "as text"),
        ("escape", b"input x f32 [3]\ny = \x1b[31mred(x)\noutput y".to_vec(), "line 2"),
        ("empty", Vec::new(), "at least one"),
    ];
    for (name, contents, part) in cases {
        let output = run(&[file(name, &contents).to_str().unwrap()]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{name}");
        assert!(complaint.contains(part) && !complaint.contains('\x1b'), "{name}: {complaint:?}");
    }
    // An endless file is read no further than the size limit.
    if cfg!(target_os = "linux") {
        let output = run(&["/dev/zero"]);
        assert!(!output.status.success());
    }
    let output = run(&["/"]);
    assert!(!output.status.success());
}
