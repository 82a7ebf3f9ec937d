//! Cases of codes. Rates count the data's bytes once.

use panoply::Bytes;
use panoply::crypto::Messages;
use panoply::prelude::Tensor;
use panoply::signal::packets::{Here, Runs};
use panoply::signal::{
    Checksum, ConvolutionalEncode, Crc, ErasureEncode, Ldpc, LdpcDecode, LdpcEncode, ReedSolomon, RsDecode, RsEncode,
    TelemetryRate, Viterbi,
};

use super::noise::noise;
use crate::bench::cases::case::{Amount, Case, MI, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// Checksums of messages of one length.
pub struct CrcCase {
    pub kind: Checksum,
    pub count: usize,
    pub len: usize,
}

/// Encoding of words of the CCSDS code.
pub struct RsEncodeCase {
    pub words: usize,
}

/// Decoding of words of the CCSDS code with `wrong` wrong bytes in each.
pub struct RsDecodeCase {
    pub words: usize,
    pub wrong: usize,
}

/// Computation of parity shards.
pub struct ErasureCase {
    pub data: usize,
    pub parity: usize,
    pub bytes: usize,
}

/// Encoding of frames of the convolutional code with 64 states.
pub struct ConvolutionalCase {
    pub frames: usize,
    pub bits: usize,
}

/// Decoding of frames of the convolutional code from soft bits.
pub struct ViterbiCase {
    pub frames: usize,
    pub bits: usize,
}

/// Decoding of words of the telemetry code with 1024 bits of data, in at most 20 iterations. The
/// noise makes most words wrong at first.
pub struct LdpcCase {
    pub words: usize,
}

const TELEMETRY: Ldpc = Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half };
const TELEMETRY_SENT_BITS: usize = 2048;

const CODE: ReedSolomon = ReedSolomon::ccsds(223);

fn bytes(count: usize) -> Amount {
    Amount::Bytes(count as f64)
}

impl Case for CrcCase {
    fn name(&self) -> String {
        match self.count {
            1 => format!("crc/{}/{}MiB", self.kind.name(), self.len / MI),
            count => format!("crc/{}/{count}x{}KiB", self.kind.name(), self.len / 1024),
        }
    }

    fn amount(&self) -> Amount {
        bytes(self.count * self.len)
    }

    fn scale(&self) -> Scale {
        match self.count * self.len {
            ..=MI => Scale::Small,
            bytes if bytes <= 16 * MI => Scale::Medium,
            _ => Scale::Huge,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let all = Bytes::from_vec(noise(self.count * self.len));
        let messages = if self.count == 1 { all.into() } else { Messages::split(all, self.len)? };
        place.repeat(Crc::new(self.kind, messages))
    }
}

impl Case for RsEncodeCase {
    fn name(&self) -> String {
        format!("rs_encode/255-223/{}", self.words)
    }

    fn amount(&self) -> Amount {
        bytes(self.words * CODE.data)
    }

    fn scale(&self) -> Scale {
        if self.words < MI { Scale::Small } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let data = Tensor::from_vec(noise(self.words * CODE.data), [self.words, CODE.data])?;
        place.repeat(RsEncode::new(CODE, &data))
    }
}

impl Case for RsDecodeCase {
    fn name(&self) -> String {
        format!("rs_decode/255-223/{}/e{}", self.words, self.wrong)
    }

    fn amount(&self) -> Amount {
        bytes(self.words * CODE.data)
    }

    fn scale(&self) -> Scale {
        Scale::Small
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let data = Tensor::from_vec(noise(self.words * CODE.data), [self.words, CODE.data])?;
        // Encodes on the host, because the measured device may not support encoding.
        let sent = Here::default().run(RsEncode::new(CODE, &data))?;
        let mut words = sent.as_slice::<u8>()?.to_vec();
        for (number, word) in words.chunks_mut(CODE.word()).enumerate() {
            (0..self.wrong).for_each(|at| word[(number + at * 31) % 255] ^= 0x55);
        }
        place.repeat(RsDecode::new(CODE, &Tensor::from_vec(words, [self.words, CODE.word()])?))
    }
}

impl Case for ErasureCase {
    fn name(&self) -> String {
        format!("erasure_encode/{}+{}/{}MiB", self.data, self.parity, self.bytes / MI)
    }

    fn amount(&self) -> Amount {
        bytes(self.data * self.bytes)
    }

    fn scale(&self) -> Scale {
        if self.bytes == MI { Scale::Medium } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let shards = Tensor::from_vec(noise(self.data * self.bytes), [self.data, self.bytes])?;
        place.repeat(ErasureEncode::new(&shards, self.parity))
    }
}

impl Case for ConvolutionalCase {
    fn name(&self) -> String {
        format!("conv_encode/k7r2/{}x{}", self.frames, self.bits)
    }

    fn amount(&self) -> Amount {
        bytes(self.frames * self.bits / 8)
    }

    fn scale(&self) -> Scale {
        Scale::Small
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let data = Tensor::from_vec(noise(self.frames * self.bits / 8), [self.frames, self.bits / 8])?;
        place.repeat(ConvolutionalEncode::new(&data, self.bits))
    }
}

impl Case for ViterbiCase {
    fn name(&self) -> String {
        format!("viterbi/k7r2/{}x{}", self.frames, self.bits)
    }

    fn amount(&self) -> Amount {
        bytes(self.frames * self.bits / 8)
    }

    fn scale(&self) -> Scale {
        if self.frames < 1024 { Scale::Small } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let coded = 2 * (self.bits + 6);
        let softs = Tensor::from_vec(noise(self.frames * coded), [self.frames, coded])?;
        place.repeat(Viterbi::new(&softs, self.bits))
    }
}

impl Case for LdpcCase {
    fn name(&self) -> String {
        format!("ldpc/ccsds-tm2048/{}", self.words)
    }

    fn amount(&self) -> Amount {
        bytes(self.words * 128)
    }

    fn scale(&self) -> Scale {
        if self.words < 1024 { Scale::Small } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let data = Tensor::from_vec(noise(self.words * 128), [self.words, 128])?;
        // Encodes on the host, because the measured device may not support encoding.
        let sent = Here::default().run(LdpcEncode::new(TELEMETRY, &data))?;
        let disturbed = noise(4 * self.words * TELEMETRY_SENT_BITS);
        let mut disturbed = disturbed.chunks_exact(4);
        let level = |bit: u8| {
            // The noise is the mean of four uniform bytes, as strong as in the peers' benchmarks.
            let sum: f32 =
                disturbed.next().map_or(0.0, |four| four.iter().map(|byte| f32::from(*byte) / 128.0 - 1.0).sum());
            10.0 * ((if bit == 0 { 0.6 } else { -0.6 }) + 0.25 * sum)
        };
        let words = sent.as_slice::<u8>()?.chunks_exact(TELEMETRY_SENT_BITS / 8);
        let bits = words.flat_map(|word| (0..TELEMETRY_SENT_BITS).map(|at| word[at / 8] >> (7 - at % 8) & 1));
        let levels: Vec<f32> = bits.map(level).collect();
        place.repeat(LdpcDecode::new(TELEMETRY, &Tensor::from_vec(levels, [self.words, TELEMETRY_SENT_BITS])?))
    }
}
