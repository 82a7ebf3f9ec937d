//! The validated configuration: the arguments' meaning, checked, with every default filled in.

pub mod models;
pub mod signal;
pub mod store;
pub mod train;
pub mod vectors;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap_complete::Shell;
use panoply::Api;
use panoply::spelling::nearest;

use crate::arguments::{Arguments, BenchArguments, CommandArguments, ExplainArguments, GraphArguments};
use crate::bench::budget::{Extent, Time};
use crate::bench::cases::{self, Case};
use crate::failure::Failure;
use crate::op_kind::{OpKind, parse_size};
use crate::partial::is_same_place;
use models::{EmbedOptions, InferOptions};
use signal::SignalOptions;
use store::StoreOptions;
use train::TrainOptions;
use vectors::{DemoOptions, VectorsOptions};

/// Default time of all cases together, and default time of each case with `--full` or named cases.
const BENCH_TIME: Duration = Duration::from_secs(60);
const TIME_PER_CASE: Duration = Duration::from_secs(1);
/// The longest time that may be requested for one case.
const SECONDS_PER_CASE_MAX: f64 = 3600.0;
/// The most threads that send ops in one measurement.
const CALLERS_MAX: usize = 256;
/// The most repeats of one case.
const REPEATS_MAX: usize = 1_000_000_000;
/// The longest trace.
const TRACE_OPS_MAX: usize = 10_000_000;
/// The most threads that may be requested.
const THREADS_MAX: usize = 4096;
/// The largest batch of a model that is measured.
const BATCH_MAX: usize = 1 << 16;

/// The command to run, with its options.
pub enum Configuration {
    Devices(DevicesOptions),
    Plan(PlanOptions),
    Bench(BenchOptions),
    Explain(ExplainOptions),
    Graph(GraphOptions),
    Vectors(VectorsOptions),
    Store(StoreOptions),
    Signal(SignalOptions),
    Demo(DemoOptions),
    Train(TrainOptions),
    Infer(InferOptions),
    Embed(EmbedOptions),
    Completions(Shell),
    Man(Vec<String>),
}

/// The output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Json,
}

#[derive(Debug)]
pub struct DevicesOptions {
    /// `None` selects every API.
    pub apis: Option<Vec<Api>>,
    /// Whether the reason of every backend without a device is shown.
    pub all: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct PlanOptions {
    pub format: Format,
}

pub struct BenchOptions {
    /// The cases to measure, in order. Empty only if `models` is set.
    pub cases: Vec<&'static dyn Case>,
    /// How many of the cases are measured, and on which devices.
    pub extent: Extent,
    /// `None` selects every API.
    pub apis: Option<Vec<Api>>,
    pub time: Time,
    pub repeats_max: usize,
    /// `None` leaves the choice to the engine.
    pub threads: Option<usize>,
    pub plot: Option<PathBuf>,
    pub format: Format,
    pub list_only: bool,
    pub calibrate: bool,
    pub trace: bool,
    pub trace_ops: usize,
    /// The number of callers that send small products at once; `None` does not measure callers.
    pub callers: Option<usize>,
    /// The largest accepted ratio of two chains of ops at once to two in turn; `None` does not
    /// measure chains.
    pub chains: Option<f64>,
    /// The models to measure instead of ops.
    pub models: Option<ModelsOptions>,
}

/// The models to measure.
#[derive(Debug)]
pub struct ModelsOptions {
    pub folder: PathBuf,
    /// Prefixes of case names; an empty list selects all cases.
    pub prefixes: Vec<String>,
    pub batches: Vec<usize>,
    /// Sizes of dimensions that the model files leave open.
    pub sizes: Vec<(String, usize)>,
}

#[derive(Debug)]
pub struct ExplainOptions {
    pub op: OpKind,
    pub sizes: Vec<Vec<usize>>,
    /// `None` selects every API.
    pub apis: Option<Vec<Api>>,
    pub to_host: bool,
    pub plot: Option<PathBuf>,
    pub format: Format,
}

#[derive(Debug)]
pub struct GraphOptions {
    pub file: PathBuf,
    /// Symbols and their sizes, in the order of the command line.
    pub sizes: Vec<(String, usize)>,
    pub for_gpu: bool,
    pub svg: Option<PathBuf>,
    pub format: Format,
}

impl Configuration {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: Arguments) -> Result<Configuration, Failure> {
        Ok(match arguments.command {
            CommandArguments::Devices(arguments) => {
                let (apis, format) = (apis(&arguments.api)?, format(arguments.json));
                Configuration::Devices(DevicesOptions { apis, all: arguments.all, format })
            }
            CommandArguments::Plan(arguments) => Configuration::Plan(PlanOptions { format: format(arguments.json) }),
            CommandArguments::Bench(arguments) => Configuration::Bench(bench(arguments)?),
            CommandArguments::Explain(arguments) => Configuration::Explain(explain(arguments)?),
            CommandArguments::Graph(arguments) => Configuration::Graph(graph(arguments)?),
            CommandArguments::Vectors(arguments) => Configuration::Vectors(VectorsOptions::resolve(arguments)?),
            CommandArguments::Store(arguments) => Configuration::Store(StoreOptions::resolve(arguments)?),
            CommandArguments::Signal(arguments) => Configuration::Signal(SignalOptions::resolve(arguments)?),
            CommandArguments::Demo(arguments) => Configuration::Demo(DemoOptions::resolve(arguments)?),
            CommandArguments::Train(arguments) => Configuration::Train(TrainOptions::resolve(arguments)?),
            CommandArguments::Infer(arguments) => Configuration::Infer(InferOptions::resolve(arguments)?),
            CommandArguments::Embed(arguments) => Configuration::Embed(EmbedOptions::resolve(arguments)?),
            CommandArguments::Completions(arguments) => Configuration::Completions(arguments.shell),
            CommandArguments::Man(arguments) => Configuration::Man(arguments.command),
        })
    }
}

