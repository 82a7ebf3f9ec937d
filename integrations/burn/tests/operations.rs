//! Single operations of Burn's tensors on a device served here give the same answers as Burn's own
//! CPU backend.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::net::TcpListener;
use std::sync::Arc;

use burn::remote::RemoteHost;
use burn::tensor::activation::{gelu, leaky_relu, log_sigmoid, log_softmax, relu, sigmoid, softmax, softmin};
use burn::tensor::module::{
    adaptive_avg_pool2d, avg_pool2d, conv_transpose2d, conv1d, conv2d, max_pool2d, max_pool2d_with_indices,
};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, ConvTransposeOptions, MaxPoolOptions};
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData, s};
use panoply_burn::{Server, Serving};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;

type Case = (&'static str, fn(&Device) -> TensorData);

fn served() -> (Serving, Device) {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let serving = Server::new(Arc::new(runtime)).spawn(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let host = RemoteHost::websocket(&format!("ws://{}", serving.address()));
    let device = Device::remote_options(&host).init().unwrap();
    (serving, device)
}

/// Numbers without a pattern, between -1 and 1.
fn numbers<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|place| ((place * 7919 + 13) % 1009) as f32 / 504.5 - 1.0).collect();
    Tensor::from_data(TensorData::new(values, dims), device)
}

fn ints<const D: usize>(values: Vec<i32>, dims: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values, dims), device)
}

fn mask(device: &Device) -> Tensor<2, Bool> {
    numbers([3, 4], device).greater_elem(0.0)
}

fn largest() -> MaxPoolOptions<2> {
    MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1])
}

fn average() -> AvgPoolOptions<2> {
    let mut options = AvgPoolOptions::new([3, 2]).with_stride([2, 2]).with_padding([1, 0]);
    options.count_include_pad = false;
    options
}

