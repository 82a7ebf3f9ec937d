//! A radio link as one pipeline. Packets go through a channel with noise, an echo and a carrier
//! offset, and arrive in pieces like those of a radio. The receiver finds, decodes and checks them.
//!
//!     cargo run --release --example radio

use std::error::Error;
use std::sync::Arc;

use panoply::pipeline::Pipeline;
use panoply::prelude::*;
use panoply::signal::packets::{Capture, Receiver};
use panoply::signal::synthetic::Channel;

const PIECE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Arc::new(Runtime::new()?);
    let texts: Vec<String> = (1..=20).map(|number| format!("packet {number} of 20")).collect();
    let capture = Capture { snr_db: 12.0, offset: 0.0006, seed: 1 };
    let mut samples = capture.samples(&mut &*runtime, texts.iter().map(|text| text.as_bytes()))?;
    Channel::new(2).echoes(&[Complex64::new(1.0, 0.0), Complex64::new(0.0, 0.15)])?.pass(&mut samples);

    // The pieces arrive in order. The first stage filters out the unwanted band and keeps its state
    // across pieces.
    let taps: Vec<f32> =
        panoply::signal::windowed_sinc(63, panoply::signal::Band::LowPass(0.4), panoply::signal::Window::Hamming)?
            .iter()
            .map(|tap| *tap as f32)
            .collect();
    let filter = Filter::fir(&Tensor::from_vec(taps, [63])?);
    let stream = runtime.run(StartFilter::new(filter, DType::Complex64)).wait()?;
    let pieces: Vec<Vec<Complex64>> = samples.chunks(PIECE).map(<[_]>::to_vec).collect();
    let mut receiver = Receiver::new(&mut &*runtime)?;
    let (own, filtering) = (Arc::clone(&runtime), Arc::clone(&runtime));
    let (found, report) = Pipeline::builder()
        .try_source(pieces.into_iter().map(|piece| Tensor::from_slice(&piece, [piece.len()])))
        .map_mut("filter", move |piece: Tensor| filtering.run(StreamFilter::new(&stream, &piece)).wait())
        .map_mut("receive", move |piece| receiver.next(&mut &*own, piece?.as_slice::<Complex64>()?))
        .collect()
        .run()?;
    println!("{report}");
    let mut intact = 0;
    for packet in found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        println!("{:8} {:5.1} dB  {}", packet.at, packet.snr_db, String::from_utf8_lossy(&packet.payload));
        intact += usize::from(packet.intact);
    }
    // The last packets are still in the receiver, which the pipeline has consumed.
    assert!(intact >= 15, "{intact} of 20");
    Ok(())
}
