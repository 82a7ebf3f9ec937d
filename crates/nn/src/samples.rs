//! Networks and datasets that come with the library: handwritten digits, with two classifiers.
//!
//! [`digits`] makes the dataset of 1,797 pictures of 8 × 8 (UCI's optical digits, as in
//! scikit-learn). [`mnist`] reads the 70,000 pictures of 28 × 28 from the four files in which they
//! are published.

use std::io::Read;
use std::path::Path;

use panoply_core::graph::NodeId;
use panoply_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::files;
use crate::layers::{BatchNorm, Conv2d, Dropout, Flatten, GlobalAvgPool2d, Layer, Linear, MaxPool2d, Relu, Sequential};
use crate::loss;
use crate::net::{Mode, Net, Recording};
use crate::random::Random;
use crate::train::Dataset;

/// The largest file of pictures that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A classifier of grey pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// A multi-layer perceptron with two hidden layers, of 512 and 256 units.
    Mlp,
    /// A network with two convolutions.
    Cnn,
}

/// Pictures and their classes, split into a training set and a test set.
#[derive(Clone, Debug)]
pub struct Pictures {
    /// The training set.
    pub train: Dataset,
    /// The test set.
    pub test: Dataset,
    /// Height and width of a picture, in pixels.
    pub side: usize,
    /// The largest value of a pixel.
    pub white: f64,
}

/// Handwritten digits of 8 × 8 from rows of 64 pixels (0 to 16) and a label. A fifth of the rows,
/// chosen by the seed, becomes the test set.
pub fn digits(rows: &[u8], seed: u64) -> Result<Pictures> {
    const ROW: usize = 65;
    if rows.is_empty() || !rows.len().is_multiple_of(ROW) {
        return Err(Error::invalid("digits", format!("rows of {ROW} bytes"), rows.len()));
    }
    let mut order: Vec<usize> = (0..rows.len() / ROW).collect();
    Random::new(seed, "digits").shuffle(&mut order);
    let mut pixels = Vec::new();
    let mut labels = Vec::new();
    for row in order {
        let row = &rows[row * ROW..(row + 1) * ROW];
        pixels.extend_from_slice(&row[..ROW - 1]);
        labels.push(class(row[ROW - 1])?);
    }
    let count = labels.len();
    let all = set(pixels, labels, 8)?;
    let (train, test) = all.split_at(count * 4 / 5)?;
    Ok(Pictures { train, test, side: 8, white: 16.0 })
}

/// Reads MNIST from a folder with its four files, unpacked.
pub fn mnist(folder: &Path) -> Result<Pictures> {
    let part = |images: &str, labels: &str| -> Result<Dataset> {
        let (pixels, dims) = idx(&folder.join(images))?;
        let (classes, counts) = idx(&folder.join(labels))?;
        if dims.len() != 3 || dims[1..] != [28, 28] || counts != dims[..1] {
            let got = format!("{dims:?} and {counts:?}");
            return Err(Error::file(folder, format!("expected pictures of 28 × 28 and as many labels, got {got}")));
        }
        set(pixels, classes.into_iter().map(class).collect::<Result<_>>()?, 28)
    };
    let train = part("train-images-idx3-ubyte", "train-labels-idx1-ubyte")?;
    let test = part("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")?;
    Ok(Pictures { train, test, side: 28, white: 255.0 })
}

impl Classifier {
    /// The layers, for pictures of this height and width. They are named `fc1`, `fc2`, `fc3`, or
    /// `conv1`, `conv2`, `fc`.
    pub fn layers(self, side: usize) -> Sequential {
        match self {
            Classifier::Mlp => Sequential::new("")
                .with(Flatten)
                .with(Linear::new("fc1", side * side, 512))
                .with(Relu)
                .with(Linear::new("fc2", 512, 256))
                .with(Relu)
                .with(Linear::new("fc3", 256, 10)),
            Classifier::Cnn => Sequential::new("")
                .with(Conv2d::new("conv1", 1, 16, 3).padding(1))
                .with(Relu)
                .with(MaxPool2d::new(2))
                .with(Conv2d::new("conv2", 16, 32, 3).padding(1))
                .with(Relu)
                .with(MaxPool2d::new(2))
                .with(Flatten)
                .with(Dropout::new("drop", 0.1))
                .with(Linear::new("fc", 32 * (side / 4) * (side / 4), 10)),
        }
    }

