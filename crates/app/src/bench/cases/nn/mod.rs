//! Cases of training steps: forward pass, backward pass and optimiser step as one op, with all data
//! in the device's memory.

use std::cell::RefCell;

use panoply::nn::layers::{Conv2d, Flatten, Linear, MaxPool2d, Relu};
use panoply::nn::samples::{Classifier, resnet20};
use panoply::nn::train::{Session, SessionOptions};
use panoply::nn::{Layer, Mode, Net, Optimiser, Recording, Sequential, loss};
use panoply::{DType, Error, Result, Tensor};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// All cases of training.
pub const CASES: &[&dyn Case] = &[
    &TrainCase { network: Network::Mlp, batch: 64 },
    &TrainCase { network: Network::Mlp, batch: 4096 },
    &TrainCase { network: Network::Cnn, batch: 64 },
    &TrainCase { network: Network::Cnn, batch: 4096 },
    &TrainCase { network: Network::ResNet20, batch: 32 },
    &TrainCase { network: Network::ResNet20, batch: 256 },
];

/// A network to train.
#[derive(Clone, Copy, PartialEq)]
enum Network {
    /// 784, 512, 256 and 10 neurons.
    Mlp,
    /// Two convolutions and two linear layers, over images of 28 × 28.
    Cnn,
    /// Twenty layers, over images of 32 × 32 with three channels.
    ResNet20,
}

/// One training step with momentum on a batch.
struct TrainCase {
    network: Network,
    batch: usize,
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Mlp => "mlp",
            Network::Cnn => "cnn",
            Network::ResNet20 => "resnet20",
        }
    }

    fn image(self) -> [usize; 3] {
        if self == Network::ResNet20 { [3, 32, 32] } else { [1, 28, 28] }
    }

    fn layers(self) -> Sequential {
        match self {
            Network::Mlp => Classifier::Mlp.layers(28),
            Network::Cnn => Sequential::new("")
                .with(Conv2d::new("conv1", 1, 32, 3))
                .with(Relu)
                .with(Conv2d::new("conv2", 32, 64, 3))
                .with(Relu)
                .with(MaxPool2d::new(2))
                .with(Flatten)
                .with(Linear::new("fc1", 9216, 128))
                .with(Relu)
                .with(Linear::new("fc2", 128, 10)),
            Network::ResNet20 => resnet20(),
        }
    }

    /// Additions and multiplications of the forward pass, per image.
    fn flops(self) -> f64 {
        match self {
            Network::Mlp => 2.0 * (784 * 512 + 512 * 256 + 256 * 10) as f64,
            Network::Cnn => 2.0 * (26 * 26 * 9 * 32 + 24 * 24 * 9 * 32 * 64 + 9216 * 128 + 1280) as f64,
            Network::ResNet20 => 2.0 * 40_813_184.0,
        }
    }

    fn record(self) -> panoply::nn::Result<Recording> {
        let mut net = Net::new(self.name(), Mode::Train);
        let batch = net.symbol("batch")?;
        let [channels, height, width] = self.image();
        let x = net.data("x", DType::F32, &[batch, channels.into(), height.into(), width.into()])?;
        let labels = net.data("labels", DType::U32, &[batch])?;
        let logits = self.layers().forward(&mut net, x)?;
        let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
        net.finish(&[("loss", loss)])
    }
}

impl Case for TrainCase {
    fn name(&self) -> String {
        format!("nn/{}/train/f32/b{}", self.network.name(), self.batch)
    }

    /// The backward pass costs twice as much as the forward pass.
    fn amount(&self) -> Amount {
        Amount::Flops(3.0 * self.network.flops() * self.batch as f64)
    }

    fn scale(&self) -> Scale {
        match (self.network, self.batch) {
            (Network::Mlp, 64) => Scale::Small,
            (Network::Cnn, 4096) | (Network::ResNet20, 256) => Scale::Large,
            _ => Scale::Medium,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> Result<Runner> {
        let recording = self.network.record().map_err(as_op)?;
        // The host keeps no copy of the parameters: only the device is measured.
        let options = SessionOptions { devices: vec![place.device.id], copy_every: 0, ..SessionOptions::default() };
        let optimiser = Optimiser::momentum(0.01, 0.9, false);
        let session = Session::new(&*place.runtime, recording, optimiser, None, options).map_err(as_op)?;
        let [channels, height, width] = self.network.image();
        let x = place.normals().tensor([self.batch, channels, height, width])?;
        let labels = Tensor::from_vec((0..self.batch as u32).map(|row| row * 7 % 10).collect(), [self.batch])?;
        let batch = [place.resident(&x)?, place.resident(&labels)?];
        let session = RefCell::new(session);
        Ok(Box::new(move || {
            let outcome = session.borrow_mut().step(&batch).map_err(as_op)?;
            Ok(outcome.reports.first().and_then(|report| report.device_time))
        }))
    }
}

/// Converts an error of training to an error of an op.
fn as_op(error: panoply::nn::Error) -> Error {
    match error {
        panoply::nn::Error::Op(error) => error,
        other => Error::invalid("training", "a step", other),
    }
}
