//! `cargo xtask figures`: compares the speed targets with the ratios recorded in
//! `docs/figures.jsonl`. A target is a ratio to a peer, to a floor or to a limit. A ratio above 1
//! is better than the reference; larger is always better.
//!
//! `asked` lists the figures, `rows` holds the measured rows, `measure` measures on this machine's
//! CPU, and `record` is the recorded file. Rows that were measured elsewhere (`sh run.sh figures`
//! of the bundle, on a host with a GPU) are passed as files.

mod asked;
mod measure;
mod record;
mod rows;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, say};
use asked::Figure;
use record::{Record, RecordedFigure};
use rows::Rows;

/// A ratio below this share of the recorded one has fallen.
const FALLEN_BELOW: f64 = 0.9;
const RECORD: &str = "docs/figures.jsonl";

/// The arguments of `cargo xtask figures`.
pub struct Options<'a> {
    /// Records the new ratios.
    pub record: bool,
    /// Files with rows that were measured elsewhere. If there are any, nothing is measured here.
    pub files: Vec<&'a str>,
    /// The number of rounds, in which our runs and the peers' alternate.
    pub rounds: usize,
}

impl<'a> Options<'a> {
    /// Reads `[--record] [--rounds N] [FILE]...`.
    pub fn parse(arguments: &[&'a str]) -> Result<Options<'a>> {
        let mut options = Options { record: false, files: Vec::new(), rounds: 3 };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--record" => options.record = true,
                "--rounds" => {
                    let number = rest.next().and_then(|text| text.parse().ok()).filter(|rounds| *rounds > 0);
                    options.rounds = number.context("--rounds needs a number above 0")?;
                }
                flag if flag.starts_with('-') => bail!("`{flag}` is not understood; known are --record and --rounds N"),
                file => options.files.push(file),
            }
        }
        Ok(options)
    }
}

/// Measures or reads the rows, compares them with the record, and fails if a figure fell.
pub fn command(workspace: &Workspace, options: &Options<'_>) -> Result<()> {
    let rounds = match options.files.as_slice() {
        [] => measure::cpu(workspace, options.rounds)?,
        files => vec![Rows::read(files.iter().map(Path::new))?],
    };
    let path = workspace.root.join(RECORD);
    let mut record = Record::read(&path)?;
    let verdicts = judge(&rounds, &record);
    if verdicts.is_empty() {
        bail!("none of the figures that were asked for was measured");
    }
    print(&verdicts);
    if options.record {
        for verdict in &verdicts {
            record.keep(verdict.kept());
        }
        record.write(&path)?;
        say(&format!("{} figures kept in {RECORD}", verdicts.len()));
        return Ok(());
    }
    let fallen: Vec<String> = verdicts.iter().filter(|verdict| verdict.has_fallen()).map(Verdict::story).collect();
    if fallen.is_empty() { Ok(()) } else { bail!("fallen: {}", fallen.join("; ")) }
}

/// A measured figure beside its recorded ratio.
struct Verdict {
    figure: Figure,
    machine: String,
    ratio: f64,
    before: Option<f64>,
}

/// Computes the figures that the rows allow. With several rounds a ratio is the median of the
/// rounds' ratios.
fn judge(rounds: &[Rows], record: &Record) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for figure in asked::all() {
        let mut ratios: Vec<f64> = rounds.iter().filter_map(|rows| figure.ratio(rows)).collect();
        let machine = rounds.iter().find_map(|rows| rows.machine(figure.api));
        if ratios.is_empty() {
            continue;
        }
        ratios.sort_by(f64::total_cmp);
        let (ratio, machine) = (ratios[ratios.len() / 2], machine.unwrap_or_else(|| "unknown".to_owned()));
        let before = record.ratio(&figure.name, &machine);
        verdicts.push(Verdict { figure, machine, ratio, before });
    }
    verdicts
}

impl Verdict {
    /// Whether the ratio is more than a tenth below the recorded ratio, or has dropped below its
    /// bar.
    fn has_fallen(&self) -> bool {
        let bar = self.figure.bar;
        self.before.is_some_and(|before| self.ratio < FALLEN_BELOW * before || (self.ratio < bar && before >= bar))
    }

    fn word(&self) -> &'static str {
        match () {
            () if self.has_fallen() => "FELL",
            () if self.ratio < self.figure.bar => "below its bar",
            () if self.before.is_none() => "new",
            () => "",
        }
    }

    fn story(&self) -> String {
        let before = self.before.unwrap_or(f64::NAN);
        format!(
            "{} on {} from {before:.2} to {:.2} (bar {})",
            self.figure.name, self.machine, self.ratio, self.figure.bar
        )
    }

    fn kept(&self) -> RecordedFigure {
        let Verdict { figure, machine, ratio, .. } = self;
        let (name, machine, date) = (figure.name.clone(), machine.clone(), record::today());
        RecordedFigure { name, machine, ratio: *ratio, bar: figure.bar, date }
    }
}

fn print(verdicts: &[Verdict]) {
    let width = verdicts.iter().map(|verdict| verdict.figure.name.chars().count()).max().unwrap_or(0);
    say(&format!("{:<width$}  {:<24}{:>8}{:>8}{:>8}", "FIGURE", "MACHINE", "RATIO", "BAR", "KEPT"));
    for verdict in verdicts {
        let Verdict { figure, machine, ratio, before } = verdict;
        let before = before.map_or(String::new(), |before| format!("{before:.2}"));
        let (name, bar, word) = (&figure.name, figure.bar, verdict.word());
        let line = format!("{name:<width$}  {machine:<24}{ratio:>8.2}{bar:>8.2}{before:>8}  {word}");
        say(line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ours_ms: f64) -> Rows {
        Rows::parse(&format!(
            "a line that is no row\n\
             {{\"machine\":\"test\",\"api\":\"cpu\"}}\n\
             {{\"case\":\"sort/f32/16Mi\",\"api\":\"cpu\",\"ms\":{ours_ms},\"wall_ms\":9}}\n\
             {{\"case\":\"sort/f32/16Mi\",\"peer\":\"numpy\",\"ms\":30}}\n"
        ))
    }

    fn kept(ratio: f64) -> Record {
        let mut record = Record::default();
        let (name, machine, date) = ("sort/f32/16Mi of numpy".to_owned(), "test".to_owned(), record::today());
        record.keep(RecordedFigure { name, machine, ratio, bar: 1.3, date });
        record
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds() {
        let verdicts = judge(&[rows(10.0), rows(15.0), rows(20.0)], &Record::default());
        assert_eq!((verdicts.len(), verdicts[0].ratio, verdicts[0].word()), (1, 2.0, "new"));
    }

    #[test]
    fn more_than_a_tenth_below_the_record_has_fallen() {
        let fallen = |ours_ms: f64, before: f64| judge(&[rows(ours_ms)], &kept(before))[0].has_fallen();
        assert!(!fallen(15.0, 2.0) && !fallen(16.0, 2.0) && fallen(17.0, 2.0));
        assert!(fallen(24.0, 1.31), "below its bar, and it was not before");
        assert!(!fallen(24.0, 1.26), "below its bar as before");
    }

    #[test]
    fn arguments_are_read() {
        let options = Options::parse(&["--record", "--rounds", "5", "gpu.jsonl"]).expect("valid");
        assert!(options.record && options.rounds == 5 && options.files == ["gpu.jsonl"]);
        assert!(Options::parse(&["--rounds", "0"]).is_err() && Options::parse(&["--full"]).is_err());
    }
}
