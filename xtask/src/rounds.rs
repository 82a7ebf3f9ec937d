//! The variables that tests take their numbers of rounds from.

/// The variables of long tests, and their values for `cargo xtask test --all`. A variable that is
/// set already keeps its value.
pub const LONG_TESTS: [(&str, &str); 11] = [
    // The variable that `panoply_conformance::few_or_all` reads.
    ("PANOPLY_TESTS", "all"),
    ("PANOPLY_SCHEDULES", "10000"),
    ("PANOPLY_PIPELINE_SCHEDULES", "4000"),
    ("PANOPLY_STORM_SECONDS", "20"),
    ("PANOPLY_MEMORY_OPS", "200000"),
    ("PANOPLY_FUZZ_MUTATIONS", "20000"),
    ("PANOPLY_DAMAGE_SAMPLES", "40"),
    ("PANOPLY_STORE_KILLS", "1000"),
    ("PANOPLY_STORE_MUTATIONS", "5000"),
    ("PANOPLY_VECTOR_KILLS", "1000"),
    ("PANOPLY_TIMING_SAMPLES", "20000"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Variables of tests and of measurements that set no number of rounds of `--all`.
    const OTHERS: [&str; 51] = [
        // Folders, files and programs.
        "PANOPLY_CACHE",
        "PANOPLY_CONFIG",
        "PANOPLY_CRASH_FOLDER",
        "PANOPLY_FUZZ_SEEDS",
        "PANOPLY_HIP_CLANG",
        "PANOPLY_HIP_KERNELS_OUT",
        "PANOPLY_KERNELS_OUT",
        "PANOPLY_LIBTPU",
        "PANOPLY_MNIST",
        "PANOPLY_ONNXRUNTIME",
        "PANOPLY_ONNX_CASES",
        "PANOPLY_ONNX_MODELS",
        "PANOPLY_ONNX_OUT",
        "PANOPLY_OPENVINO",
        "PANOPLY_PYTHON",
        "PANOPLY_ROCM_HEADERS",
        "PANOPLY_STORE_CRASH_FOLDER",
        "PANOPLY_STORE_FEW_FILES",
        "PANOPLY_STORE_FULL_FOLDER",
        "PANOPLY_STORE_KEY_FILE",
        "PANOPLY_TOKENIZER_TEXTS",
        "PANOPLY_VULKAN_SECOND_DRIVER",
        // The state of a program that a test starts.
        "PANOPLY_CRASH_FIRST",
        "PANOPLY_STORE_CRASH_FIRST",
        "PANOPLY_STORE_CRASH_KEY",
        "PANOPLY_STORE_FULL_LEN",
        "PANOPLY_STORE_KEY",
        "PANOPLY_STORE_KEY_SURVIVES",
        "PANOPLY_STORE_PASSPHRASE",
        "PANOPLY_VULKAN_TEST_CHILD",
        // A choice of cases, seeds, devices and forms.
        "PANOPLY_ATTENTION_FORM",
        "PANOPLY_CASES",
        "PANOPLY_CRYPTO_PROVIDER",
        "PANOPLY_DEVICE",
        "PANOPLY_DEVICES_LEAVE_OUT",
        "PANOPLY_DEVICES_ONLY",
        "PANOPLY_FPGA_SIMULATION",
        "PANOPLY_FUZZ_SEED",
        "PANOPLY_HIP_KERNELS",
        "PANOPLY_HIP_TEST",
        "PANOPLY_ONNX_ALL",
        "PANOPLY_ONNX_CASE",
        "PANOPLY_ONNX_DEVICES_ONLY",
        "PANOPLY_ONNX_VERBOSE",
        "PANOPLY_RECORD",
        "PANOPLY_REGENERATE",
        "PANOPLY_SEED",
        "PANOPLY_SIMD",
        "PANOPLY_TIMING_LEVEL",
        "PANOPLY_VULKAN_CASES",
        "PANOPLY_WGPU_CASES",
    ];

    /// Numbers of rounds that `--all` leaves alone, each with the reason.
    const BY_HAND: [(&str, &str); 4] = [
        ("PANOPLY_FUZZ_SECONDS", "only with a folder of models, which `PANOPLY_FUZZ_SEEDS` names"),
        ("PANOPLY_GRAPHS", "the same number for every backend; `few_or_all` gives each its own"),
        ("PANOPLY_OPS", "the same number for every backend; `few_or_all` gives each its own"),
        ("PANOPLY_TRANSFER_MIB", "the size of a measurement that is ignored"),
    ];

    /// The variables in a text. If it is not a test's, only those that are read as numbers.
    fn variables(text: &str, is_test: bool) -> Vec<String> {
        let mut names = Vec::new();
        for (start, _) in text.match_indices("\"PANOPLY_") {
            let rest = &text[start + 1..];
            let Some(end) = rest.find('"') else { continue };
            let (name, behind) = rest.split_at(end);
            let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
            // The statement that reads a variable.
            let is_number = behind.split(';').next().is_some_and(|statement| statement.contains(".parse"));
            if is_name && (is_test || is_number) {
                names.push(name.to_owned());
            }
        }
        names
    }

    fn is_test(path: &Path) -> bool {
        let is_folder = |part: &str| ["tests", "testing", "test-library", "simulation", "conformance"].contains(&part);
        let has_folder = path.iter().filter_map(|part| part.to_str()).any(is_folder);
        has_folder || path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| stem.ends_with("tests"))
    }

    fn collect(folder: &Path, root: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, root, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source is text");
                names.extend(variables(&text, is_test(path.strip_prefix(root).unwrap_or(&path))));
            }
        }
    }

    #[test]
    fn every_number_of_rounds_that_a_test_reads_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the repository");
        let mut read = BTreeSet::new();
        collect(&root.join("crates"), root, &mut read);
        // A test marks the program that it starts by a variable of this prefix.
        read.retain(|name| !name.starts_with("PANOPLY_TEST_"));
        let known: Vec<&str> = LONG_TESTS.iter().chain(&BY_HAND).map(|(name, _)| *name).chain(OTHERS).collect();
        let unknown: Vec<&String> = read.iter().filter(|name| !known.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}: add them to `LONG_TESTS` in `xtask/src/rounds.rs`, or to the rest");
        let unread: Vec<&str> = known.into_iter().filter(|name| !read.contains(*name)).collect();
        assert!(unread.is_empty(), "{unread:?} are read by no test");
    }

    #[test]
    fn variables_of_tests_and_numbers_of_libraries_are_found() {
        let text = r#"
            const KILLS: &str = "PANOPLY_KILLS";
            let count = std::env::var("PANOPLY_ROUNDS").ok().and_then(|count| count.parse().ok());
            panic!("PANOPLY_ROUNDS is no number");
        "#;
        assert_eq!(variables(text, true), ["PANOPLY_KILLS", "PANOPLY_ROUNDS"]);
        assert_eq!(variables(text, false), ["PANOPLY_ROUNDS"]);
        assert!(is_test(Path::new("crates/a/tests/b.rs")) && is_test(Path::new("crates/a/src/b_tests.rs")));
        assert!(!is_test(Path::new("crates/a/src/b.rs")));
    }
}