fn bench(arguments: BenchArguments) -> Result<BenchOptions, Failure> {
    if let Some(seconds) = arguments.seconds
        && !(seconds > 0.0 && seconds <= SECONDS_PER_CASE_MAX)
    {
        return Err(Failure::Usage(format!(
            "--seconds: expected more than 0 and at most {SECONDS_PER_CASE_MAX}, got {seconds}"
        )));
    }
    let within = |argument: &str, got: usize, max: usize| match (1..=max).contains(&got) {
        true => Ok(()),
        false => Err(Failure::Usage(format!("{argument}: expected 1 to {max}, got {got}"))),
    };
    arguments.threads.map_or(Ok(()), |threads| within("--threads", threads, THREADS_MAX))?;
    arguments.callers.map_or(Ok(()), |callers| within("--callers", callers, CALLERS_MAX))?;
    if let Some(got) = arguments.chains.filter(|ratio| ratio.is_nan() || *ratio <= 0.0) {
        return Err(Failure::Usage(format!("--chains: expected a ratio above 0, got {got}")));
    }
    within("--repeats", arguments.repeats, REPEATS_MAX)?;
    within("--trace-ops", arguments.trace_ops, TRACE_OPS_MAX)?;
    arguments.batch.iter().try_for_each(|batch| within("--batch", *batch, BATCH_MAX))?;
    let extent = match (arguments.prefixes.is_empty() && arguments.models.is_none(), arguments.full) {
        (false, _) => Extent::Named,
        (true, true) => Extent::Full,
        (true, false) => Extent::Short,
    };
    let time = match (arguments.seconds, extent) {
        (Some(seconds), _) => Time::PerCase(Duration::from_secs_f64(seconds)),
        (None, Extent::Short) => Time::InAll(BENCH_TIME),
        (None, Extent::Full | Extent::Named) => Time::PerCase(TIME_PER_CASE),
    };
    if arguments.callers.is_some() && arguments.models.is_none() && !arguments.prefixes.is_empty() {
        return Err(Failure::Usage("--callers: expected no cases, or --models; got cases alone".to_owned()));
    }
    let models = match arguments.models {
        None => None,
        Some(folder) => Some(ModelsOptions {
            folder,
            prefixes: arguments.prefixes.clone(),
            batches: if arguments.batch.is_empty() { vec![1, 8] } else { arguments.batch },
            sizes: symbol_sizes(&arguments.size)?,
        }),
    };
    check_picture("--plot", arguments.plot.as_deref(), "svg")?;
    Ok(BenchOptions {
        cases: if models.is_some() { Vec::new() } else { chosen_cases(&arguments.prefixes)? },
        extent,
        apis: apis(&arguments.api)?,
        time,
        repeats_max: arguments.repeats,
        threads: arguments.threads,
        plot: arguments.plot,
        format: format(arguments.json),
        list_only: arguments.list,
        calibrate: arguments.calibrate,
        trace: arguments.trace,
        trace_ops: arguments.trace_ops,
        callers: arguments.callers,
        chains: arguments.chains,
        models,
    })
}

/// Refuses a file for a picture whose name ends as another kind of picture does.
fn check_picture(option: &str, file: Option<&Path>, ending: &str) -> Result<(), Failure> {
    const ENDINGS: [&str; 7] = ["svg", "png", "jpg", "jpeg", "gif", "webp", "pdf"];
    let Some(file) = file else { return Ok(()) };
    let end = file.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase).unwrap_or_default();
    match end != ending && ENDINGS.contains(&end.as_str()) {
        true => Err(Failure::Usage(format!(
            "{option}: expected a file name that ends in .{ending}, got {}",
            file.display()
        ))),
        false => Ok(()),
    }
}

