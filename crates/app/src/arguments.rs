//! The command line's raw arguments. Only their form is checked here; [`crate::configuration`]
//! interprets and validates them.
//!
//! The doc comments of fields and variants are the help texts that users read.

pub mod models;
pub mod signal;
pub mod store;
pub mod vectors;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::op_kind::OpKind;
use models::{EmbedArguments, InferArguments};
use signal::SignalArguments;
use store::StoreArguments;
use vectors::{DemoArguments, VectorsArguments};

/// One runtime over every accelerator in this machine.
///
/// Panoply runs work on any hardware that it finds and reports where the work ran. This command
/// shows the devices it finds, where workers would run, and how fast the ops are, and keeps
/// collections of vectors and encrypted stores.
#[derive(Debug, Parser)]
#[command(name = "panoply", version, arg_required_else_help = true, after_long_help = GUIDE, after_help = HINT)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: CommandArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// How much is printed, and how. These options may stand before or after the command's name.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArguments {
    /// Shows neither progress nor notes; results, warnings and errors are still printed
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Says more on the error output, such as which settings and which model are used
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// When to use colours; auto means on a terminal, unless NO_COLOR is set or TERM is dumb
    #[arg(long, value_name = "WHEN", global = true, value_enum, default_value_t = ColorArgument::Auto)]
    pub color: ColorArgument,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorArgument {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum CommandArguments {
    /// Lists every device, and for every backend without one the reason
    Devices(DevicesArguments),
    /// Shows which CPUs workers would run on, near which devices
    Plan(PlanArguments),
    /// Measures ops through the whole runtime
    Bench(BenchArguments),
    /// Predicts where an op would run, and why
    Explain(ExplainArguments),
    /// Shows a graph before and after fusion, with what each kernel costs
    Graph(GraphArguments),
    /// Keeps vectors with metadata in a folder, and finds the nearest
    Vectors(VectorsArguments),
    /// Keeps files encrypted in a folder
    Store(StoreArguments),
    /// Looks into recordings of signals, decodes them, and measures receivers
    Signal(SignalArguments),
    /// Searches 10,000 software packages by meaning, on every device
    Demo(DemoArguments),
    /// Trains a network to read handwritten digits, and reports its accuracy
    Train(TrainArguments),
    /// Runs a model from an ONNX file on a picture, on text or on arrays
    Infer(InferArguments),
    /// Makes vectors of texts or pictures, printed or into a collection
    Embed(EmbedArguments),
    /// Prints the completions of a shell
    Completions(CompletionsArguments),
    /// Prints the manual page of panoply or of one of its commands
    Man(ManArguments),
}

#[derive(Args, Debug)]
#[command(
    after_help = "On Linux it also says which GPUs are on the PCI bus, with the kernel driver of each, and what keeps programs \
    from one: another driver, a missing device node, a group that this user is not in, a container without it. A machine \
    without the wanted devices is no error: the exit code is 0."
)]
pub struct DevicesArguments {
    /// Only devices of this API; may be given more than once
    #[arg(long, value_name = "API")]
    pub api: Vec<String>,
    /// Says of every backend without a device why it has none, each on a line of its own
    #[arg(long)]
    pub all: bool,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct PlanArguments {
    /// Prints one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "A case is named after its op, its element type and its size, such as matmul/f32/1024. \
    BEST and MEDIAN are times of all repeats, from the call until the output is there. ON DEVICE is the best of the device's own \
    times, where it reports them. RATE is computed from ON DEVICE, else from BEST.")]
pub struct BenchArguments {
    /// Only cases whose names begin with one of these
    #[arg(value_name = "CASE-PREFIX")]
    pub prefixes: Vec<String>,
    /// Only the first device of this API, hardware before software; may be given more than once
    /// [default: every API with a device]
    #[arg(long, value_name = "API")]
    pub api: Vec<String>,
    /// All cases that suit the devices, a second each, instead of a short set within a minute
    #[arg(long)]
    pub full: bool,
    /// Time spent on each case, in seconds [default: a minute in all; 1 with --full or CASE-PREFIX]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// The most repeats of each case, even if time is left
    #[arg(long, value_name = "N", default_value_t = 1_000_000, allow_negative_numbers = true)]
    pub repeats: usize,
    /// Threads that a CPU device computes with [default: one per CPU of its NUMA node]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Writes a bar chart as SVG as well
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Prints one JSON object per case and line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Names the cases and measures nothing
    #[arg(long)]
    pub list: bool,
    /// Measures every op class, link and device for the router, and keeps the result in the cache
    /// folder
    #[arg(long, conflicts_with_all = ["trace", "list", "plot", "prefixes", "seconds", "repeats", "full"])]
    pub calibrate: bool,
    /// Runs a mixed trace by the router, an oracle, and each device alone
    #[arg(long, conflicts_with_all = ["list", "plot", "prefixes"])]
    pub trace: bool,
    /// Measures small matrix products of N callers at once, with and without batching, or the
    /// models of --models [default N: 64]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "64", allow_negative_numbers = true,
        conflicts_with_all = ["trace", "calibrate", "list", "plot"])]
    pub callers: Option<usize>,
    /// Measures two callers with a chain of small ops each: alone, in turn and at once. Fails if at
    /// once takes more than RATIO of the time in turn [default RATIO: no limit]
    #[arg(long, value_name = "RATIO", num_args = 0..=1, default_missing_value = "inf", allow_negative_numbers = true,
        conflicts_with_all = ["trace", "calibrate", "list", "plot", "callers", "models", "prefixes"])]
    pub chains: Option<f64>,
    /// Measures the models of this folder (NAME.onnx or NAME/model.onnx) instead of ops
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["trace", "calibrate"])]
    pub models: Option<PathBuf>,
    /// The batch size for models; may be given more than once [default: 1 and 8]
    #[arg(long, value_name = "N", requires = "models", allow_negative_numbers = true)]
    pub batch: Vec<usize>,
    /// The size of a dimension that a model leaves open, such as sequence=128; may be given more
    /// than once
    #[arg(long, value_name = "NAME=N", requires = "models")]
    pub size: Vec<String>,
    /// The number of ops in the trace
    #[arg(long, value_name = "N", default_value_t = 20_000, allow_negative_numbers = true)]
    pub trace_ops: usize,
}

