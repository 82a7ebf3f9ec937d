//! Cases of modulation and demodulation.

use panoply::DType;
use panoply::prelude::Tensor;
use panoply::signal::{Constellation, Demodulate, Modulate};

use super::noise::noise;
use crate::bench::cases::case::{Amount, Case, MI, Scale, count_name};
use crate::bench::place::{BenchDevice, Runner};

/// The task of a modem case.
pub enum ModemTask {
    Modulate,
    Hard,
    Soft,
}

/// Symbols to points, or points to symbols or to soft bits.
pub struct ModemCase {
    pub constellation: Constellation,
    pub task: ModemTask,
    pub symbols: usize,
}

impl Case for ModemCase {
    fn name(&self) -> String {
        let (name, count) = (self.constellation.name(), count_name(self.symbols));
        match self.task {
            ModemTask::Modulate => format!("modulate/{name}/{count}"),
            ModemTask::Hard => format!("demodulate/{name}/{count}/hard"),
            ModemTask::Soft => format!("demodulate/{name}/{count}/soft"),
        }
    }

    /// A point has eight bytes, a symbol one and a soft bit four.
    fn amount(&self) -> Amount {
        let other = match self.task {
            ModemTask::Modulate | ModemTask::Hard => 1,
            ModemTask::Soft => 4 * self.constellation.bits(),
        };
        Amount::Bytes((self.symbols * (8 + other)) as f64)
    }

    fn scale(&self) -> Scale {
        if self.symbols == MI { Scale::Small } else { Scale::Huge }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let received = || place.normals().tensor_of(DType::Complex64, [self.symbols]);
        match self.task {
            ModemTask::Modulate => {
                let last = ((1_usize << self.constellation.bits()) - 1) as u8;
                let symbols = noise(self.symbols).into_iter().map(|symbol| symbol & last).collect();
                place.repeat(Modulate::new(self.constellation.clone(), &Tensor::from_vec(symbols, [self.symbols])?))
            }
            ModemTask::Hard => place.repeat(Demodulate::hard(self.constellation.clone(), &received()?)),
            ModemTask::Soft => place.repeat(Demodulate::soft(self.constellation.clone(), &received()?, 0.5)),
        }
    }
}
