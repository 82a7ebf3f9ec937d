//! An unchanged Burn program on a device that Panoply serves: its losses are those of Burn's own CPU backend.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::remote::RemoteHost;
use burn::tensor::{Device, Int, Tensor, TensorData};
use panoply_burn::{PanoplyDevice, device, host, serve};

/// A Burn program as its author wrote it: nothing in it knows where it runs.
mod program {
    use burn::module::Module;
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::nn::loss::CrossEntropyLossConfig;
    use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
    use burn::optim::{AdamConfig, GradientsParams};
    use burn::tensor::{Device, Int, Tensor};

    #[derive(Module, Debug)]
    struct Network {
        conv: Conv2d,
        pool: MaxPool2d,
        hidden: Linear,
        dropout: Dropout,
        output: Linear,
        activation: Relu,
    }

    impl Network {
        fn new(device: &Device) -> Network {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Network {
                conv: Conv2dConfig::new([1, 8], [3, 3]).with_padding(padding).init(device),
                pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
                hidden: LinearConfig::new(8 * 16, 32).init(device),
                dropout: DropoutConfig::new(0.1).init(),
                output: LinearConfig::new(32, 10).init(device),
                activation: Relu::new(),
            }
        }

        fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
            let x = self.activation.forward(self.conv.forward(pictures));
            let x = self.pool.forward(x).flatten::<2>(1, 3);
            let x = self.activation.forward(self.hidden.forward(x));
            self.output.forward(self.dropout.forward(x))
        }
    }

    /// Trains on these batches; the loss of each step, and the share of the last batch that is read right.
    pub fn train(device: &Device, batches: &[(Tensor<4>, Tensor<1, Int>)]) -> (Vec<f32>, f32) {
        device.seed(42);
        let device = device.clone().autodiff();
        let mut network = Network::new(&device);
        let mut optimizer = AdamConfig::new().init();
        let criterion = CrossEntropyLossConfig::new().init(&device);
        let mut losses = Vec::new();
        let mut right = 0.0;
        for (pictures, labels) in batches {
            let (pictures, labels) = (pictures.clone().to_device(&device), labels.clone().to_device(&device));
            let logits = network.forward(pictures);
            let loss = criterion.forward(logits.clone(), labels.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &network);
            network = optimizer.step(5e-3, network, gradients);
            losses.push(loss.into_scalar::<f32>());
            let found = logits.argmax(1).flatten::<1>(0, 1);
            right = found.equal(labels).int().float().mean().into_scalar::<f32>();
        }
        (losses, right)
    }
}

/// Random numbers have one seed in a process, so one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server on this machine over the CPU, the devices that it has, and how a program finds it.
fn server() -> (RemoteHost, Vec<PanoplyDevice>) {
    let runtime = Arc::from(&panoply::Runtime::builder().only([panoply::Api::CPU]).build().unwrap());
    let devices = device::devices(&runtime);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = RemoteHost::websocket(&format!("ws://{}", listener.local_addr().unwrap()));
    let served = devices.clone();
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        tokio.block_on(serve(served, listener)).unwrap();
    });
    (host, devices)
}

/// Handwritten digits in batches of 16, as often as there are steps.
fn batches(device: &Device, steps: usize) -> Vec<(Tensor<4>, Tensor<1, Int>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/digits.u8");
    let rows = std::fs::read(path).unwrap();
    let batch = |step: usize| {
        let rows: Vec<&[u8]> = rows.chunks_exact(65).cycle().skip(step * 16 % 1_600).take(16).collect();
        let pixels: Vec<f32> = rows.iter().flat_map(|row| row[..64].iter().map(|pixel| f32::from(*pixel) / 16.0)).collect();
        let labels: Vec<i32> = rows.iter().map(|row| i32::from(row[64])).collect();
        let pictures = Tensor::<4>::from_data(TensorData::new(pixels, [16, 1, 8, 8]), device);
        (pictures, Tensor::<1, Int>::from_data(TensorData::new(labels, [16]), device))
    };
    (0..steps).map(batch).collect()
}