#[derive(Args, Debug)]
#[command(after_help = "FILE is text, one statement a line; without the bars, this is a whole graph:\n\n  \
    | symbol batch\n  \
    | input x f32 [batch, 784]\n  \
    | const w f32 [784, 10] = random(1)     # or [1, 2.5, …], fill(0.5), hex(…)\n  \
    | h = matmul(x, w)\n  \
    | p = softmax(h, axis=1)\n  \
    | output p\n\n\
    docs/graph-text.md has every op with its arguments. Times are estimates from the bytes and operations of each kernel, \
    for two cores or for a large GPU.")]
pub struct GraphArguments {
    /// The graph, as text; or a model, FILE.onnx, which is run once on zeros
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The size of a symbol, such as batch=64; may be given more than once [default: 1]
    #[arg(long, value_name = "SYMBOL=N")]
    pub size: Vec<String>,
    /// Fuses for a GPU instead of the processor
    #[arg(long)]
    pub gpu: bool,
    /// Writes a picture of the lists before and after fusion as well
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Prints one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Predictions come from what the router has learned: run `panoply bench --calibrate` first. \
    Inputs are taken to be on the host.")]
pub struct ExplainArguments {
    #[arg(value_name = "OP", help = format!("The op: {}", OpKind::names()))]
    pub op: String,
    /// Its sizes, such as 1024 or 512x1024x256
    #[arg(value_name = "SIZE", required = true)]
    pub sizes: Vec<String>,
    /// Only devices of this API; may be given more than once
    #[arg(long, value_name = "API")]
    pub api: Vec<String>,
    /// Includes the time to bring the output back to the host
    #[arg(long)]
    pub to_host: bool,
    /// Draws predicted times by size as SVG, with the sizes at which the best device changes
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Prints one JSON object per device and line instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "For example, for the shell of this user:\n  \
    panoply completions bash > ~/.local/share/bash-completion/completions/panoply\n  \
    panoply completions zsh > ~/.zfunc/_panoply\n  \
    panoply completions fish > ~/.config/fish/completions/panoply.fish")]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Args, Debug)]
