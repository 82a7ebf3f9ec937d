//! The standard output of a command: its width and colours, and functions that write text, tables
//! and JSON.

use std::env;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::arguments::ColorArgument;
use crate::failure::Failure;
use crate::verbosity;

/// The width of a line if the terminal's is unknown.
const WIDTH_DEFAULT: usize = 100;
/// The smallest width; a narrower line cannot hold a table.
const WIDTH_MIN: usize = 40;
/// Marks for bold, faint, red and plain text. They are Unicode noncharacters, so no real text
/// contains them.
const STRONG: char = '\u{fdd0}';
const FAINT: char = '\u{fdd1}';
const ALARMING: char = '\u{fdd2}';
const PLAIN: char = '\u{fdd3}';

/// The standard output.
pub struct Screen {
    out: BufWriter<Stdout>,
    width: usize,
    /// Whether lines are folded at the width.
    folds: bool,
    colour: bool,
    /// The change that was made, for the error if printing fails.
    done: Option<String>,
}

impl Screen {
    /// The width is `COLUMNS` if set, else the terminal's. Unless `color` says otherwise, colours
    /// are used only on a terminal, and not if `NO_COLOR` is set or `TERM` is `dumb`.
    pub fn of_this_process(color: ColorArgument) -> Screen {
        let terminal = io::stdout().is_terminal();
        let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let seen = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let width = told.or_else(|| if terminal { seen() } else { None }).unwrap_or(WIDTH_DEFAULT).max(WIDTH_MIN);
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = match color {
            ColorArgument::Auto => terminal && !plain,
            ColorArgument::Always => true,
            ColorArgument::Never => false,
        };
        let folds = terminal || told.is_some();
        Screen { out: BufWriter::new(io::stdout()), width, folds, colour, done: None }
    }

    /// Number of columns in a line.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Notes a change that counts. If printing fails afterwards, the error says so, and the user
    /// does not repeat the change.
    pub fn note_done(&mut self, done: impl Into<String>) {
        self.done = Some(done.into());
    }

    /// The failure of a write.
    fn unprinted(&self, error: io::Error) -> Failure {
        match (Failure::from(error), &self.done) {
            (Failure::Run(error), Some(done)) => {
                Failure::Run(error.context(format!("{done}, but this could not be printed")))
            }
            (failure, _) => failure,
        }
    }

    /// Writes one line. Ids, names and errors come from outside, so every control character in them
    /// is escaped. Only our own colour marks become escape sequences.
    ///
    /// A line that is wider than the screen is folded at blanks. A word that is wider than the
    /// screen stays whole, so that it can be copied.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        let text = text.as_ref().trim_end();
        let lines = if self.folds { folded(text, self.width) } else { vec![text.to_owned()] };
        lines
            .iter()
            .try_for_each(|line| writeln!(self.out, "{}", coloured(line)))
            .map_err(|error| self.unprinted(error))
    }

    /// Writes bytes unchanged.
    pub fn text(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.out.write_all(text).map_err(|error| self.unprinted(error))
    }

    /// Writes sentences, wrapped into lines.
    pub fn prose(&mut self, text: &str) -> Result<(), Failure> {
        wrapped(text, self.width).into_iter().try_for_each(|line| self.line(line))
    }

    /// Writes a value as one JSON document over several lines.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value)?;
        writeln!(self.out, "{}", escaped_json(&text)).map_err(|error| self.unprinted(error))
    }

    /// Writes a value as JSON on one line.
    pub fn json_line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)?;
        writeln!(self.out, "{}", escaped_json(&text)).map_err(|error| self.unprinted(error))
    }

    /// Flushes everything written so far.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| self.unprinted(error))
    }

    /// Flushes the remaining output. A reader that has closed the pipe is noticed here.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush()
    }

    /// Bold text.
    pub fn strong(&self, text: &str) -> String {
        self.painted(STRONG, text)
    }

    /// Faint text.
    pub fn faint(&self, text: &str) -> String {
        self.painted(FAINT, text)
    }

    /// Red text, for problems.
    pub fn alarming(&self, text: &str) -> String {
        self.painted(ALARMING, text)
    }

    fn painted(&self, colour: char, text: &str) -> String {
        if self.colour { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }
}

/// Replaces our colour marks by the terminal's escape sequences, and escapes every other control
/// character.
fn coloured(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            STRONG => shown.push_str("\x1b[1m"),
            FAINT => shown.push_str("\x1b[2m"),
            ALARMING => shown.push_str("\x1b[31m"),
            PLAIN => shown.push_str("\x1b[0m"),
            other => push_visible(&mut shown, other),
        }
    }
    shown
}

/// Escapes all characters that control a terminal, are invisible, or change the text direction.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|character| push_visible(&mut shown, character));
    shown
}

fn push_visible(shown: &mut String, character: char) {
    match character {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        // Colour marks in foreign text are escaped as well.
        STRONG | FAINT | ALARMING | PLAIN => shown.extend(character.escape_unicode()),
        _ if character.is_control() || is_unseen(character) => shown.extend(character.escape_unicode()),
        _ => shown.push(character),
    }
}

