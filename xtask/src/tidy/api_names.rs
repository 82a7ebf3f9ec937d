//! Finds comparisons with an API's name outside the backends. Only a backend concludes anything
//! from the name of its API; all other code reads a field of the device's description.

use super::report::Report;
use super::source::Source;
use super::uses::{tokens, without_tests};

/// The crates that may compare names.
const BACKENDS: &str = "crates/backends/";

/// Checks one Rust file. Code that only tests compile may compare names.
pub fn check(name: &str, text: &str, report: &mut Report) {
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("_tests.rs");
    if !name.starts_with("crates/") || name.starts_with(BACKENDS) || is_test {
        return;
    }
    let code = Source::scan(text).code;
    let tokens = without_tests(&tokens(&code));
    let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
    for (at, word) in tokens.iter().enumerate() {
        let is_constant = token(at + 2).bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        if *word != "Api" || token(at + 1) != "::" || token(at + 2).is_empty() || !is_constant {
            continue;
        }
        let mut start = at;
        while start >= 2 && token(start - 1) == "::" {
            start -= 2;
        }
        let before = (token(start.wrapping_sub(2)), token(start.wrapping_sub(1)));
        let after = (token(at + 3), token(at + 4));
        let is_compared = matches!(before, ("=" | "!", "=")) || matches!(after, ("=" | "!", "=") | ("=", ">"));
        if is_compared {
            // A token is a part of the code.
            let offset = word.as_ptr() as usize - code.as_ptr() as usize;
            let line = code[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1;
            let text = format!("compares with `Api::{}`: read a field of the device's description", token(at + 2));
            report.fail("api-name", name, line, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(name, text, &mut report);
        report.findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comparisons_with_names_fail_outside_backends() {
        let text = "fn a(id: DeviceId) -> bool {\n    id.api == Api::CPU\n        || panoply::Api::CUDA != id.api\n}\n\
                    fn b(api: Api) -> u8 {\n    match api {\n        Api::QAT => 1,\n        _ => 0,\n    }\n}\n";
        assert_eq!(lines("crates/app/src/a.rs", text), [2, 3, 7]);
        assert_eq!(lines("crates/runtime/src/a.rs", "fn a() { x != panoply_core::Api::CPU }"), [1]);
        assert_eq!(lines("crates/backends/cuda/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/tests/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/core/src/op/tests.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")), [0; 0]);
    }

    #[test]
    fn names_may_be_given_and_listed() {
        let text =
            "fn a() { let api = Api::CPU; builder.only([Api::CPU, Api::CUDA]); DeviceId { api: Api::CPU, index } }";
        assert_eq!(lines("crates/app/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/src/a.rs", "fn a() { Api::new(name) == api }"), [0; 0]);
    }
}