const CASES: &[Case] = &[
    ("arithmetic", |d| {
        ((numbers([3, 4], d) * 3.0 + numbers([1, 4], d)) / (numbers([3, 1], d) + 2.0) - 1.5).into_data()
    }),
    ("remainder", |d| (numbers([3, 4], d) * 5.0).remainder_scalar(1.5).into_data()),
    ("functions", |d| {
        let x = numbers([3, 4], d);
        let positive = x.clone().abs() + 0.1;
        let all = vec![
            x.clone().exp(),
            positive.clone().log(),
            x.clone().log1p(),
            x.clone().erf(),
            positive.clone().sqrt(),
            x.clone().sin(),
            x.clone().cos(),
            x.clone().tanh(),
            (x.clone() * 3.0).round(),
            (x.clone() * 3.0).floor(),
            (x.clone() * 3.0).ceil(),
            positive.clone().recip(),
            x.clone().sign(),
            positive.clone().powf_scalar(1.7),
            x.clone().powi_scalar(3),
            x.clone().clamp(-0.5, 0.25),
        ];
        Tensor::cat(all, 0).into_data()
    }),
    ("activations", |d| {
        let x = numbers([3, 4], d) * 4.0;
        let all = vec![
            relu(x.clone()),
            gelu(x.clone()),
            sigmoid(x.clone()),
            log_sigmoid(x.clone()),
            leaky_relu(x.clone(), 0.1),
            softmax(x.clone(), 1),
            log_softmax(x.clone(), 0),
            softmin(x, 1),
        ];
        Tensor::cat(all, 0).into_data()
    }),
    ("reductions", |d| {
        let x = numbers([3, 4], d);
        let all = vec![
            x.clone().sum(),
            x.clone().mean(),
            x.clone().max(),
            x.clone().min(),
            x.clone().sum_dim(1).flatten(0, 1),
            x.clone().mean_dim(0).flatten(0, 1),
            x.clone().max_dim(1).flatten(0, 1),
            x.clone().var(1).flatten(0, 1),
            x.max_abs(),
        ];
        Tensor::cat(all, 0).into_data()
    }),
    ("places", |d| {
        let x = numbers([3, 4], d);
        Tensor::cat(
            vec![x.clone().argmax(1).flatten::<1>(0, 1), x.clone().argmin(0).flatten(0, 1), x.argsort(1).flatten(0, 1)],
            0,
        )
        .into_data()
    }),
    ("extremes with places", |d| {
        let (values, places) = numbers([3, 4], d).max_dim_with_indices(1);
        Tensor::cat(vec![values, places.float()], 0).into_data()
    }),
    ("sorted", |d| numbers([3, 4], d).sort_descending(1).into_data()),
    ("running sums", |d| numbers([3, 4], d).cumsum(1).into_data()),
    ("comparisons", |d| {
        let (a, b) = (numbers([3, 4], d), numbers([1, 4], d));
        Tensor::cat(
            vec![
                a.clone().greater(b.clone()).int(),
                a.clone().lower_equal(b.clone()).int(),
                a.equal(b.expand([3, 4])).int(),
            ],
            0,
        )
        .into_data()
    }),
    ("truth", |d| Tensor::cat(vec![mask(d).all(), mask(d).any(), mask(d).bool_not().any()], 0).into_data()),
    ("truth along an axis", |d| mask(d).any_dim(1).into_data()),
    ("masks", |d| {
        let x = numbers([3, 4], d);
        (x.clone().mask_fill(mask(d), 9.0) + x.clone().mask_where(mask(d), x * 2.0)).into_data()
    }),
    ("shapes", |d| numbers([2, 3, 4], d).permute([2, 0, 1]).reshape([4, 6]).swap_dims(0, 1).into_data()),
    ("flipped", |d| numbers([2, 3, 4], d).flip([0, 2]).into_data()),
    ("repeated", |d| numbers([2, 3], d).repeat_dim(1, 3).into_data()),
    ("sliced", |d| numbers([5, 6], d).slice(s![1..4, 0..6;2]).into_data()),
    ("sliced backwards", |d| numbers([5, 6], d).slice(s![0..5;-2, 1..-1]).into_data()),
    ("slice assigned", |d| numbers([5, 6], d).slice_assign(s![1..3, 2..5], numbers([2, 3], d) + 5.0).into_data()),
    ("joined", |d| Tensor::cat(vec![numbers([2, 3], d), numbers([2, 1], d), numbers([2, 4], d)], 1).into_data()),
    ("selected", |d| numbers([5, 3], d).select(0, ints(vec![4, 0, 0, 2], [4], d)).into_data()),
    ("select assigned", |d| {
        numbers([5, 3], d)
            .select_assign(0, ints(vec![4, 0, 0], [3], d), numbers([3, 3], d), IndexingUpdateOp::Add)
            .into_data()
    }),
    ("select assigned along the last axis", |d| {
        numbers([3, 5], d)
            .select_assign(1, ints(vec![4, 0, 0], [3], d), numbers([3, 3], d), IndexingUpdateOp::Add)
            .into_data()
    }),
    ("gathered", |d| numbers([3, 4], d).gather(1, ints(vec![0, 3, 2, 2, 1, 0], [3, 2], d)).into_data()),
    ("scattered", |d| {
        let indices = ints(vec![0, 3, 2, 2, 1, 1], [3, 2], d);
        numbers([3, 4], d).scatter(1, indices, numbers([3, 2], d), IndexingUpdateOp::Add).into_data()
    }),
    ("scattered over each other", |d| {
        let indices = ints(vec![0, 3, 2, 2, 1, 1], [3, 2], d);
        numbers([3, 4], d).scatter(1, indices, numbers([3, 2], d), IndexingUpdateOp::Assign).into_data()
    }),
    ("padded", |d| numbers([2, 3], d).pad((1, 2, 0, 1), 0.5f32).into_data()),
    ("integers", |d| {
        let x = ints(vec![-7, 7, 3, -3], [4], d);
        let y = ints(vec![2, -2, 5, 5], [4], d);
        Tensor::cat(
            vec![x.clone() + y.clone(), x.clone() * y.clone(), x.clone() / y.clone(), x.clone().remainder(y), x.abs()],
            0,
        )
        .into_data()
    }),
    ("casts", |d| (numbers([3, 4], d) * 9.0).int().float().into_data()),
    ("products", |d| numbers([2, 3, 4], d).matmul(numbers([1, 4, 5], d)).into_data()),
    ("one-hot", |d| ints(vec![0, 2, 1], [3], d).one_hot::<2>(4).into_data()),
    ("convolution of lines", |d| {
        let options = ConvOptions::new([2], [1], [1], 1);
        conv1d(numbers([2, 3, 9], d), numbers([4, 3, 3], d), Some(numbers([4], d)), options).into_data()
    }),
    ("convolution in groups", |d| {
        let options = ConvOptions::new([1, 2], [1, 0], [2, 1], 2);
        conv2d(numbers([2, 4, 7, 8], d), numbers([6, 2, 3, 3], d), Some(numbers([6], d)), options).into_data()
    }),
    ("transposed convolution", |d| {
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1);
        conv_transpose2d(numbers([2, 3, 4, 5], d), numbers([3, 2, 3, 3], d), Some(numbers([2], d)), options).into_data()
    }),
    ("largest of windows", |d| max_pool2d(numbers([2, 3, 7, 8], d), largest()).into_data()),
    ("largest of windows, with their places", |d| {
        let mut options = MaxPoolOptions::new([2, 3]).with_stride([2, 1]).with_padding([1, 1]);
        options.dilation = [1, 2];
        let (values, places) = max_pool2d_with_indices(numbers([2, 3, 7, 8], d), options);
        Tensor::cat(vec![values, places.float()], 0).into_data()
    }),
    ("averages of windows", |d| avg_pool2d(numbers([2, 3, 7, 8], d), average()).into_data()),
    ("averages of a fixed number of windows", |d| adaptive_avg_pool2d(numbers([2, 3, 6, 8], d), [3, 2]).into_data()),
];

