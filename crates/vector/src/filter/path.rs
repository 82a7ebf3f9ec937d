//! The path of a field in the metadata.

use std::fmt;

use serde_json::Value;

use super::error::FilterError;

/// Maximum number of parts of a path.
const PARTS_MAX: usize = 32;
/// Maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 1 << 10;

/// The path to a field: `author.name` is the field `name` of the object in the field `author`. A
/// backslash makes the next character literal, including a dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    /// Not empty; no part is empty.
    parts: Vec<String>,
}

impl Path {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<Path, FilterError> {
        let wrong = |reason| {
            let path = text.chars().take(80).collect();
            Err(FilterError::Path { path, reason })
        };
        if text.len() > PATH_BYTES_MAX {
            return wrong("is longer than a kilobyte");
        }
        let mut parts = vec![String::new()];
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let literal = match character {
                '.' => None,
                '\\' => match characters.next() {
                    Some(escaped) => Some(escaped),
                    None => return wrong("ends with a backslash, which stands for nothing"),
                },
                plain => Some(plain),
            };
            match (literal, parts.last_mut()) {
                (Some(literal), Some(part)) => part.push(literal),
                _ => parts.push(String::new()),
            }
        }
        if parts.iter().any(String::is_empty) {
            return wrong("has an empty part");
        }
        if parts.len() > PARTS_MAX {
            return wrong("has more than 32 parts");
        }
        Ok(Path { parts })
    }

    /// The first part: a field of the metadata itself.
    pub fn field(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// The value at the path.
    pub fn find<'a>(&self, metadata: &'a Value) -> Option<&'a Value> {
        self.parts.iter().try_fold(metadata, |value, part| value.as_object()?.get(part))
    }

    /// The value at the path, starting from the value of its first part.
    pub(super) fn find_below<'a>(&self, field: &'a Value) -> Option<&'a Value> {
        self.parts.iter().skip(1).try_fold(field, |value, part| value.as_object()?.get(part))
    }
}

/// Writes the path as [`Path::parse`] reads it. Reserved words and characters are escaped.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = matches!(self.parts.as_slice(), [only] if matches!(only.as_str(), "and" | "or" | "not"));
        if reserved {
            f.write_str("\\")?;
        }
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            for character in part.chars() {
                if matches!(character, '.' | '\\') {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_into_objects() {
        let metadata = json!({"a": {"b": 1}, "a.b": 2, "and": 3, "c\\d": 4});
        for (path, value) in [("a.b", 1), ("a\\.b", 2), ("\\and", 3), ("c\\\\d", 4), ("\\a.\\b", 1)] {
            let path = Path::parse(path).unwrap();
            assert_eq!(path.find(&metadata), Some(&json!(value)), "{path}");
            assert_eq!(Path::parse(&path.to_string()).unwrap(), path);
        }
        for nowhere in ["b", "a.c", "a.b.c", "a\\.c"] {
            assert_eq!(Path::parse(nowhere).unwrap().find(&metadata), None);
        }
        assert_eq!(Path::parse("a").unwrap().find(&Value::Null), None);
    }

    #[test]
    fn paths_that_lead_nowhere_are_refused() {
        for text in ["", ".", "a.", ".a", "a..b", "a\\", &"a".repeat(2000), &"a.".repeat(40)] {
            assert!(matches!(Path::parse(text), Err(FilterError::Path { .. })), "{text}");
        }
    }
}