    /// Records the network over u8 pictures and their classes, with the loss and the accuracy as
    /// outputs.
    pub fn record(self, pictures: &Pictures, mode: Mode, compute: DType) -> Result<Recording> {
        let mut net = Net::new("pictures", mode).with_compute(compute);
        let batch = net.symbol("batch")?;
        let side = pictures.side;
        let x = net.data("pictures", DType::U8, &[batch, 1.into(), side.into(), side.into()])?;
        let labels = net.data("labels", DType::U32, &[batch])?;
        let x = net.cast(x, DType::F32)?;
        let scale = 1.0 / pictures.white;
        let x: NodeId = net.map(&[x], |v| v[0].clone() * scale)?;
        let logits = self.layers(side).forward(&mut net, x)?;
        let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
        let accuracy = loss::accuracy(&mut net, logits, labels)?;
        net.finish(&[("loss", loss), ("accuracy", accuracy)])
    }
}

/// A residual network of 20 layers for pictures of 32 × 32 in three colours: 3 × 3 convolutions of
/// 16, 32 and 64 channels with batch norms, and three blocks of two convolutions for each number of
/// channels.
pub fn resnet20() -> Sequential {
    let mut layers = Sequential::new("")
        .with(Conv2d::new("conv1", 3, 16, 3).padding(1).without_bias())
        .with(BatchNorm::new("bn1", 16))
        .with(Relu);
    let mut inputs = 16;
    for (stage, outputs) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..3 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            layers =
                layers.with(ResidualBlock { name: format!("layer{}.{block}", stage + 1), inputs, outputs, stride });
            inputs = outputs;
        }
    }
    layers.with(GlobalAvgPool2d).with(Linear::new("fc", 64, 10))
}

/// A residual block: two convolutions beside a shortcut. Names are those of PyTorch's networks.
struct ResidualBlock {
    name: String,
    inputs: usize,
    outputs: usize,
    stride: usize,
}

impl Layer for ResidualBlock {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        let ResidualBlock { inputs, outputs, stride, .. } = *self;
        let conv = |name: &str, inputs: usize, kernel: usize, stride: usize| {
            Conv2d::new(name, inputs, outputs, kernel).padding(kernel / 2).stride(stride).without_bias()
        };
        net.layer(&self.name, |net| {
            let inner = Sequential::new("")
                .with(conv("conv1", inputs, 3, stride))
                .with(BatchNorm::new("bn1", outputs))
                .with(Relu)
                .with(conv("conv2", outputs, 3, 1))
                .with(BatchNorm::new("bn2", outputs));
            let y = inner.forward(net, x)?;
            let x = match inputs == outputs && stride == 1 {
                true => x,
                false => Sequential::new("downsample")
                    .with(conv("0", inputs, 1, stride))
                    .with(BatchNorm::new("1", outputs))
                    .forward(net, x)?,
            };
            Ok(net.map(&[y, x], |v| (v[0].clone() + v[1].clone()).relu())?)
        })
    }
}

fn class(label: u8) -> Result<u32> {
    if label < 10 { Ok(u32::from(label)) } else { Err(Error::invalid("pictures: a label", "0 to 9", label)) }
}

fn set(pixels: Vec<u8>, labels: Vec<u32>, side: usize) -> Result<Dataset> {
    let count = labels.len();
    Dataset::new(vec![Tensor::from_vec(pixels, [count, 1, side, side])?, Tensor::from_vec(labels, [count])?])
}

/// Reads a file in MNIST's format (IDX): bytes in up to three dimensions.
fn idx(path: &Path) -> Result<(Vec<u8>, Vec<usize>)> {
    let refused = |reason: String| Error::file(path, reason);
    let file = files::open(path)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
    let rank = match bytes.get(..4) {
        Some([0, 0, 8, rank @ 1..=3]) => usize::from(*rank),
        _ => return Err(refused("expected a file of bytes in MNIST's form".to_owned())),
    };
    let head = 4 + 4 * rank;
    let short = || refused("it is cut short".to_owned());
    let mut dims = Vec::new();
    for word in bytes.get(4..head).ok_or_else(short)?.chunks_exact(4) {
        dims.push(word.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)));
    }
    let count = dims.iter().try_fold(1_usize, |count, dim| count.checked_mul(*dim));
    match count {
        Some(count) if bytes.len() - head == count => Ok((bytes.split_off(head), dims)),
        _ => Err(refused(format!("expected {dims:?} bytes behind its head, got {}", bytes.len() - head))),
    }
}