fn explain(arguments: ExplainArguments) -> Result<ExplainOptions, Failure> {
    check_picture("--plot", arguments.plot.as_deref(), "svg")?;
    let op = OpKind::parse(&arguments.op)
        .ok_or_else(|| Failure::Usage(unknown("OP", &arguments.op, &OpKind::ALL.map(OpKind::name))))?;
    let size = |text: &String| {
        let form = op.size_form();
        parse_size(text).ok_or_else(|| Failure::Usage(format!("SIZE: expected {form}, got {text}")))
    };
    let sizes = arguments.sizes.iter().map(size).collect::<Result<_, _>>()?;
    let (apis, format) = (apis(&arguments.api)?, format(arguments.json));
    Ok(ExplainOptions { op, sizes, apis, to_host: arguments.to_host, plot: arguments.plot, format })
}

fn graph(arguments: GraphArguments) -> Result<GraphOptions, Failure> {
    check_picture("--svg", arguments.svg.as_deref(), "svg")?;
    let sizes = symbol_sizes(&arguments.size)?;
    if let Some(svg) = &arguments.svg
        && is_same_place(&arguments.file, svg)
    {
        return Err(Failure::Usage(format!("--svg: expected another file than {}, the graph itself", svg.display())));
    }
    let format = format(arguments.json);
    Ok(GraphOptions { file: arguments.file, sizes, for_gpu: arguments.gpu, svg: arguments.svg, format })
}

/// The message about a name that does not exist, with the most similar one.
fn unknown(argument: &str, got: &str, known: &[&str]) -> String {
    let meant = nearest(got, known).map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
    format!("{argument}: expected one of {}; got {got}{meant}", known.join(", "))
}

/// Parses symbols with their sizes. Each symbol may occur once.
fn symbol_sizes(texts: &[String]) -> Result<Vec<(String, usize)>, Failure> {
    let size = |text: &String| {
        let parsed = text.split_once('=').and_then(|(name, size)| Some((name.to_owned(), size.parse().ok()?)));
        parsed.ok_or_else(|| {
            Failure::Usage(format!("--size: expected a symbol and a number such as batch=64, got {text}"))
        })
    };
    let sizes: Vec<(String, usize)> = texts.iter().map(size).collect::<Result<_, _>>()?;
    let is_known = |place: usize, name: &String| sizes[..place].iter().any(|(known, _)| known == name);
    match sizes.iter().enumerate().find(|(place, (name, _))| is_known(*place, name)) {
        Some((_, (twice, _))) => Err(Failure::Usage(format!("--size: expected each symbol once, got {twice} again"))),
        None => Ok(sizes),
    }
}

/// Returns the cases whose names begin with one of the prefixes, or all cases if there is no
/// prefix.
fn chosen_cases(prefixes: &[String]) -> Result<Vec<&'static dyn Case>, Failure> {
    for prefix in prefixes {
        if !cases::all().any(|case| case.name().starts_with(prefix.as_str())) {
            let mut families: Vec<String> = Vec::new();
            for case in cases::all() {
                let name = case.name();
                let family = name.split('/').next().unwrap_or(&name).to_owned();
                if !families.contains(&family) {
                    families.push(family);
                }
            }
            let known: Vec<&str> = families.iter().map(String::as_str).collect();
            let family = prefix.split('/').next().unwrap_or(prefix);
            let meant = nearest(family, &known).filter(|meant| *meant != family);
            let meant = meant.map_or_else(String::new, |meant| format!(" Did you mean `{meant}`?"));
            return Err(Failure::Usage(format!(
                "no case begins with `{prefix}`.{meant} There are {}. `panoply bench --list` names every case",
                known.join(", ")
            )));
        }
    }
    let chosen =
        |case: &&dyn Case| prefixes.is_empty() || prefixes.iter().any(|prefix| case.name().starts_with(prefix));
    Ok(cases::all().filter(chosen).collect())
}

fn apis(names: &[String]) -> Result<Option<Vec<Api>>, Failure> {
    let parse = |name: &String| {
        panoply::api_named(name).ok_or_else(|| {
            let known = panoply::apis();
            let known: Vec<&str> = known.iter().map(Api::name).collect();
            Failure::Usage(unknown("--api", name, &known))
        })
    };
    let apis: Vec<Api> = names.iter().map(parse).collect::<Result<_, _>>()?;
    Ok((!apis.is_empty()).then_some(apis))
}

fn format(json: bool) -> Format {
    if json { Format::Json } else { Format::Table }
}
