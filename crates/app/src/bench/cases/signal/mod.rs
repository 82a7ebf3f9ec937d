//! Cases of the signal domain.

mod codes;
mod fft;
mod filters;
mod modem;
mod noise;

use crate::bench::cases::case::{Case, MI};
use codes::{ConvolutionalCase, CrcCase, ErasureCase, LdpcCase, RsDecodeCase, RsEncodeCase, ViterbiCase};
use fft::{FftCase, IfftCase, RealFftCase};
use filters::{CorrelateCase, FirCase, IirCase};
use modem::{ModemCase, ModemTask};
use panoply::DType;
use panoply::signal::{Checksum, Constellation};

/// Every case of the domain.
pub const CASES: &[&dyn Case] = &[
    &FftCase { lines: 1024, len: 1024 },
    &FftCase { lines: 4096, len: 1024 },
    &FftCase { lines: 16, len: 1 << 18 },
    &FftCase { lines: 1, len: MI },
    &RealFftCase { lines: 4096, len: 1024 },
    &IfftCase { lines: 4096, len: 1024 },
    &IfftCase { lines: 65_536, len: 1024 },
    &IfftCase { lines: 16_384, len: 4096 },
    &IfftCase { lines: 64, len: MI },
    &RealFftCase { lines: 65_536, len: 1024 },
    &RealFftCase { lines: 16_384, len: 4096 },
    &RealFftCase { lines: 64, len: MI },
    &FftCase { lines: 65_536, len: 1024 },
    &FftCase { lines: 16_384, len: 4096 },
    &FftCase { lines: 64, len: MI },
    &FirCase { dtype: DType::F32, samples: 4 * MI, taps: 101 },
    &FirCase { dtype: DType::F32, samples: 4 * MI, taps: 1023 },
    &FirCase { dtype: DType::Complex64, samples: 4 * MI, taps: 101 },
    &FirCase { dtype: DType::F32, samples: 256 * MI, taps: 101 },
    &FirCase { dtype: DType::F32, samples: 256 * MI, taps: 1023 },
    &IirCase { lines: 1, len: 4 * MI },
    &IirCase { lines: 256, len: 16_384 },
    &IirCase { lines: 4096, len: 16_384 },
    &CorrelateCase { samples: MI, pattern: 4096 },
    &CorrelateCase { samples: 64 * MI, pattern: 4096 },
    &ModemCase { constellation: Constellation::Bpsk, task: ModemTask::Modulate, symbols: MI },
    &ModemCase { constellation: Constellation::Bpsk, task: ModemTask::Hard, symbols: MI },
    &ModemCase { constellation: Constellation::Bpsk, task: ModemTask::Soft, symbols: MI },
    &ModemCase { constellation: Constellation::Qpsk, task: ModemTask::Modulate, symbols: MI },
    &ModemCase { constellation: Constellation::Qpsk, task: ModemTask::Hard, symbols: MI },
    &ModemCase { constellation: Constellation::Qpsk, task: ModemTask::Soft, symbols: MI },
    &ModemCase { constellation: Constellation::Qam16, task: ModemTask::Modulate, symbols: MI },
    &ModemCase { constellation: Constellation::Qam16, task: ModemTask::Hard, symbols: MI },
    &ModemCase { constellation: Constellation::Qam16, task: ModemTask::Soft, symbols: MI },
    &ModemCase { constellation: Constellation::Qam64, task: ModemTask::Modulate, symbols: MI },
    &ModemCase { constellation: Constellation::Qam64, task: ModemTask::Hard, symbols: MI },
    &ModemCase { constellation: Constellation::Qam64, task: ModemTask::Soft, symbols: MI },
    &ModemCase { constellation: Constellation::Qam256, task: ModemTask::Modulate, symbols: MI },
    &ModemCase { constellation: Constellation::Qam256, task: ModemTask::Hard, symbols: MI },
    &ModemCase { constellation: Constellation::Qam256, task: ModemTask::Soft, symbols: MI },
    &ModemCase { constellation: Constellation::Bpsk, task: ModemTask::Modulate, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Bpsk, task: ModemTask::Soft, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qpsk, task: ModemTask::Modulate, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qpsk, task: ModemTask::Soft, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam16, task: ModemTask::Modulate, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam16, task: ModemTask::Soft, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam64, task: ModemTask::Modulate, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam64, task: ModemTask::Soft, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam256, task: ModemTask::Modulate, symbols: 64 * MI },
    &ModemCase { constellation: Constellation::Qam256, task: ModemTask::Soft, symbols: 64 * MI },
    &CrcCase { kind: Checksum::Crc16, count: 1, len: MI },
    &CrcCase { kind: Checksum::Crc32, count: 1, len: MI },
    &CrcCase { kind: Checksum::Crc32c, count: 1, len: MI },
    &CrcCase { kind: Checksum::Crc64, count: 1, len: MI },
    &CrcCase { kind: Checksum::Crc16, count: 10_000, len: 1024 },
    &CrcCase { kind: Checksum::Crc32, count: 10_000, len: 1024 },
    &CrcCase { kind: Checksum::Crc32c, count: 10_000, len: 1024 },
    &CrcCase { kind: Checksum::Crc64, count: 10_000, len: 1024 },
    &CrcCase { kind: Checksum::Crc16, count: 65_536, len: 16 << 10 },
    &CrcCase { kind: Checksum::Crc32, count: 65_536, len: 16 << 10 },
    &CrcCase { kind: Checksum::Crc32c, count: 65_536, len: 16 << 10 },
    &CrcCase { kind: Checksum::Crc64, count: 65_536, len: 16 << 10 },
    &RsEncodeCase { words: 512 },
    &RsEncodeCase { words: MI },
    &RsDecodeCase { words: 512, wrong: 0 },
    &RsDecodeCase { words: 512, wrong: 8 },
    &ErasureCase { data: 10, parity: 4, bytes: MI },
    &ErasureCase { data: 10, parity: 4, bytes: 64 * MI },
    &ConvolutionalCase { frames: 256, bits: 2048 },
    &ViterbiCase { frames: 256, bits: 2048 },
    &ViterbiCase { frames: 65_536, bits: 2048 },
    &LdpcCase { words: 16 },
    &LdpcCase { words: 65_536 },
];
