//! `panoply signal record`: packets with noise, as a recording.

use anyhow::{Result, bail};
use panoply::prelude::*;
use panoply::signal::SampleFormat;
use panoply::signal::packets::{Capture, TEXTS};
use panoply::signal::recording::{Layout, Writer};
use serde::Serialize;

use crate::configuration::Format;
use crate::configuration::signal::RecordOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::{counted, start};

#[derive(Serialize)]
struct Made {
    recording: String,
    packets: usize,
    samples: usize,
    rate_hz: f64,
}

/// Makes it.
pub fn run(options: &RecordOptions, screen: &mut Screen) -> Result<(), Failure> {
    let made = made(options)?;
    match options.format {
        Format::Json => screen.json(&made),
        Format::Table => screen.line(format!(
            "{}: {} in {:.3} s",
            made.recording,
            counted(made.packets as u64, "packet"),
            made.samples as f64 / made.rate_hz
        )),
    }
}

fn made(options: &RecordOptions) -> Result<Made> {
    let wav = options.file.extension().is_some_and(|extension| extension == "wav");
    let sigmf =
        options.file.extension().is_some_and(|extension| extension == "sigmf-meta" || extension == "sigmf-data");
    if !wav && !sigmf {
        bail!("{}: expected a name that ends in .wav, .sigmf-meta or .sigmf-data", options.file.display());
    }
    let both = [options.file.with_extension("sigmf-meta"), options.file.with_extension("sigmf-data")];
    let there = if wav { options.file.exists() } else { both.iter().any(|path| path.exists()) };
    if there && !options.overwrite {
        bail!("{} exists already; --overwrite replaces it", options.file.display());
    }
    let packets: Vec<&str> = match options.packets.is_empty() {
        true => TEXTS.to_vec(),
        false => options.packets.iter().map(String::as_str).collect(),
    };
    let samples = samples(options, &packets)?;
    let format = if wav { SampleFormat::I16 } else { SampleFormat::I8 };
    let about = format!("QPSK packets with noise, made by panoply signal record --seed {}", options.seed);
    let mut writer = Writer::create(&options.file, Layout::complex(format, options.rate_hz), &about)?;
    writer.write(&Tensor::from_slice(&samples, [samples.len()])?)?;
    writer.finish()?;
    let recording = options.file.display().to_string();
    Ok(Made { recording, packets: packets.len(), samples: samples.len(), rate_hz: options.rate_hz })
}

fn samples(options: &RecordOptions, packets: &[&str]) -> Result<Vec<Complex64>> {
    let runtime = start().map_err(|failure| match failure {
        Failure::Run(error) => error,
        _ => anyhow::anyhow!("no runtime could be started"),
    })?;
    let capture = Capture { snr_db: options.snr_db, offset: options.offset, seed: options.seed };
    Ok(capture.samples(&mut &runtime, packets.iter().map(|text| text.as_bytes()))?)
}
