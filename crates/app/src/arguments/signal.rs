//! The raw arguments of `panoply signal`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub struct SignalArguments {
    #[command(subcommand)]
    pub command: SignalCommand,
}

#[derive(Debug, Subcommand)]
pub enum SignalCommand {
    /// Shows the mean power of each frequency
    Spectrum(SpectrumArguments),
    /// Shows the power of each frequency over time
    Waterfall(WaterfallArguments),
    /// Finds the QPSK packets of a recording and decodes them
    Decode(DecodeArguments),
    /// Measures bit error rates beside theory
    Ber(BerArguments),
    /// Runs a receiver against a clock and counts missed deadlines
    Realtime(RealtimeArguments),
    /// Makes a recording of QPSK packets with noise
    Record(RecordArguments),
}

const RECORDINGS: &str = "RECORDING is a WAV file, a SigMF recording by either of its two files, or with --raw a file of samples and nothing else.";

/// A recording, and the layout of its samples if the file does not describe it.
#[derive(Args, Debug)]
pub struct RecordingArguments {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub file: PathBuf,
    /// The file has samples of this format and nothing else: u8, i8, i16, i16be, i24, i32 or f32
    #[arg(long, value_name = "FORMAT", requires = "rate")]
    pub raw: Option<String>,
    /// Sample rate of a raw file, in samples a second
    #[arg(long, value_name = "HZ", allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Samples of a raw file are real, not complex
    #[arg(long, requires = "raw")]
    pub real: bool,
    /// The two channels of a WAV file are one complex signal
    #[arg(long, conflicts_with = "raw")]
    pub iq: bool,
}

#[derive(Args, Debug)]
#[command(after_help = RECORDINGS)]
pub struct SpectrumArguments {
    #[command(flatten)]
    pub recording: RecordingArguments,
    /// Frequency bins: a power of two
    #[arg(long, value_name = "N", default_value_t = 1024, allow_negative_numbers = true)]
    pub bins: usize,
    /// Draws the spectrum as SVG as well
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Draws the spectrum as PNG as well
    #[arg(long, value_name = "FILE.png")]
    pub png: Option<PathBuf>,
    /// Prints one JSON object instead of a picture
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = RECORDINGS)]
pub struct WaterfallArguments {
    #[command(flatten)]
    pub recording: RecordingArguments,
    /// Frequency bins: a power of two
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    pub bins: usize,
    /// Lines of the SVG and PNG pictures; the terminal shows fewer
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    pub rows: usize,
    /// Draws the waterfall as SVG as well
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Draws the waterfall as PNG as well
    #[arg(long, value_name = "FILE.png")]
    pub png: Option<PathBuf>,
    /// Prints one JSON object instead of a picture
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Without RECORDING it decodes the one that the command carries: twelve packets, about 9 dB above noise, with a carrier that is off. \
    `panoply signal record` makes others."
)]
pub struct DecodeArguments {
    /// The recording: a SigMF recording by either of its two files, or with --iq a WAV file
    /// [default: the command's own]
    #[arg(value_name = "RECORDING")]
    pub file: Option<PathBuf>,
    /// The two channels of a WAV file are one complex signal
    #[arg(long)]
    pub iq: bool,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Rates are over the bit energy to noise density, in decibels. Each point goes on until 200 bits were wrong, or --bits were sent."
)]
pub struct BerArguments {
    /// bpsk, qpsk, psk8, qam16, qam64 or qam256
    #[arg(long, value_name = "NAME", default_value = "qpsk")]
    pub constellation: String,
    /// With the convolutional code of 64 states and soft decisions, beside its bound
    #[arg(long)]
    pub coded: bool,
    /// The first point, in decibels
    #[arg(long, value_name = "DB", default_value_t = 0.0, allow_negative_numbers = true)]
    pub from: f64,
    /// The last point, in decibels [default: about where one bit of 100,000 is wrong]
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    pub to: Option<f64>,
    /// The step between points, in decibels
    #[arg(long, value_name = "DB", default_value_t = 1.0, allow_negative_numbers = true)]
    pub step: f64,
    /// The most bits to send at one point
    #[arg(long, value_name = "N", default_value_t = 4_000_000, allow_negative_numbers = true)]
    pub bits: u64,
    /// The seed of bits and noise
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Draws both curves
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Each period brings as many complex samples as its time has at the rate; they are filtered, demodulated and decoded on \
    one thread before the next begins. The thread runs with SCHED_FIFO and locked memory where the system permits it, else a note says what is missing."
)]
pub struct RealtimeArguments {
    /// The length of a period, which is also the deadline of its work
    #[arg(long, value_name = "US", default_value_t = 1000, allow_negative_numbers = true)]
    pub period_us: u64,
    /// Complex samples a second
    #[arg(long, value_name = "HZ", default_value_t = 20e6, allow_negative_numbers = true)]
    pub rate: f64,
    /// How long to run
    #[arg(long, value_name = "S", default_value_t = 5.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Threads that compute meanwhile, as background load
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub busy: usize,
    /// Pins the thread to this CPU
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub cpu: Option<usize>,
    /// The real-time priority, 1 to 99; 0 is the usual one
    #[arg(long, value_name = "N", default_value_t = 50, allow_negative_numbers = true)]
    pub priority: u8,
    /// Prints one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RecordArguments {
    /// The recording: a SigMF recording by either of its two files, or a WAV file
    #[arg(value_name = "RECORDING")]
    pub file: PathBuf,
    /// A packet with this text of up to 63 bytes; may be given more than once [default: the
    /// command's own texts]
    #[arg(long, value_name = "TEXT")]
    pub packet: Vec<String>,
    /// The signal-to-noise ratio of symbols, in decibels
    #[arg(long, value_name = "DB", default_value_t = 9.0, allow_negative_numbers = true)]
    pub snr: f64,
    /// The carrier offset, in Hz
    #[arg(long, value_name = "HZ", default_value_t = 180.0, allow_negative_numbers = true)]
    pub offset: f64,
    /// Samples a second
    #[arg(long, value_name = "HZ", default_value_t = 192_000.0, allow_negative_numbers = true)]
    pub rate: f64,
    /// The seed of noise and gaps
    #[arg(long, value_name = "N", default_value_t = 22)]
    pub seed: u64,
    /// Replaces files that exist already
    #[arg(long)]
    pub overwrite: bool,
    /// Prints one JSON object instead of a line
    #[arg(long)]
    pub json: bool,
}