#[test]
fn an_unchanged_program_has_the_losses_of_burns_own_backend() {
    let _one = one_at_a_time();
    let (expected, expected_right) = program::train(&Device::flex(), &batches(&Device::flex(), 60));
    let (host, devices) = server();
    let remote = Device::remote_options(&host).init().unwrap();
    let started = std::time::Instant::now();
    let (found, right) = program::train(&remote, &batches(&remote, 60));
    let (graphs, steps, known) = devices[0].place().counts();
    println!("losses {:.4} to {:.4}, {:.0} % right, in {:?}", found[0], found[59], right * 100.0, started.elapsed());
    println!("{steps} ops in {graphs} graphs, {known} of them different; on the host: {:?}", host::counts());
    for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert!((expected - found).abs() <= 1e-3 * (1.0 + expected), "step {step}: {expected} and {found}");
    }
    assert!(found[..5].iter().sum::<f32>() > 2.0 * found[55..].iter().sum::<f32>(), "it learns: {found:?}");
    assert!((right - expected_right).abs() < 0.07, "{right} and {expected_right}");
    assert!(graphs > 0 && steps > 60 * 50 && known < 40, "steps are graphs that are met again");
}

#[test]
fn ops_are_those_of_burns_own_backend() {
    let _one = one_at_a_time();
    let (host, _) = server();
    let remote = Device::remote_options(&host).init().unwrap();
    let (local, found) = (answers(&Device::flex()), answers(&remote));
    for ((name, expected), (_, found)) in local.iter().zip(&found) {
        assert_eq!(expected.len(), found.len(), "{name}");
        for (expected, found) in expected.iter().zip(found) {
            let same = (expected - found).abs() <= 1e-5 * (1.0 + expected.abs()) || expected.is_nan() && found.is_nan();
            assert!(same, "{name}: {expected} and {found}");
        }
    }
}

/// Ops that are recorded and ops that are not, mixed, with their answers.
fn answers(device: &Device) -> Vec<(&'static str, Vec<f32>)> {
    let values: Vec<f32> = (0..24_u8).map(|place| (f32::from(place) * 0.7).sin() * 2.0).collect();
    let a = Tensor::<3>::from_data(TensorData::new(values.clone(), [2, 3, 4]), device);
    let b = Tensor::<3>::from_data(TensorData::new(values[..12].to_vec(), [1, 3, 4]), device);
    let at = Tensor::<1, Int>::from_data(TensorData::new(vec![2_i32, 0, 1, 1], [4]), device);
    let mask = a.clone().greater(b.clone());
    let numbers = |tensor: Tensor<3>| tensor.into_data().try_to_vec::<f32>().unwrap();
    vec![
        ("stretched", numbers((a.clone() + b.clone()) * a.clone() / (b.clone().abs() + 1.0))),
        ("matmul", numbers(a.clone().matmul(b.clone().swap_dims(1, 2)))),
        ("masked", numbers(a.clone().mask_where(mask.clone(), b.clone().expand([2, 3, 4])))),
        ("filled", numbers(a.clone().mask_fill(mask.bool_not(), -7.0))),
        ("sliced", numbers(a.clone().slice([0..2, 1..3, 0..3]))),
        ("turned", numbers(a.clone().permute([2, 0, 1]).reshape([4, 2, 3]))),
        ("selected", numbers(a.clone().select(1, at))),
        ("summed", numbers(a.clone().sum_dim(1) - a.clone().mean_dim(1) + a.clone().max_dim(1))),
        ("on the host", numbers(a.clone().cumsum(2).sinh().flip([1]))),
        ("mixed", numbers((a.clone().exp().atan() + b).powf_scalar(2.0).sqrt())),
        ("joined", numbers(Tensor::cat(vec![a.clone(), a.tanh()], 1))),
    ]
}

#[test]
fn a_program_that_is_wrong_ends_alone() {
    let _one = one_at_a_time();
    let (host, _) = server();
    let good = Device::remote_options(&host).init().unwrap();
    let kept = Tensor::<1>::from_floats([1.0, 2.0], &good);
    let table = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &good);
    let beyond = Tensor::<1, Int>::from_data(TensorData::new(vec![9_i32], [1]), &good);
    let refused = table.select(0, beyond).try_into_data();
    assert!(refused.is_err(), "an index beyond the table is an error: {refused:?}");
    assert_eq!((kept * 2.0).into_data().try_to_vec::<f32>().unwrap(), [2.0, 4.0]);
}
