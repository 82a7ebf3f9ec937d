//! What the arguments mean: checked, and with every default filled in.

use std::path::PathBuf;
use std::time::Duration;

use panoply::Api;

use crate::arguments::{Arguments, BenchArguments, CommandArguments};
use crate::bench::cases::{self, Work};
use crate::failure::Failure;

/// The longest time that may be asked for one case.
const SECONDS_PER_CASE_MAX: f64 = 3600.0;
/// The most threads that may be asked for.
const THREADS_MAX: usize = 4096;

/// What to do.
#[derive(Debug)]
pub enum Configuration {
    Devices(DevicesOptions),
    Plan(PlanOptions),
    Bench(BenchOptions),
}

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Json,
}

#[derive(Debug)]
pub struct DevicesOptions {
    /// `None` is every API.
    pub apis: Option<Vec<Api>>,
    pub format: Format,
}

#[derive(Debug)]
pub struct PlanOptions {
    pub format: Format,
}

#[derive(Debug)]
pub struct BenchOptions {
    /// What to measure, in order. Never empty.
    pub cases: Vec<Work>,
    /// Whether the cases were asked for by name.
    pub named: bool,
    /// `None` is every API.
    pub apis: Option<Vec<Api>>,
    pub time_per_case: Duration,
    pub repeats_max: usize,
    /// `None` is the engine's own choice.
    pub threads: Option<usize>,
    pub plot: Option<PathBuf>,
    pub format: Format,
    pub list_only: bool,
}

impl Configuration {
    /// What these arguments mean, or which of them makes no sense.
    pub fn resolve(arguments: Arguments) -> Result<Configuration, Failure> {
        Ok(match arguments.command {
            CommandArguments::Devices(arguments) => {
                let (apis, format) = (apis(&arguments.api)?, format(arguments.json));
                Configuration::Devices(DevicesOptions { apis, format })
            }
            CommandArguments::Plan(arguments) => Configuration::Plan(PlanOptions { format: format(arguments.json) }),
            CommandArguments::Bench(arguments) => Configuration::Bench(bench(arguments)?),
        })
    }
}

fn bench(arguments: BenchArguments) -> Result<BenchOptions, Failure> {
    let seconds = arguments.seconds;
    if !(seconds > 0.0 && seconds <= SECONDS_PER_CASE_MAX) {
        return Err(Failure::Usage(format!(
            "--seconds: expected more than 0 and at most {SECONDS_PER_CASE_MAX}, got {seconds}"
        )));
    }
    if let Some(threads) = arguments.threads
        && !(1..=THREADS_MAX).contains(&threads)
    {
        return Err(Failure::Usage(format!("--threads: expected 1 to {THREADS_MAX}, got {threads}")));
    }
    Ok(BenchOptions {
        cases: chosen_cases(&arguments.prefixes)?,
        named: !arguments.prefixes.is_empty(),
        apis: apis(&arguments.api)?,
        time_per_case: Duration::from_secs_f64(seconds),
        repeats_max: arguments.repeats,
        threads: arguments.threads,
        plot: arguments.plot,
        format: format(arguments.json),
        list_only: arguments.list,
    })
}

/// The cases whose names begin with one of the prefixes; all of them where there is none.
fn chosen_cases(prefixes: &[String]) -> Result<Vec<Work>, Failure> {
    for prefix in prefixes {
        if !cases::CASES.iter().any(|work| work.name().starts_with(prefix.as_str())) {
            let names: Vec<String> = cases::CASES.iter().map(|work| format!("  {}", work.name())).collect();
            let names = names.join("\n");
            return Err(Failure::Usage(format!(
                "no case begins with `{prefix}`; expected the beginning of one of these:\n{names}"
            )));
        }
    }
    let chosen = |work: &&Work| prefixes.is_empty() || prefixes.iter().any(|prefix| work.name().starts_with(prefix));
    Ok(cases::CASES.iter().filter(chosen).copied().collect())
}

fn apis(names: &[String]) -> Result<Option<Vec<Api>>, Failure> {
    let parse = |name: &String| {
        name.parse::<Api>().map_err(|_| {
            let known = Api::ALL.map(Api::name).join(", ");
            Failure::Usage(format!("--api: expected one of {known}; got {name}"))
        })
    };
    let apis: Vec<Api> = names.iter().map(parse).collect::<Result<_, _>>()?;
    Ok((!apis.is_empty()).then_some(apis))
}

fn format(json: bool) -> Format {
    if json { Format::Json } else { Format::Table }
}
