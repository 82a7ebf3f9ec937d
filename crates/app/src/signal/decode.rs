//! `panoply signal decode`: finds and decodes the packets of a recording.

use anyhow::{Context, Result, bail};
use panoply::prelude::*;
use panoply::signal::packets::{Packet, Receiver};
use panoply::signal::recording::{RecordingError, RecordingReader, SampleLayout};
use serde::Serialize;

use super::{BLOCK, opened, progress};
use crate::configuration::Format;
use crate::configuration::signal::DecodeOptions;
use crate::failure::{Failure, warn};
use crate::screen::{Screen, visible};
use crate::vectors::{counted, start};

/// The recording that the command carries, made by `panoply signal record`.
const OWN: &[u8] = include_bytes!("../../data/qpsk-packets.sigmf-data");
const OWN_RATE_HZ: f64 = 192_000.0;

#[derive(Serialize)]
struct DecodeReport {
    recording: String,
    rate_hz: f64,
    samples: u64,
    intact: usize,
    damaged: usize,
    packets: Vec<PacketRow>,
}

#[derive(Serialize)]
struct PacketRow {
    seconds: f64,
    intact: bool,
    offset_hz: f64,
    snr_db: f64,
    text: String,
}

/// Runs `panoply signal decode`.
pub fn run(options: &DecodeOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let findings = match &options.recording {
        Some(recording) => {
            let reader = opened(recording)?;
            let (layout, left) = (*reader.layout(), reader.samples_left());
            found(&runtime, recording.file.display().to_string(), layout, left, reader)?
        }
        None => {
            let layout = SampleLayout::complex(panoply::signal::SampleFormat::I8, OWN_RATE_HZ);
            let reader = RecordingReader::raw(OWN, layout, BLOCK)
                .context("the recording that this command carries is damaged")?;
            found(&runtime, "the command's own recording".to_owned(), layout, Some(OWN.len() as u64 / 2), reader)?
        }
    };
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, screen),
    }
}

fn found(
    runtime: &Runtime,
    recording: String,
    layout: SampleLayout,
    left: Option<u64>,
    blocks: impl Iterator<Item = Result<Tensor, RecordingError>>,
) -> Result<DecodeReport> {
    if !layout.complex || layout.channels != 1 {
        bail!(
            "{recording} has {} real channels; expected one complex signal (--iq takes two channels for one)",
            layout.channels
        );
    }
    let (mut runs, bar) = (runtime, progress(left, "samples"));
    let mut receiver = Receiver::new(&mut runs)?;
    let (mut packets, mut samples) = (Vec::new(), 0);
    for block in blocks {
        let block = match block {
            Ok(block) => block,
            Err(error) if samples > 0 => {
                warn(error);
                break;
            }
            Err(error) => return Err(error.into()),
        };
        packets.extend(receiver.next(&mut runs, block.as_slice::<Complex64>()?)?);
        samples += block.elements() as u64;
        bar.inc(block.elements() as u64);
    }
    packets.extend(receiver.finish(&mut runs)?);
    bar.finish_and_clear();
    let intact = packets.iter().filter(|packet| packet.intact).count();
    let damaged = packets.len() - intact;
    let rows = packets.iter().map(|packet| row(packet, layout.rate_hz)).collect();
    Ok(DecodeReport { recording, rate_hz: layout.rate_hz, samples, intact, damaged, packets: rows })
}

fn row(packet: &Packet, rate_hz: f64) -> PacketRow {
    PacketRow {
        seconds: packet.at as f64 / rate_hz,
        intact: packet.intact,
        offset_hz: packet.frequency * rate_hz,
        snr_db: packet.snr_db,
        text: if packet.intact { String::from_utf8_lossy(&packet.payload).into_owned() } else { String::new() },
    }
}

fn print(findings: &DecodeReport, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(screen.strong(&format!(
        "{}: {:.3} s",
        findings.recording,
        findings.samples as f64 / findings.rate_hz
    )))?;
    screen.line(screen.faint("     time   offset    SNR  text"))?;
    for row in &findings.packets {
        let text = if row.intact { visible(&row.text) } else { screen.alarming("damaged") };
        screen.line(format!("{:7.4} s {:5.0} Hz {:3.0} dB  {text}", row.seconds, row.offset_hz, row.snr_db))?;
    }
    screen.line(format!("{} intact, {} damaged", counted(findings.intact as u64, "packet"), findings.damaged))
}
