//! The recorded figures: a file with one JSON object per line, so that changing one figure changes
//! one line.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use tinyjson::JsonValue;

/// A recorded figure for one class of machines.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedFigure {
    pub name: String,
    pub machine: String,
    pub ratio: f64,
    pub bar: f64,
    /// The day of the measurement, such as `2026-11-15`.
    pub date: String,
}

/// The whole file.
#[derive(Default)]
pub struct Record {
    figures: Vec<RecordedFigure>,
}

impl Record {
    /// Reads the file. A missing file counts as empty.
    pub fn read(path: &Path) -> Result<Record> {
        if !path.exists() {
            return Ok(Record::default());
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        Record::parse(&text).with_context(|| path.display().to_string())
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.text()).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Returns the recorded ratio.
    pub fn ratio(&self, name: &str, machine: &str) -> Option<f64> {
        self.figures.iter().find(|kept| kept.name == name && kept.machine == machine).map(|kept| kept.ratio)
    }

    /// Replaces the recorded figure, or appends a new one.
    pub fn keep(&mut self, figure: RecordedFigure) {
        let same = |kept: &&mut RecordedFigure| kept.name == figure.name && kept.machine == figure.machine;
        match self.figures.iter_mut().find(same) {
            Some(kept) => *kept = figure,
            None => self.figures.push(figure),
        }
    }

    /// Returns the names of the figures.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.figures.iter().map(|kept| kept.name.as_str())
    }

    pub fn parse(text: &str) -> Result<Record> {
        let mut figures = Vec::new();
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
            let row = line.parse::<JsonValue>().ok().and_then(kept);
            match row {
                Some(row) => figures.push(row),
                None => bail!("line {number}: expected name, machine, ratio, bar and date"),
            }
        }
        Ok(Record { figures })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for RecordedFigure { name, machine, ratio, bar, date } in &self.figures {
            // Writing to a String cannot fail. Names contain no characters that JSON escapes.
            let _ = writeln!(
                text,
                "{{\"name\":\"{name}\",\"machine\":\"{machine}\",\"ratio\":{ratio:.3},\"bar\":{bar},\"date\":\"{date}\"}}"
            );
        }
        text
    }
}

fn kept(value: JsonValue) -> Option<RecordedFigure> {
    let JsonValue::Object(mut row) = value else { return None };
    let mut text = |field: &str| match row.remove(field)? {
        JsonValue::String(text) => Some(text),
        _ => None,
    };
    let (name, machine, date) = (text("name")?, text("machine")?, text("date")?);
    let number = |field: &str| match row.get(field)? {
        JsonValue::Number(number) => Some(*number),
        _ => None,
    };
    Some(RecordedFigure { name, machine, ratio: number("ratio")?, bar: number("bar")?, date })
}

/// Returns today's date in UTC, such as `2026-11-15`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86_400)
}

/// Returns the date `days` days after 1970-01-01, in the Gregorian calendar. Years begin in March
/// here, so that a leap day is the last day of its year. An era is 400 years.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, text) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_772, "2026-11-15")] {
            assert_eq!(date(days), text);
        }
    }

    #[test]
    fn a_record_is_written_as_it_is_read() {
        let text = "{\"name\":\"a of b\",\"machine\":\"m\",\"ratio\":1.250,\"bar\":0.95,\"date\":\"2026-11-15\"}\n";
        let mut record = Record::parse(text).expect("valid");
        assert_eq!(record.text(), text);
        record.keep(RecordedFigure { ratio: 1.5, ..record.figures[0].clone() });
        assert_eq!((record.figures.len(), record.ratio("a of b", "m")), (1, Some(1.5)));
        record.keep(RecordedFigure { machine: "n".to_owned(), ..record.figures[0].clone() });
        assert_eq!(record.figures.len(), 2);
        assert!(Record::parse("{\"name\":\"a\"}").is_err() && Record::parse("nonsense").is_err());
    }
}
