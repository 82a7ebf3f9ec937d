//! Codes. Rates count the data's bytes once.

use panoply::Bytes;
use panoply::crypto::Messages;
use panoply::prelude::Tensor;
use panoply::signal::{Checksum, ConvolutionalEncode, Crc, ErasureEncode, ReedSolomon, RsDecode, RsEncode, Viterbi};

use super::{Amount, Case, MI, Place, Runner, Scale, noise};

/// The checks of messages of one length.
pub struct CrcCase {
    pub kind: Checksum,
    pub count: usize,
    pub len: usize,
}

/// Words of the CCSDS code, encoded.
pub struct RsEncodeCase {
    pub words: usize,
}

/// The same, decoded, with so many wrong bytes in each.
pub struct RsDecodeCase {
    pub words: usize,
    pub wrong: usize,
}

/// Shards of parity.
pub struct ErasureCase {
    pub data: usize,
    pub parity: usize,
    pub bytes: usize,
}

/// Frames of the code with 64 states, encoded.
pub struct ConvolutionalCase {
    pub frames: usize,
    pub bits: usize,
}

/// The same, decoded from soft bits.
pub struct ViterbiCase {
    pub frames: usize,
    pub bits: usize,
}

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
        if self.count == 1 { Scale::Small } else { Scale::Medium }
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
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
        Scale::Small
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
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

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        let data = Tensor::from_vec(noise(self.words * CODE.data), [self.words, CODE.data])?;
        let sent = place.run(RsEncode::new(CODE, &data)).wait()?;
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
        Scale::Medium
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
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

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
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
        Scale::Small
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        let coded = 2 * (self.bits + 6);
        let softs = Tensor::from_vec(noise(self.frames * coded), [self.frames, coded])?;
        place.repeat(Viterbi::new(&softs, self.bits))
    }
}