/// Gradients of sums of squares, so that no two are the same.
const GRADIENTS: &[Case] = &[
    ("windows", |d| {
        let x = numbers([2, 3, 7, 8], d).require_grad();
        let y = max_pool2d(x.clone(), largest());
        let z = avg_pool2d(x.clone(), average());
        let grads = ((y.clone() * y).sum() + (z.clone() * z).sum()).backward();
        x.grad(&grads).unwrap().into_data()
    }),
    ("transposed convolution", |d| {
        let (x, w) = (numbers([2, 3, 4, 5], d), numbers([3, 2, 3, 3], d).require_grad());
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1);
        let y = conv_transpose2d(x, w.clone(), None, options);
        let grads = (y.clone() * y).sum().backward();
        w.grad(&grads).unwrap().into_data()
    }),
    ("convolution of lines", |d| {
        let (x, w) = (numbers([2, 3, 9], d).require_grad(), numbers([4, 3, 3], d).require_grad());
        let y = conv1d(x.clone(), w.clone(), None, ConvOptions::new([2], [1], [1], 1));
        let grads = (y.clone() * y).sum().backward();
        Tensor::cat(vec![x.grad(&grads).unwrap().flatten::<1>(0, 2), w.grad(&grads).unwrap().flatten(0, 2)], 0)
            .into_data()
    }),
    ("functions", |d| {
        let x = (numbers([3, 4], d) * 3.0).require_grad();
        let y = gelu(x.clone())
            + sigmoid(x.clone())
            + log_sigmoid(x.clone())
            + leaky_relu(x.clone(), 0.2)
            + softmax(x.clone(), 1)
            + x.clone().tanh();
        let grads = (y.clone() * y).sum().backward();
        x.grad(&grads).unwrap().into_data()
    }),
    ("picks", |d| {
        let x = numbers([5, 6], d).require_grad();
        let y =
            x.clone().slice(s![1..4, 0..6;2]).sum() + (x.clone().select(0, ints(vec![4, 0, 0], [3], d)) * 2.0).sum();
        let y = y + Tensor::cat(vec![x.clone() * 3.0, x.clone()], 1).powi_scalar(2).sum();
        let grads = y.backward();
        x.grad(&grads).unwrap().into_data()
    }),
];

/// Runs all, and tells all that differ.
fn compare(cases: &[Case], own: &Device, served: &Device) {
    let mut wrong = Vec::new();
    for (name, case) in cases {
        let expected = case(own);
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(served)));
        let Ok(answer) = answer else {
            wrong.push(format!("{name}: no answer"));
            continue;
        };
        let numbers = |data: &TensorData| -> Vec<f64> { data.iter::<f64>().collect() };
        let (got, wanted) = (numbers(&answer), numbers(&expected));
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        if answer.shape() != expected.shape() || !got.iter().zip(&wanted).all(close) {
            wrong.push(format!("{name}: {:?} {got:?} is not {:?} {wanted:?}", answer.shape(), expected.shape()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn operations_answer_as_burns_own_backend() {
    let (serving, device) = served();
    compare(CASES, &Device::flex(), &device);
    assert_eq!((serving.counters().panics, serving.counters().fallbacks), (0, 0));
}

#[test]
fn gradients_answer_as_burns_own_backend() {
    let (serving, device) = served();
    compare(GRADIENTS, &Device::flex().autodiff(), &device.autodiff());
    assert_eq!((serving.counters().panics, serving.counters().fallbacks), (0, 0));
}
