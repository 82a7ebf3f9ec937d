//! Runs a list of checks one after the other, each with a heading and its time, and prints a
//! summary at the end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{Workspace, say};

/// The result of a step that did not fail.
pub enum Outcome {
    /// All checks ran and passed.
    Passed,
    /// The checks that ran passed; some could not run here, for the given reason.
    Partly(String),
    /// No check ran, for the given reason.
    Skipped(String),
}

/// One check.
pub struct Step {
    pub name: &'static str,
    pub work: fn(&Workspace) -> Result<Outcome>,
}

/// Runs the steps in order. After a failure the remaining steps run only with `keep_going`. Fails
/// if any step failed.
pub fn run(workspace: &Workspace, steps: &[Step], keep_going: bool) -> Result<()> {
    let paint = Paint::for_stdout();
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for step in steps {
        if !failed.is_empty() && !keep_going {
            lines.push(summary_line(&paint, Verdict::NotRun, step.name, None, ""));
            continue;
        }
        say(&paint.bold(&format!("\n== {}", step.name)));
        let step_started = Instant::now();
        let result = (step.work)(workspace);
        let elapsed = step_started.elapsed();
        let (verdict, note) = match result {
            Ok(Outcome::Passed) => (Verdict::Passed, String::new()),
            Ok(Outcome::Partly(reason)) => (Verdict::Partly, reason),
            Ok(Outcome::Skipped(reason)) => (Verdict::Skipped, reason),
            Err(error) => {
                failed.push(step.name);
                say(&format!("error: {error:#}"));
                (Verdict::Failed, error.to_string())
            }
        };
        let line = summary_line(&paint, verdict, step.name, Some(elapsed), &note);
        say(&line);
        lines.push(line);
    }
    say(&paint.bold(&format!("\n== summary ({})", seconds(started.elapsed()))));
    lines.iter().for_each(|line| say(line));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Verdict {
    Passed,
    Partly,
    Skipped,
    Failed,
    NotRun,
}

fn summary_line(paint: &Paint, verdict: Verdict, name: &str, elapsed: Option<Duration>, note: &str) -> String {
    let (word, colour) = match verdict {
        Verdict::Passed => ("passed", 32),
        Verdict::Partly => ("partly", 33),
        Verdict::Skipped => ("skipped", 33),
        Verdict::Failed => ("FAILED", 31),
        Verdict::NotRun => ("not run", 33),
    };
    let time = elapsed.map(seconds).unwrap_or_default();
    let word = paint.coloured(&format!("{word:<8}"), colour);
    let line = format!("{word} {name:<10} {time:>9}  {}", note.lines().next().unwrap_or_default());
    line.trim_end().to_string()
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Adds colours if the output is a terminal.
struct Paint {
    enabled: bool,
}

impl Paint {
    fn for_stdout() -> Paint {
        Paint { enabled: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
    }

    fn bold(&self, text: &str) -> String {
        self.coloured(text, 1)
    }

    fn coloured(&self, text: &str, code: u8) -> String {
        if self.enabled { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSES: Step = Step { name: "passes", work: |_| Ok(Outcome::Passed) };
    const SKIPS: Step = Step { name: "skips", work: |_| Ok(Outcome::Skipped("no hardware".to_string())) };
    const FAILS: Step = Step { name: "fails", work: |_| bail!("broken") };

    fn workspace() -> Workspace {
        Workspace { root: ".".into() }
    }

    #[test]
    fn skipped_steps_do_not_fail_the_run() {
        assert!(run(&workspace(), &[PASSES, SKIPS], false).is_ok());
    }

    #[test]
    fn a_failure_stops_the_run_and_names_the_step() {
        let never = Step { name: "never", work: |_| panic!("a step ran after a failure") };
        let error = run(&workspace(), &[FAILS, never], false).expect_err("the first step fails");
        assert_eq!(error.to_string(), "failed: fails");
    }

    #[test]
    fn keep_going_runs_the_rest_and_still_fails() {
        let also = Step { name: "also", work: |_| bail!("broken too") };
        let error = run(&workspace(), &[FAILS, PASSES, also], true).expect_err("two steps fail");
        assert_eq!(error.to_string(), "failed: fails, also");
    }

    #[test]
    fn a_summary_line_has_no_colour_when_nobody_looks() {
        let plain = Paint { enabled: false };
        let line = summary_line(&plain, Verdict::Skipped, "loom", Some(Duration::from_millis(1250)), "no tests\nmore");
        assert_eq!(line, "skipped  loom           1.2 s  no tests");
    }
}