#[command(
    after_help = "For example:\n  panoply man bench | man -l -\n  panoply man > ~/.local/share/man/man1/panoply.1"
)]
pub struct ManArguments {
    /// The command, such as bench or vectors search [default: the whole of panoply]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Without --mnist it learns 1,797 digits of 8 × 8 pixels, which the command carries, in a few seconds. \
    With --checkpoints a run that was stopped goes on where it was."
)]
pub struct TrainArguments {
    /// The network: mlp or cnn
    #[arg(long, value_name = "NETWORK", default_value = "cnn")]
    pub network: String,
    /// Learns MNIST from its four unpacked files in this folder
    #[arg(long, value_name = "FOLDER")]
    pub mnist: Option<PathBuf>,
    /// Epochs: how often every picture is seen [default: 30 for the digits; 3 for mlp and 1 for cnn
    /// with --mnist]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub epochs: Option<u64>,
    /// Pictures in each step [default: 16; 64 for mlp and 32 for cnn with --mnist]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch: Option<usize>,
    /// The learning rate [default: 0.003 for the digits; 0.0015 for mlp and 0.004 for cnn with
    /// --mnist]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// The element type of matrix products: f32, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub precision: String,
    /// Shares each step among these devices; may be given more than once [default: one that the
    /// runtime chooses]
    #[arg(long, value_name = "DEVICE")]
    pub device: Vec<String>,
    /// The seed of the initial parameters, of the order of samples and of dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Saves a checkpoint after each epoch in this folder, and resumes from the newest one there
    #[arg(long, value_name = "FOLDER")]
    pub checkpoints: Option<PathBuf>,
    /// Writes the parameters to a safetensors file at the end
    #[arg(long, value_name = "FILE.safetensors")]
    pub save: Option<PathBuf>,
    /// Draws the loss and the accuracy
    #[arg(long, value_name = "FILE.svg")]
    pub curve: Option<PathBuf>,
    /// Looks for the op that produced the first NaN or infinity
    #[arg(long)]
    pub debug: bool,
    /// Prints one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

const HINT: &str = "Examples, environment variables and exit codes: panoply --help";

const GUIDE: &str = "\
Examples:
  panoply demo                             a search by meaning, on every device
  panoply demo \"draw a family tree\"        a question of your own; needs a text model
  panoply train                            a network that learns to read digits, in seconds
  panoply devices                          what is in this machine
  panoply devices --json | jq '.backends[].devices[].id'
  panoply plan                             where workers would run
  panoply bench                            the speed of this machine's devices, within a minute
  panoply bench --full --plot speed.svg    every case that suits them, and a bar chart
  panoply bench --list                     the cases that can be measured
  panoply bench matmul search              every case whose name begins so
  panoply bench --threads 1 --json > one.jsonl
  panoply bench --calibrate                teach the router how fast everything is here
  panoply bench --trace                    the router beside an oracle and each device
  panoply bench --callers 64               what batching brings to many callers
  panoply bench --chains                   whether two callers' small ops overlap
  panoply explain matmul 64 1024 --plot crossover.svg
  panoply graph crates/app/data/mlp.graph --size batch=64 --svg mlp.svg
  panoply infer detector.onnx --image street.jpg --boxes seen.png
  panoply embed minilm.onnx --lines notes.txt --into notes
  panoply completions bash                 for the shell; zsh, fish, elvish and powershell as well
  panoply man bench | man -l -             the manual page of a command
  panoply vectors create packages --dimension 384 --storage f16
  panoply vectors import packages crates/app/data/debian-packages.npy --records crates/app/data/debian-packages.jsonl
  panoply vectors search packages --id chessx --filter 'section = games'
  panoply vectors search notes --text \"what I wrote about Rust\"
  panoply store init safe --key-file safe.key --generate
  panoply store put safe letters --key-file safe.key
  panoply store cat safe letters/first.txt --range 0..100 --key-file safe.key
  panoply signal decode                    packets out of a noisy recording
  panoply signal ber --svg ber.svg         bit error rates beside theory

Environment:
  PANOPLY_CONFIG the file of settings [default: panoply.toml in this folder]
  PANOPLY_LIMITS_QUEUE_DEPTH_MAX and the like
                 single settings: section and key; docs/environment.md lists them
  PANOPLY_CACHE  the absolute path of the folder for compiled kernels, the router's
                 measurements and text models (in models/) [default: the user's cache folder]
  PANOPLY_STORE_KEY, PANOPLY_STORE_PASSPHRASE
                 the key of a store, or its passphrase, if the command line names neither
  PANOPLY_SIMD   scalar, neon, avx2 or avx512: use no wider vector instructions than these
  NO_COLOR       if set, no colours (pipes and files have none anyway); --color always overrules it
  COLUMNS        the width of tables [default: the terminal's, or 100]

Exit codes:
  0    all went well, also when the reader of a pipe went away
  1    something could not be done; the last line on the error output says what
  2    the command line is invalid
  129  ended because its terminal was closed (HUP)
  130  ended by Ctrl-C (INT)
  143  ended because it was asked to (TERM)";
