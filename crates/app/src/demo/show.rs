//! Prints the results as text: the hits, a table of the devices, and bars.

use super::{DemoAnswer, DemoReport, Package};
use crate::bench::row::time_text;
use crate::failure::Failure;
use crate::screen::{Screen, shortened, wrapped};
use crate::vectors::grouped;

/// The largest width of a package's name.
const ID_WIDTH: usize = 18;
/// The length of the longest bar.
const BAR_WIDTH_MAX: usize = 40;

/// Prints all results.
pub fn print(findings: &DemoReport, screen: &mut Screen) -> Result<(), Failure> {
    let rows = grouped(findings.rows as u64);
    let introduction = format!(
        "{rows} Debian packages, their summaries as vectors of {} components; a collection of them was built in {:.0} ms. \
         Each question below is a vector, too: hits are near in meaning, whatever their words.",
        findings.dimension, findings.build_ms
    );
    wrapped(&introduction, screen.width()).into_iter().try_for_each(|line| screen.line(line))?;
    for answer in &findings.questions {
        print_answer(answer, screen)?;
    }
    screen.line("")?;
    print_devices(findings, screen)?;
    screen.line("")?;
    print_bars(findings, screen)
}

fn print_answer(answer: &DemoAnswer, screen: &mut Screen) -> Result<(), Failure> {
    screen.line("")?;
    let filter = answer.filter.as_ref().map_or(String::new(), |filter| format!("  where {filter}"));
    screen.line(format!("{}{}", screen.strong(&format!("“{}”", answer.text)), screen.faint(&filter)))?;
    for Package { id, score, metadata } in &answer.hits {
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let section = format!("({})", text("section"));
        let left = screen.width().saturating_sub(ID_WIDTH + 12 + section.chars().count());
        let (id, summary) = (shortened(id, ID_WIDTH), shortened(text("summary"), left));
        screen.line(format!("  {score:.3}  {id:<ID_WIDTH$}  {summary} {}", screen.faint(&section)))?;
    }
    Ok(())
}

fn print_devices(findings: &DemoReport, screen: &mut Screen) -> Result<(), Failure> {
    let questions = findings.questions.len();
    let all = format!("{questions} AT ONCE");
    screen.line(screen.strong(&format!(
        "{:<10}{:<30}{:>13}{all:>14}{:>13}  HITS",
        "DEVICE", "NAME", "ONE QUESTION", "QUESTIONS/S"
    )))?;
    for trial in &findings.devices {
        let (one, all) = (time_text(trial.one_ms), time_text(trial.all_ms));
        let (name, rate) = (shortened(&trial.name, 28), grouped(trial.queries_per_s as u64));
        let agrees = if trial.agrees { "as expected" } else { "WRONG" };
        screen.line(format!("{:<10}{name:<30}{one:>13}{all:>14}{rate:>13}  {agrees}", trial.device))?;
        if trial.answered_by != [trial.device.clone()] {
            screen.line(format!("{:<10}answered by {}", "", trial.answered_by.join(" and ")))?;
        }
    }
    for unfit in &findings.unfit {
        screen.line(format!("{:<10}could not take part: {}", unfit.device, unfit.reason))?;
    }
    Ok(())
}

/// Prints the questions per second of each device, one after the other and all at once. The fastest
/// has the longest bar.
fn print_bars(findings: &DemoReport, screen: &mut Screen) -> Result<(), Failure> {
    let mut rates = vec![("plain loop".to_owned(), 1e3 / findings.plain_loop_ms.max(1e-6))];
    for trial in &findings.devices {
        rates.push((trial.device.clone(), 1e3 / trial.one_ms.max(1e-6)));
        rates.push((format!("{} ×{}", trial.device, findings.questions.len()), trial.queries_per_s));
    }
    let plain = rates[0].1;
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let width = rates.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let text = |rate: f64| format!("{} ({:.1}×)", grouped(rate as u64), rate / plain);
    let text_width = rates.iter().map(|(_, rate)| text(*rate).chars().count()).max().unwrap_or(0);
    let bar_width = screen.width().saturating_sub(width + text_width + 6).clamp(1, BAR_WIDTH_MAX);
    screen.line(screen.strong("Questions in a second, beside a plain loop on one thread:"))?;
    for (name, rate) in rates {
        let bar = "█".repeat(((rate / most * bar_width as f64).round() as usize).max(1));
        screen.line(format!("  {name:<width$}  {bar:<bar_width$}  {}", text(rate)))?;
    }
    Ok(())
}
