//! `panoply signal record`: makes a recording of packets with noise.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use panoply::prelude::*;
use panoply::signal::SampleFormat;
use panoply::signal::packets::{Capture, TEXTS};
use panoply::signal::recording::{SampleLayout, Writer};
use serde::Serialize;

use crate::configuration::Format;
use crate::configuration::signal::RecordOptions;
use crate::failure::Failure;
use crate::partial::{self, Scratch};
use crate::screen::Screen;
use crate::vectors::{counted, start};

#[derive(Serialize)]
struct RecordingReport {
    recording: String,
    packets: usize,
    samples: usize,
    rate_hz: f64,
}

/// Runs `panoply signal record`.
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

fn made(options: &RecordOptions) -> Result<RecordingReport> {
    let wav = options.file.extension().is_some_and(|extension| extension == "wav");
    let sigmf =
        options.file.extension().is_some_and(|extension| extension == "sigmf-meta" || extension == "sigmf-data");
    if !wav && !sigmf {
        bail!("{}: expected a name that ends in .wav, .sigmf-meta or .sigmf-data", options.file.display());
    }
    if files(&options.file).iter().any(|path| path.exists()) && !options.overwrite {
        bail!("{} exists already; --overwrite replaces it", options.file.display());
    }
    let packets: Vec<&str> = match options.packets.is_empty() {
        true => TEXTS.to_vec(),
        false => options.packets.iter().map(String::as_str).collect(),
    };
    let samples = samples(options, &packets)?;
    let format = if wav { SampleFormat::I16 } else { SampleFormat::I8 };
    let about = format!("QPSK packets with noise, made by panoply signal record --seed {}", options.seed);
    let written = Tensor::from_slice(&samples, [samples.len()])?;
    replace(&options.file, options.overwrite, |beside| {
        let mut writer = Writer::create(beside, SampleLayout::complex(format, options.rate_hz), &about)?;
        writer.write(&written)?;
        Ok(writer.finish()?)
    })?;
    let recording = options.file.display().to_string();
    Ok(RecordingReport { recording, packets: packets.len(), samples: samples.len(), rate_hz: options.rate_hz })
}

/// The files of a recording, in the order in which they must appear. The description of the samples
/// comes last.
fn files(file: &Path) -> Vec<PathBuf> {
    match file.extension().is_some_and(|extension| extension == "wav") {
        true => vec![file.to_owned()],
        false => ["sigmf-data", "sigmf-meta"].map(|extension| file.with_extension(extension)).to_vec(),
    }
}

/// Writes a recording in a scratch folder beside its destination, and moves it there when it is
/// complete. A failure leaves no files behind, and existing files stay. Without `overwrite`, a file
/// that has appeared meanwhile stays as well.
fn replace(file: &Path, overwrite: bool, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let cannot = || format!("{} cannot be written", file.display());
    let name = file.file_name().with_context(cannot)?;
    let scratch = Scratch::new(partial::folder_of(file), &name.to_string_lossy()).map_err(|failure| match failure {
        Failure::Run(error) => error,
        _ => anyhow::anyhow!("no folder could be made beside it"),
    });
    let scratch = scratch.with_context(cannot)?;
    let beside = scratch.path.join(name);
    write(&beside).with_context(cannot)?;
    let pairs: Vec<_> = files(&beside).into_iter().zip(files(file)).collect();
    partial::move_all(&pairs, overwrite)
}

fn samples(options: &RecordOptions, packets: &[&str]) -> Result<Vec<Complex64>> {
    let runtime = start().map_err(|failure| match failure {
        Failure::Run(error) => error,
        _ => anyhow::anyhow!("no runtime could be started"),
    })?;
    let capture = Capture { snr_db: options.snr_db, offset: options.offset, seed: options.seed };
    Ok(capture.samples(&mut &runtime, packets.iter().map(|text| text.as_bytes()))?)
}
