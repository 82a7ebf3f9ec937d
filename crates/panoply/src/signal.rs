//! Sampled signals: spectra, filters, modems and codes, for whole signals or streams in pieces.
//!
//! ```
//! use panoply::prelude::*;
//! use panoply::signal::{Band, Prototype, Window, recursive, windowed_sinc};
//!
//! let runtime = Runtime::new()?;
//! let samples = Tensor::from_vec((0..4096).map(|at| (at as f32 * 0.1).sin()).collect(), [4096])?;
//!
//! // Filters are designed from what they shall do; frequencies are shares of half the sampling rate.
//! let taps: Vec<f32> = windowed_sinc(101, Band::LowPass(0.2), Window::Hamming)?.iter().map(|tap| *tap as f32).collect();
//! let taps = Tensor::from_vec(taps, [101])?;
//! let smooth = runtime.run(Fir::new(&samples, &taps)).wait()?;
//! let sharp = runtime.run(Iir::new(&samples, recursive(Prototype::Butterworth, 8, Band::LowPass(0.2))?)).wait()?;
//! assert_eq!((smooth.elements(), sharp.elements()), (4096, 4096));
//!
//! // A stream remembers what the filter must know: its pieces give what the whole gives.
//! let stream = runtime.run(StartFilter::new(Filter::fir(&taps), DType::F32)).wait()?;
//! let first = runtime.run(StreamFilter::new(&stream, &samples.slice(0, 0, 1000)?)).wait()?;
//! let second = runtime.run(StreamFilter::new(&stream, &samples.slice(0, 1000, 4096)?)).wait()?;
//! assert_eq!(first.as_slice::<f32>()?, &smooth.as_slice::<f32>()?[..1000]);
//! assert_eq!(second.as_slice::<f32>()?, &smooth.as_slice::<f32>()?[1000..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Codes report how many errors they corrected, and when they could not correct them:
//!
//! ```
//! use panoply::prelude::*;
//!
//! let runtime = Runtime::new()?;
//! let code = ReedSolomon::ccsds(223);
//! let sent = runtime.run(RsEncode::new(code, &Tensor::zeros(DType::U8, [2, 223])?)).wait()?;
//! let mut received = sent.as_slice::<u8>()?.to_vec();
//! (0..16).for_each(|at| received[at * 9] ^= 0xff); // Sixteen wrong bytes in the first word: as many as can be mended.
//! (0..40).for_each(|at| received[255 + at * 6] ^= 0x1d); // Forty in the second.
//! let (data, mended) = runtime.run(RsDecode::new(code, &Tensor::from_vec(received, [2, 255])?)).wait()?;
//! assert_eq!(mended.as_slice::<i32>()?, [16, -1]);
//! assert_eq!(data.as_slice::<u8>()?[..223], [0; 223]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use panoply_core::op::signal::*;

#[cfg(feature = "signal")]
pub use designed_here::*;

/// Functions that are computed by the caller's thread.
#[cfg(feature = "signal")]
mod designed_here {
    use panoply_core::op::Runs;
    use panoply_core::op::signal::SampleFormat;
    use panoply_core::{Operation, Result};

    pub use panoply_radio::design::{Band, ORDER_MAX, Prototype, recursive, response, windowed_sinc};
    pub use panoply_radio::equiripple::{Demand, EQUIRIPPLE_TAPS_MAX, equiripple};
    pub use panoply_radio::pulse::{PULSE_TAPS_MAX, resampler, root_raised_cosine};
    pub use panoply_radio::window::{KAISER_BETA_MAX, WINDOW_LEN_MAX, Window, kaiser_beta};
    pub use panoply_radio::{datagrams, hamming, recording, synthetic};

    /// Packets over a noisy channel: QPSK after a known preamble, with a convolutional code.
    pub mod packets {
        #[cfg(feature = "cpu")]
        pub use panoply_cpu::Here;
        pub use panoply_radio::packets::*;
    }

    /// Appends numbers to `bytes`, as [`SampleFormat::write`] does.
    pub fn write_samples(format: SampleFormat, numbers: &[f32], bytes: &mut Vec<u8>) {
        format.write(numbers, bytes);
    }

    impl Runs for &crate::Runtime {
        fn run<O: Operation>(&mut self, op: O) -> Result<O::Output> {
            panoply_runtime::Runtime::run(self, op).wait()
        }
    }
}
