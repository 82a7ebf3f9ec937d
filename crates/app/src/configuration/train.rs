//! Validates the arguments of `panoply train`.

use std::path::PathBuf;

use panoply::nn::samples::Classifier;
use panoply::{DType, DeviceId};

use super::{Format, check_picture, format};
use crate::arguments::TrainArguments;
use crate::failure::Failure;

/// The most epochs, and the most pictures in a step.
const EPOCHS_MAX: u64 = 100_000;
const BATCH_MAX: usize = 1 << 16;

/// The network to train, and the settings of training.
#[derive(Debug)]
pub struct TrainOptions {
    pub network: Classifier,
    /// `None` selects the digits that the command carries.
    pub mnist: Option<PathBuf>,
    pub epochs: u64,
    pub batch: usize,
    pub rate: f64,
    pub precision: DType,
    /// Empty leaves the choice of the device to the runtime.
    pub devices: Vec<DeviceId>,
    pub seed: u64,
    pub checkpoints: Option<PathBuf>,
    pub save: Option<PathBuf>,
    pub curve: Option<PathBuf>,
    pub debug: bool,
    pub format: Format,
}

impl TrainOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: TrainArguments) -> Result<TrainOptions, Failure> {
        let network = match arguments.network.as_str() {
            "mlp" => Classifier::Mlp,
            "cnn" => Classifier::Cnn,
            other => return Err(Failure::Usage(format!("--network: expected mlp or cnn, got {other}"))),
        };
        let precision = match arguments.precision.as_str() {
            "f32" => DType::F32,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            other => return Err(Failure::Usage(format!("--precision: expected f32, f16 or bf16, got {other}"))),
        };
        let (epochs, batch, rate) = match (arguments.mnist.is_some(), network) {
            (false, _) => (30, 16, 3e-3),
            (true, Classifier::Mlp) => (3, 64, 1.5e-3),
            (true, Classifier::Cnn) => (1, 32, 4e-3),
        };
        let epochs = arguments.epochs.unwrap_or(epochs);
        let batch = arguments.batch.unwrap_or(batch);
        let rate = arguments.rate.unwrap_or(rate);
        if !(1..=EPOCHS_MAX).contains(&epochs) {
            return Err(Failure::Usage(format!("--epochs: expected 1 to {EPOCHS_MAX}, got {epochs}")));
        }
        if !(1..=BATCH_MAX).contains(&batch) {
            return Err(Failure::Usage(format!("--batch: expected 1 to {BATCH_MAX}, got {batch}")));
        }
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Failure::Usage(format!("--rate: expected a number above 0, got {rate}")));
        }
        let device = |text: &String| {
            text.parse().map_err(|_| Failure::Usage(format!("--device: expected an id such as cpu:0, got {text}")))
        };
        check_picture("--curve", arguments.curve.as_deref(), "svg")?;
        Ok(TrainOptions {
            network,
            mnist: arguments.mnist,
            epochs,
            batch,
            rate,
            precision,
            devices: arguments.device.iter().map(device).collect::<Result<_, _>>()?,
            seed: arguments.seed,
            checkpoints: arguments.checkpoints,
            save: arguments.save,
            curve: arguments.curve,
            debug: arguments.debug,
            format: format(arguments.json),
        })
    }
}
