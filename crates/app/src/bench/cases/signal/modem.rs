//! Modems: 1 Mi symbols.

use panoply::DType;
use panoply::prelude::Tensor;
use panoply::signal::{Constellation, Demodulate, Modulate};

use super::{Amount, Case, MI, Place, Runner, Scale, noise};

/// What is done with the symbols.
pub enum Task {
    Modulate,
    Hard,
    Soft,
}

/// Symbols to points, or points to symbols or to soft bits.
pub struct ModemCase {
    pub constellation: Constellation,
    pub task: Task,
}

impl Case for ModemCase {
    fn name(&self) -> String {
        let name = self.constellation.name();
        match self.task {
            Task::Modulate => format!("modulate/{name}/1Mi"),
            Task::Hard => format!("demodulate/{name}/1Mi/hard"),
            Task::Soft => format!("demodulate/{name}/1Mi/soft"),
        }
    }

    /// A point has eight bytes, a symbol one, a soft bit four.
    fn amount(&self) -> Amount {
        let other = match self.task {
            Task::Modulate | Task::Hard => 1,
            Task::Soft => 4 * self.constellation.bits(),
        };
        Amount::Bytes((MI * (8 + other)) as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Small
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        let received = || place.normals().tensor_of(DType::Complex64, [MI]);
        match self.task {
            Task::Modulate => {
                let last = ((1_usize << self.constellation.bits()) - 1) as u8;
                let symbols = noise(MI).into_iter().map(|symbol| symbol & last).collect();
                place.repeat(Modulate::new(self.constellation.clone(), &Tensor::from_vec(symbols, [MI])?))
            }
            Task::Hard => place.repeat(Demodulate::hard(self.constellation.clone(), &received()?)),
            Task::Soft => place.repeat(Demodulate::soft(self.constellation.clone(), &received()?, 0.5)),
        }
    }
}
