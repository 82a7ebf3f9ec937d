//! ONNX's own test cases: folders with `model.onnx` and `test_data_set_N/{input,output}_M.pb`.
//!
//! `PANOPLY_ONNX_CASES` names a folder of such folders, `PANOPLY_ONNX_CASE` the beginning of the
//! names to run. Each case runs on the host and on the CPU's devices. Tolerances are those of
//! ONNX's own runner: 1e-3 relative and 1e-7 absolute.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::path::{Path, PathBuf};

use crate::bench::{Verdict, runtime, verdict};

/// The number of ONNX's node cases that have to pass, so that no change loses cases unnoticed.
const PASSES_MIN: usize = 1_640;

/// The folder of the cases in Debian's package.
const DEBIAN: &str = "/usr/share/libonnx-testdata/data/node";

fn folders(of: &Path) -> Vec<PathBuf> {
    let prefix = std::env::var("PANOPLY_ONNX_CASE").unwrap_or_default();
    let Ok(entries) = std::fs::read_dir(of) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let fits = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    folders.retain(|path| path.join("model.onnx").is_file() && fits(path));
    folders.sort();
    folders
}

/// Runs every case of a folder. Returns the number that passed, the number refused, and the
/// failures.
fn run_all(of: &Path) -> (usize, usize, Vec<String>) {
    let runtime = runtime();
    let (mut passed, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for folder in folders(of) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        // In these cases f32 has rounding errors where the exact result is zero.
        let absolute = if name.starts_with("test_dft_inverse") { 1e-6 } else { 1e-7 };
        match verdict(&folder, &runtime, 1e-3, absolute) {
            Verdict::Passed(_) => passed += 1,
            Verdict::Refused(reason) => refused.push(format!("{name}: {reason}")),
            Verdict::Wrong(reason) => wrong.push(format!("{name}: {reason}")),
        }
    }
    if std::env::var_os("PANOPLY_ONNX_VERBOSE").is_some() {
        refused.iter().for_each(|line| println!("refused {line}"));
    }
    wrong.iter().for_each(|line| println!("WRONG {line}"));
    println!("{}: {passed} passed, {} refused, {} wrong", of.display(), refused.len(), wrong.len());
    (passed, refused.len(), wrong)
}

#[test]
fn node_cases() {
    let Some(folder) = std::env::var_os("PANOPLY_ONNX_CASES") else {
        println!("skipped: PANOPLY_ONNX_CASES names no folder of ONNX's node cases");
        return;
    };
    let (passed, _, wrong) = run_all(Path::new(&folder));
    assert!(wrong.is_empty(), "{} cases are wrong", wrong.len());
    let is_all = std::env::var_os("PANOPLY_ONNX_CASE").is_none();
    assert!(!is_all || passed >= PASSES_MIN, "{passed} pass, at least {PASSES_MIN} should");
}

#[test]
fn debian_cases() {
    if !Path::new(DEBIAN).is_dir() {
        println!("skipped: libonnx-testdata is not installed ({DEBIAN})");
        return;
    }
    let (passed, _, wrong) = run_all(Path::new(DEBIAN));
    assert!(wrong.is_empty() && passed > 0, "{} cases are wrong", wrong.len());
}
