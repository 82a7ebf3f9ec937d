//! Validates the arguments of `panoply signal`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use panoply::placement::affinity::RealtimePriority;
use panoply::signal::packets::PAYLOAD_BYTES_MAX;
use panoply::signal::recording::SampleLayout;
use panoply::signal::{Constellation, SampleFormat};

use super::{Format, check_picture, format};
use crate::arguments::signal::{
    BerArguments, DecodeArguments, RealtimeArguments, RecordArguments, RecordingArguments, SignalArguments,
    SignalCommand, SpectrumArguments, WaterfallArguments,
};
use crate::failure::Failure;

/// The most frequency bins, and the most lines of a picture.
const BINS_MAX: usize = 1 << 16;
const ROWS_MAX: usize = 1 << 14;
/// The most bits at a point, and the most points.
const BITS_MAX: u64 = 1_000_000_000;
const POINTS_MAX: usize = 200;
/// The largest distance of a point from 0 dB.
const DECIBELS_MAX: f64 = 60.0;
const RATE_HZ_MIN: f64 = 1e-6;
const RATE_HZ_MAX: f64 = 1e12;
const BUSY_MAX: usize = 1024;

pub enum SignalOptions {
    Spectrum(SpectrumOptions),
    Waterfall(WaterfallOptions),
    Decode(DecodeOptions),
    Ber(BerOptions),
    Realtime(RealtimeOptions),
    Record(RecordOptions),
}

/// The source of the samples.
#[derive(Debug)]
pub struct Recording {
    pub file: PathBuf,
    /// The sample layout of a raw file, which has no header.
    pub raw: Option<SampleLayout>,
    pub pairs: bool,
}

#[derive(Debug)]
pub struct SpectrumOptions {
    pub recording: Recording,
    pub bins: usize,
    pub svg: Option<PathBuf>,
    pub png: Option<PathBuf>,
    pub format: Format,
}

#[derive(Debug)]
pub struct WaterfallOptions {
    pub recording: Recording,
    pub bins: usize,
    pub rows: usize,
    pub svg: Option<PathBuf>,
    pub png: Option<PathBuf>,
    pub format: Format,
}

#[derive(Debug)]
pub struct DecodeOptions {
    /// `None` selects the recording that the command carries.
    pub recording: Option<Recording>,
    pub format: Format,
}

#[derive(Debug)]
pub struct BerOptions {
    pub constellation: Constellation,
    pub coded: bool,
    /// In decibels, ascending.
    pub points: Vec<f64>,
    pub bits_max: u64,
    pub seed: u64,
    pub svg: Option<PathBuf>,
    pub format: Format,
}

#[derive(Debug)]
pub struct RealtimeOptions {
    pub period: Duration,
    /// Samples in one period.
    pub samples: usize,
    pub periods: u64,
    pub busy: usize,
    pub cpu: Option<usize>,
    pub priority: Option<RealtimePriority>,
    pub format: Format,
}

#[derive(Debug)]
pub struct RecordOptions {
    pub file: PathBuf,
    /// Texts of the packets; an empty list selects the command's own.
    pub packets: Vec<String>,
    pub snr_db: f64,
    /// The carrier offset, in cycles per sample.
    pub offset: f64,
    pub rate_hz: f64,
    pub seed: u64,
    pub overwrite: bool,
    pub format: Format,
}

impl SignalOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: SignalArguments) -> Result<SignalOptions, Failure> {
        Ok(match arguments.command {
            SignalCommand::Spectrum(arguments) => SignalOptions::Spectrum(spectrum(arguments)?),
            SignalCommand::Waterfall(arguments) => SignalOptions::Waterfall(waterfall(arguments)?),
            SignalCommand::Decode(arguments) => SignalOptions::Decode(decode(arguments)),
            SignalCommand::Ber(arguments) => SignalOptions::Ber(ber(arguments)?),
            SignalCommand::Realtime(arguments) => SignalOptions::Realtime(realtime(arguments)?),
            SignalCommand::Record(arguments) => SignalOptions::Record(record(arguments)?),
        })
    }
}

fn recording(arguments: RecordingArguments) -> Result<Recording, Failure> {
    let layout = |name: &String| {
        let known = SampleFormat::ALL.into_iter().find(|format| format.name() == name);
        let format = known.ok_or_else(|| {
            let names = SampleFormat::ALL.map(SampleFormat::name).join(", ");
            Failure::Usage(format!("--raw: expected one of {names}; got {name}"))
        })?;
        let rate_hz = within("--rate", arguments.rate.unwrap_or(0.0), RATE_HZ_MIN, RATE_HZ_MAX)?;
        Ok::<_, Failure>(SampleLayout { complex: !arguments.real, ..SampleLayout::complex(format, rate_hz) })
    };
    let raw = arguments.raw.as_ref().map(layout).transpose()?;
    Ok(Recording { file: arguments.file, raw, pairs: arguments.iq })
}

/// Refuses files for pictures whose names end as another kind of picture does.
fn check_pictures(svg: Option<&Path>, png: Option<&Path>) -> Result<(), Failure> {
    check_picture("--svg", svg, "svg")?;
    check_picture("--png", png, "png")
}

