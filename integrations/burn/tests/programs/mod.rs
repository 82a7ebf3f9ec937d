//! Ordinary Burn programs, which do not know the device that runs them.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Two layers with dropout between them.
#[derive(Module, Debug)]
pub struct Mlp {
    first: Linear,
    dropout: Dropout,
    second: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        Mlp {
            first: LinearConfig::new(16, 32).init(device),
            dropout: DropoutConfig::new(0.1).init(),
            second: LinearConfig::new(32, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = Relu::new().forward(self.first.forward(x));
        self.second.forward(self.dropout.forward(x))
    }
}

/// Trains the perceptron with Adam. Returns the loss of every step.
pub fn train_mlp(device: &Device, steps: usize) -> Vec<f32> {
    device.seed(7);
    let mut model = Mlp::new(device);
    let mut optimizer = AdamConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(device);
    let mut curve = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step % 4, 32, 16);
        let x = Tensor::<2>::from_data(TensorData::new(x, [32, 16]), device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(y, [32]), device);
        let value = loss.forward(model.forward(x), y);
        let grads = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
        curve.push(value.into_scalar::<f32>());
    }
    curve
}

/// Two convolutions, a batch normalisation, a max-pooling and a linear layer.
#[derive(Module, Debug)]
pub struct Cnn {
    first: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    second: Conv2d,
    last: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Cnn {
        Cnn {
            first: Conv2dConfig::new([1, 4], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm: BatchNormConfig::new(4).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            second: Conv2dConfig::new([4, 8], [3, 3]).init(device),
            last: LinearConfig::new(8 * 4 * 4, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(Relu::new().forward(self.norm.forward(self.first.forward(x))));
        let x = Relu::new().forward(self.second.forward(x));
        self.last.forward(x.flatten(1, 3))
    }
}

/// Trains the convolutions by gradient descent with momentum. Returns the loss of every step.
pub fn train_cnn(device: &Device, steps: usize) -> Vec<f32> {
    device.seed(11);
    let mut model = Cnn::new(device);
    let mut optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let loss = CrossEntropyLossConfig::new().init(device);
    let mut curve = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step % 4, 8, 144);
        let x = Tensor::<4>::from_data(TensorData::new(x, [8, 1, 12, 12]), device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(y, [8]), device);
        let value = loss.forward(model.forward(x), y);
        let grads = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(0.02, model, grads);
        curve.push(value.into_scalar::<f32>());
    }
    curve
}

/// Rows of four classes: noise around the centre of each class.
fn batch(number: usize, rows: usize, width: usize) -> (Vec<f32>, Vec<i32>) {
    let mut state = 0x9e37_79b9_u64 + number as u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let kinds: Vec<i32> = (0..rows).map(|row| (row % 4) as i32).collect();
    let centre = |kind: i32, place: usize| ((place as i32 * (kind + 2)) % 7) as f32 / 7.0 - 0.5;
    let mut values = Vec::with_capacity(rows * width);
    for kind in &kinds {
        values.extend((0..width).map(|place| centre(*kind, place) + 1.5 * noise()));
    }
    (values, kinds)
}