/// Whether a character is invisible or changes the text direction.
fn is_unseen(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Escapes the characters in JSON that control a terminal or change the text direction. In JSON
/// they occur only inside strings, where escapes are allowed.
fn escaped_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            _ if ('\u{7f}'..='\u{9f}').contains(&character) || is_unseen(character) => {
                shown.push_str(&format!("\\u{:04x}", u32::from(character)))
            }
            _ => shown.push(character),
        }
    }
    shown
}

/// Returns the number of terminal columns of a text.
pub fn columns(text: &str) -> usize {
    console::measure_text_width(text)
}

/// Pads the text with blanks to `width` columns.
pub fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Escapes the text and cuts it to `columns_max` columns, with a mark at the cut.
pub fn shortened(text: &str, columns_max: usize) -> String {
    // The rest is not examined: a text may be a megabyte long.
    let text = visible(&text.chars().take(columns_max + 1).collect::<String>());
    if columns(&text) <= columns_max {
        return text;
    }
    let (mut cut, mut used) = (String::new(), 1);
    for character in text.chars() {
        used += columns(character.encode_utf8(&mut [0; 4]));
        if used > columns_max {
            break;
        }
        cut.push(character);
    }
    if columns_max > 0 {
        cut.push('…');
    }
    cut
}

/// Wraps the words into lines of at most `width` characters. A longer word gets its own line.
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

/// Splits a line that is wider than `width` at blanks; the further lines are indented. Colour marks
/// take no room, and a colour ends and begins again at a fold.
fn folded(text: &str, width: usize) -> Vec<String> {
    const INDENT: usize = 4;
    let is_mark = |letter: char| matches!(letter, STRONG | FAINT | ALARMING | PLAIN);
    if text.len() <= width && !text.contains(char::is_control) {
        return vec![text.to_owned()];
    }
    let room = |text: &str| text.chars().filter(|letter| !is_mark(*letter)).map(shown_columns).sum::<usize>();
    if room(text) <= width {
        return vec![text.to_owned()];
    }
    let (mut lines, mut line, mut used, mut colour) = (Vec::new(), String::new(), 0, None);
    for part in text.split_inclusive(' ') {
        let needed = room(part.trim_end_matches(' '));
        let is_begun = line.chars().any(|letter| letter != ' ' && !is_mark(letter));
        if is_begun && needed > 0 && used + needed > width {
            let mut whole = line.trim_end().to_owned();
            whole.extend(colour.map(|_| PLAIN));
            lines.push(whole);
            line = " ".repeat(INDENT);
            line.extend(colour);
            used = INDENT;
        }
        line.push_str(part);
        used += room(part);
        for mark in part.chars().filter(|letter| is_mark(*letter)) {
            colour = (mark != PLAIN).then_some(mark);
        }
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// The columns that a character takes once it is escaped.
fn shown_columns(letter: char) -> usize {
    let mut shown = String::new();
    push_visible(&mut shown, letter);
    columns(&shown)
}

/// Formats a number of bytes in the unit that suits its size.
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

/// A spinner on the error output; hidden if the error output is not a terminal.
pub fn spinner(message: &'static str) -> ProgressBar {
    if !verbosity::shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // A bar's style would show a length, which is unknown here.
    let bar = bar.with_style(ProgressStyle::default_spinner()).with_message(message);
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
    fn nothing_from_outside_steers_the_terminal() {
        let hostile = "a\x1b[31m\u{9b}2J\u{7f}\u{202e}\r\n\t\u{fdd0}é日";
        assert_eq!(visible(hostile), "a\\u{1b}[31m\\u{9b}2J\\u{7f}\\u{202e}\\r\\n\\t\\u{fdd0}é日");
        let screen = Screen { out: BufWriter::new(io::stdout()), width: 80, folds: false, colour: true, done: None };
        let painted = screen.strong(&visible(hostile));
        let shown = coloured(&painted);
        assert!(shown.starts_with("\x1b[1ma\\u{1b}") && shown.ends_with("日\x1b[0m"), "{shown:?}");
        assert_eq!(shown.matches('\x1b').count(), 2);
        assert_eq!(escaped_json("\"a\u{7f}b\u{9b}é\""), "\"a\\u007fb\\u009bé\"");
        assert_eq!(shortened("日本語", 4), "日…");
        assert_eq!(padded("日本", 6), "日本  ");
        assert!(columns(&shortened(hostile, 10)) <= 10);
    }

    #[test]
    fn wide_lines_are_folded_at_blanks() {
        assert_eq!(folded("one two", 7), ["one two"]);
        assert_eq!(folded("  aaa   bbb   cc", 10), ["  aaa", "    bbb", "    cc"]);
        assert_eq!(folded("a extraordinary b", 8), ["a", "    extraordinary", "    b"]);
        let painted = format!("{STRONG}one two{PLAIN} six");
        assert_eq!(
            folded(&painted, 3),
            [format!("{STRONG}one{PLAIN}"), format!("    {STRONG}two{PLAIN}"), "    six".to_owned()]
        );
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