fn spectrum(arguments: SpectrumArguments) -> Result<SpectrumOptions, Failure> {
    check_pictures(arguments.svg.as_deref(), arguments.png.as_deref())?;
    Ok(SpectrumOptions {
        bins: bins(arguments.bins)?,
        recording: recording(arguments.recording)?,
        svg: arguments.svg,
        png: arguments.png,
        format: format(arguments.json),
    })
}

fn waterfall(arguments: WaterfallArguments) -> Result<WaterfallOptions, Failure> {
    check_pictures(arguments.svg.as_deref(), arguments.png.as_deref())?;
    Ok(WaterfallOptions {
        bins: bins(arguments.bins)?,
        rows: within("--rows", arguments.rows, 1, ROWS_MAX)?,
        recording: recording(arguments.recording)?,
        svg: arguments.svg,
        png: arguments.png,
        format: format(arguments.json),
    })
}

fn decode(arguments: DecodeArguments) -> DecodeOptions {
    let recording = arguments.file.map(|file| Recording { file, raw: None, pairs: arguments.iq });
    DecodeOptions { recording, format: format(arguments.json) }
}

fn ber(arguments: BerArguments) -> Result<BerOptions, Failure> {
    check_pictures(arguments.svg.as_deref(), None)?;
    let known = Constellation::ALL.into_iter().find(|known| known.name() == arguments.constellation);
    let constellation = known.ok_or_else(|| {
        let names = Constellation::ALL.map(|known| known.name()).join(", ");
        Failure::Usage(format!("--constellation: expected one of {names}; got {}", arguments.constellation))
    })?;
    let usual = if arguments.coded { 4.5 } else { 9.0 }
        + match constellation.bits() {
            1 | 2 => 0.0,
            bits => 1.7 * bits as f64,
        };
    let from = within("--from", arguments.from, -DECIBELS_MAX, DECIBELS_MAX)?;
    let to = within("--to", arguments.to.unwrap_or(usual.max(from)), from, DECIBELS_MAX)?;
    let step = within("--step", arguments.step, 0.01, DECIBELS_MAX)?;
    let count = ((to - from) / step + 1e-9).floor() as usize + 1;
    Ok(BerOptions {
        points: (0..within("points", count, 1, POINTS_MAX)?).map(|at| from + step * at as f64).collect(),
        constellation,
        coded: arguments.coded,
        bits_max: within("--bits", arguments.bits, 1000, BITS_MAX)?,
        seed: arguments.seed,
        svg: arguments.svg,
        format: format(arguments.json),
    })
}

fn realtime(arguments: RealtimeArguments) -> Result<RealtimeOptions, Failure> {
    let period = Duration::from_micros(within("--period-us", arguments.period_us, 10, 10_000_000)?);
    let seconds = within("--seconds", arguments.seconds, 0.001, 86_400.0)?;
    let rate = within("--rate", arguments.rate, 1.0, RATE_HZ_MAX)?;
    let samples = (rate * period.as_secs_f64()).round();
    let priority = match arguments.priority {
        0 => None,
        number => Some(RealtimePriority::new(number).map_err(|error| Failure::Usage(format!("--priority: {error}")))?),
    };
    Ok(RealtimeOptions {
        samples: within("--rate: samples of a period", samples, 1.0, (1 << 24) as f64)? as usize,
        periods: (seconds / period.as_secs_f64()).ceil() as u64,
        period,
        busy: within("--busy", arguments.busy, 0, BUSY_MAX)?,
        cpu: arguments.cpu,
        priority,
        format: format(arguments.json),
    })
}

fn record(arguments: RecordArguments) -> Result<RecordOptions, Failure> {
    let rate_hz = within("--rate", arguments.rate, 1.0, RATE_HZ_MAX)?;
    if let Some(long) = arguments.packet.iter().find(|text| text.len() > PAYLOAD_BYTES_MAX) {
        return Err(Failure::Usage(format!("--packet: expected up to {PAYLOAD_BYTES_MAX} bytes, got {}", long.len())));
    }
    Ok(RecordOptions {
        file: arguments.file,
        packets: arguments.packet,
        snr_db: within("--snr", arguments.snr, -DECIBELS_MAX, DECIBELS_MAX)?,
        offset: within("--offset", arguments.offset, -rate_hz / 2.0, rate_hz / 2.0)? / rate_hz,
        rate_hz,
        seed: arguments.seed,
        overwrite: arguments.overwrite,
        format: format(arguments.json),
    })
}

fn bins(bins: usize) -> Result<usize, Failure> {
    match bins.is_power_of_two() && (8..=BINS_MAX).contains(&bins) {
        true => Ok(bins),
        false => Err(Failure::Usage(format!("--bins: expected a power of two from 8 to {BINS_MAX}, got {bins}"))),
    }
}

fn within<T: PartialOrd + std::fmt::Display + Copy>(argument: &str, got: T, low: T, high: T) -> Result<T, Failure> {
    match low <= got && got <= high {
        true => Ok(got),
        false => Err(Failure::Usage(format!("{argument}: expected {low} to {high}, got {got}"))),
    }
}
