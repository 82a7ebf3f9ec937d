//! The measured rows: lines of JSON from `panoply bench --json`, the peers' scripts, and the
//! benchmarks of the runtime and of pipelines.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use tinyjson::JsonValue;

/// The kinds of time in rows, in order of preference.
const TIMES: [&str; 3] = ["device_ms", "wall_ms", "ms"];

/// The rows of one round, ours and the peers'.
#[derive(Default)]
pub struct Rows {
    rows: Vec<HashMap<String, JsonValue>>,
}

impl Rows {
    /// Reads files. Lines that are not JSON objects are ignored.
    pub fn read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Rows> {
        let mut rows = Rows::default();
        for path in paths {
            let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
            rows.add(&text);
        }
        Ok(rows)
    }

    /// Parses the rows of a text.
    #[cfg(test)]
    pub fn parse(text: &str) -> Rows {
        let mut rows = Rows::default();
        rows.add(text);
        rows
    }

    /// Adds the rows of a text.
    pub fn add(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| line.starts_with('{')) {
            if let Ok(JsonValue::Object(row)) = line.parse() {
                self.rows.push(row);
            }
        }
    }

    /// Returns the class of machines of an API's figures. Either a row names the class, or the
    /// device name in a peer's row is used.
    pub fn machine(&self, api: &str) -> Option<String> {
        let told = self.rows.iter().find(|row| text(row, "api") == Some(api) && row.contains_key("machine"));
        let device = || self.rows.iter().find_map(|row| text(row, "device").filter(|_| row.contains_key("torch")));
        let name = told.and_then(|row| text(row, "machine")).or_else(|| device().filter(|_| api != "cpu"))?;
        Some(name.to_lowercase().replace(' ', "-"))
    }

    /// Returns a number of our row for a case.
    pub fn ours(&self, api: &str, case: &str, field: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| text(row, "api") == Some(api) && text(row, "case") == Some(case));
        row.and_then(|row| number(row, field))
    }

    /// Returns the best time of all peers: of kind `time` if a peer has it, else of the first kind
    /// in `TIMES` that they have.
    pub fn peer(&self, case: &str, time: &str) -> Option<f64> {
        let kinds = std::iter::once(time).chain(TIMES);
        kinds.map(|kind| self.of_peers(case, kind)).find(Option::is_some).flatten()
    }

    /// Returns the time that the hardware allows, as computed by a peer's script.
    pub fn floor(&self, case: &str) -> Option<f64> {
        self.of_peers(case, "floor_ms")
    }

    /// Returns a number of the row in which `key` has the value `name`.
    pub fn named(&self, key: &str, name: &str, field: &str) -> Option<f64> {
        self.rows.iter().find(|row| text(row, key) == Some(name)).and_then(|row| number(row, field))
    }

    /// Like `Rows::named`, for rows of devices whose id begins with the API's name.
    pub fn named_on(&self, api: &str, key: &str, name: &str, field: &str) -> Option<f64> {
        let on = |row: &HashMap<_, _>| text(row, "device").and_then(|id| id.split(':').next()) == Some(api);
        let row = self.rows.iter().find(|row| text(row, key) == Some(name) && on(row));
        row.and_then(|row| number(row, field))
    }

    fn of_peers(&self, case: &str, field: &str) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| row.contains_key("peer") && text(row, "case") == Some(case));
        rows.filter_map(|row| number(row, field)).min_by(f64::total_cmp)
    }
}

fn text<'a>(row: &'a HashMap<String, JsonValue>, field: &str) -> Option<&'a str> {
    match row.get(field)? {
        JsonValue::String(text) => Some(text),
        _ => None,
    }
}

fn number(row: &HashMap<String, JsonValue>, field: &str) -> Option<f64> {
    match row.get(field)? {
        JsonValue::Number(number) if number.is_finite() => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_case_and_api() {
        let rows = Rows::parse(concat!(
            "warning: not a row\n{broken\n",
            r#"{"case":"a","api":"cuda","device":"cuda:0","device_ms":2.0,"wall_ms":3.0}"#,
            "\n",
            r#"{"case":"a","peer":"torch","device_ms":4.0,"wall_ms":5.0,"floor_ms":1.0}"#,
            "\n",
            r#"{"case":"a","peer":"other","device_ms":3.0}"#,
            "\n",
            r#"{"case":"limit/copy","device":"NVIDIA H200","torch":"2.11"}"#,
            "\n",
            r#"{"device":"cuda:0","way":"adaptive","times":5.5}"#,
        ));
        assert_eq!(rows.ours("cuda", "a", "device_ms"), Some(2.0));
        assert_eq!(rows.ours("cpu", "a", "device_ms"), None);
        assert_eq!((rows.peer("a", "device_ms"), rows.peer("a", "wall_ms")), (Some(3.0), Some(5.0)));
        assert_eq!((rows.peer("a", "ms"), rows.peer("b", "ms")), (Some(3.0), None));
        assert_eq!(rows.floor("a"), Some(1.0));
        assert_eq!(rows.named_on("cuda", "way", "adaptive", "times"), Some(5.5));
        assert_eq!(rows.named_on("wgpu", "way", "adaptive", "times"), None);
        assert_eq!(rows.machine("cuda").as_deref(), Some("nvidia-h200"));
        assert_eq!(rows.machine("cpu"), None);
    }
}
