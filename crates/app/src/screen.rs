//! The standard output of a command: its width, its colours, and text, tables and JSON written to it.

use std::env;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use crate::failure::Failure;

/// The width of a line where nothing else is known.
const WIDTH_DEFAULT: usize = 100;
/// The narrowest width that is respected; less cannot hold a table.
const WIDTH_MIN: usize = 40;

/// The standard output.
pub struct Screen {
    out: BufWriter<Stdout>,
    width: usize,
    colour: bool,
}

impl Screen {
    /// As wide as the terminal, or as `COLUMNS` says; in colour on a terminal only, unless `NO_COLOR` is set.
    pub fn of_this_process() -> Screen {
        let terminal = io::stdout().is_terminal();
        let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let seen = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let width = told.or_else(|| if terminal { seen() } else { None }).unwrap_or(WIDTH_DEFAULT).max(WIDTH_MIN);
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Screen { out: BufWriter::new(io::stdout()), width, colour: terminal && !plain }
    }

    /// Columns in a line.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes one line.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.out, "{}", text.as_ref().trim_end())?;
        Ok(())
    }

    /// Writes text as it is.
    pub fn text(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.out.write_all(text)?;
        Ok(())
    }

    /// Writes a value as JSON over several lines, as one document.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.out, value)?;
        self.line("")
    }

    /// Writes a value as JSON on one line, as one row among others.
    pub fn json_line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value)?;
        self.line("")
    }

    /// Shows everything that was written so far.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush()?;
        Ok(())
    }

    /// Writes out what is left; a reader that went away meanwhile is noticed here.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush()
    }

    /// Bold text.
    pub fn strong(&self, text: &str) -> String {
        self.painted("1", text)
    }

    /// Faint text.
    pub fn faint(&self, text: &str) -> String {
        self.painted("2", text)
    }

    /// Red text, for what is wrong.
    pub fn alarming(&self, text: &str) -> String {
        self.painted("31", text)
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The text, cut to so many characters with a mark at the cut.
pub fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

/// The words in lines of at most `width` characters; a longer word has a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
    }
    lines
}

/// Bytes with a unit that suits their size.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A progress indicator on the error output, where that is a terminal.
pub fn spinner(message: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(message);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit_that_suits() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (150 << 30, "150 GiB")] {
            assert_eq!(bytes_text(bytes), text);
        }
        assert_eq!(bytes_text(u64::MAX), "16384 PiB");
    }

    #[test]
    fn text_is_cut_and_wrapped_by_characters() {
        assert_eq!(shortened("naïve", 5), "naïve");
        assert_eq!(shortened("naïvely", 5), "naïv…");
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("extraordinary day", 5), ["extraordinary", "day"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
