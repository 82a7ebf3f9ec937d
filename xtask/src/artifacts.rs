//! Finds the programs that cargo built, from its JSON messages.

use std::path::{Path, PathBuf};

use tinyjson::JsonValue;

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The package that it tests.
    pub package: String,
    /// `conformance` for `tests/conformance.rs`. For unit tests the library's name, such as
    /// `panoply_cpu`.
    pub target: String,
    pub path: PathBuf,
}

/// Returns every test program in the messages of `cargo test --no-run --message-format=json`.
pub fn test_programs(messages: &str) -> Vec<TestProgram> {
    messages.lines().filter_map(|line| line.parse().ok()).filter_map(|message| test_program(&message)).collect()
}

fn test_program(message: &JsonValue) -> Option<TestProgram> {
    let path = PathBuf::from(text(field(message, "executable")?)?);
    let is_test = matches!(field(field(message, "profile")?, "test")?, JsonValue::Boolean(true));
    let target = text(field(field(message, "target")?, "name")?)?.to_owned();
    let manifest = Path::new(text(field(message, "manifest_path")?)?);
    let package = text(field(message, "package_id")?)?;
    // `path+file:///folder#name@version`, or without the name if the folder has the same name.
    let package = match package.rsplit_once('#')?.1.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => manifest.parent()?.file_name()?.to_str()?.to_owned(),
    };
    is_test.then_some(TestProgram { package, target, path })
}

/// The value of an object's field.
pub fn field<'a>(value: &'a JsonValue, name: &str) -> Option<&'a JsonValue> {
    match value {
        JsonValue::Object(fields) => fields.get(name),
        _ => None,
    }
}

/// The text of a JSON string.
pub fn text(value: &JsonValue) -> Option<&str> {
    match value {
        JsonValue::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_the_messages() {
        let message = |id: &str, target: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///p/crates/{id}","manifest_path":"/p/crates/core/Cargo.toml","target":{{"name":"{target}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            message("core#panoply-core@0.1.0", "panoply_core", false, "null"),
            message("core#panoply-core@0.1.0", "panoply_core", true, r#""/t/core-2""#),
            message("core#0.1.0", "conformance", true, r#""/t/conformance-3""#),
            message("app#panoply-app@0.1.0", "panoply", false, r#""/t/panoply""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let programs = test_programs(&messages.join("\n"));
        let program = |package: &str, target: &str, path: &str| TestProgram {
            package: package.to_owned(),
            target: target.to_owned(),
            path: path.into(),
        };
        let expected =
            [program("panoply-core", "panoply_core", "/t/core-2"), program("core", "conformance", "/t/conformance-3")];
        assert_eq!(programs, expected);
    }
}
