//! What is recorded, and how it becomes nodes of a graph.

use panoply_core::graph::{Dim, GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, Gather, MatMul, Pool2d, Reduce, Reduction, Resize,
    ResizeMode,
};
use panoply_core::{DType, Error, Result, Tensor};

use crate::formula::Formula;

/// One op of a Burn program. Its text and its operands' shapes decide about its graph.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // Fields are what the ops of their names take.
pub enum Step {
    Map(Formula),
    MatMul,
    Reshape(Vec<usize>),
    Permute(Vec<usize>),
    Expand(Vec<usize>),
    /// For each axis its start, end and step.
    Slice(Vec<[usize; 3]>),
    /// A reduction of one axis, which stays with a length of one.
    Reduce(Reduction, usize),
    /// The sum of everything, as one element.
    SumAll,
    /// The place of the largest (or, where `false`, smallest) along an axis, as i32.
    Place(bool, usize),
    Conv(ConvOptions),
    ConvInput(ConvOptions, [usize; 2]),
    ConvWeight(ConvOptions, [usize; 2]),
    Pool(Window),
    /// The place of each window's largest element in its picture, as i32.
    PoolPlaces(Window),
    /// Gradients of windows go to the places that the second operand names.
    PoolBackward(Window),
    /// Gradients of windows are spread evenly.
    AverageBackward(Window),
    /// Rows along an axis.
    Select(usize),
    /// Elements along an axis.
    Gather(usize),
    /// Adds one element along an axis of this length, where the second operand says.
    AddAt(usize, usize),
}

/// A window that is moved over pictures of this height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Window {
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    /// For averages: whether what lies beyond the picture counts.
    pub average: Option<bool>,
}

impl Window {
    /// How many windows there are, down and across. None, where there is none.
    pub fn output(&self) -> Option<[usize; 2]> {
        let count = |axis: usize| {
            let room = (self.size[axis] + 2 * self.padding[axis]).checked_sub(self.kernel[axis])?;
            (self.stride[axis] > 0 && self.kernel[axis] > 0).then(|| room / self.stride[axis] + 1)
        };
        Some([count(0)?, count(1)?])
    }

    /// Whether windows cover the picture once.
    pub fn is_side_by_side(&self) -> bool {
        let fits = |axis: usize| self.size[axis].is_multiple_of(self.kernel[axis].max(1));
        self.padding == [0; 2] && self.stride == self.kernel && self.kernel != [0; 2] && fits(0) && fits(1)
    }

    fn op(&self, x: &Tensor) -> Pool2d {
        let [down, across] = self.padding;
        let pool = match self.average {
            None => Pool2d::max(x, self.kernel),
            Some(count_padding) => Pool2d::average(x, self.kernel).count_padding(count_padding),
        };
        pool.stride(self.stride).padding([down, across, down, across])
    }
}

impl Step {
    /// The nodes of this step.
    pub fn build(&self, g: &mut GraphBuilder, x: &[NodeId]) -> Result<NodeId> {
        let first = *x.first().ok_or_else(|| Error::invalid("burn: operands of a step", "at least one", "none"))?;
        match self {
            Step::Map(formula) => map(g, *formula, x),
            Step::MatMul => g.op(x, |t| MatMul::new(&t[0], &t[1])),
            Step::Reshape(dims) => g.reshape(first, &fixed(dims)),
            Step::Permute(order) => g.permute(first, order),
            Step::Expand(dims) => g.broadcast(first, &fixed(dims)),
            Step::Slice(cuts) => {
                let cut = |x, (axis, [start, end, step]): (usize, &[usize; 3])| g.slice(x, axis, *start, *end, *step);
                cuts.iter().enumerate().try_fold(first, cut)
            }
            Step::Reduce(reduction, axis) => g.op(x, |t| Reduce::new(&t[0], *reduction).axes(&[*axis]).keep_dims()),
            Step::SumAll => {
                let sum = g.op(x, |t| Reduce::sum(&t[0]))?;
                g.reshape(sum, &[Dim::fixed(1)])
            }
            Step::Place(largest, axis) => {
                let reduction = if *largest { Reduction::ArgMax } else { Reduction::ArgMin };
                let place = g.op(x, |t| Reduce::new(&t[0], reduction).axes(&[*axis]).keep_dims())?;
                g.cast(place, DType::I32)
            }
            Step::Conv(options) => g.op(x, |t| {
                let conv = Conv2d::new(&t[0], &t[1]).options(*options);
                if let Some(bias) = t.get(2) { conv.bias(bias) } else { conv }
            }),
            Step::ConvInput(options, size) => {
                g.op(x, |t| Conv2dBackwardInput::new(&t[0], &t[1], *size).options(*options))
            }
            Step::ConvWeight(options, kernel) => {
                g.op(x, |t| Conv2dBackwardWeight::new(&t[0], &t[1], *kernel).options(*options))
            }
            Step::Pool(window) => g.op(x, |t| window.op(&t[0])),
            Step::PoolPlaces(window) => pool_places(g, first, window),
            Step::PoolBackward(window) => pool_backward(g, x, window),
            Step::AverageBackward(window) => {
                let size = (window.kernel[0] * window.kernel[1]) as f64;
                let part = g.map(x, |v| v[0].clone() * (1.0 / size))?;
                over_windows(g, part, window)
            }
            Step::Select(axis) => g.op(x, |t| Gather::new(&t[0], &t[1], *axis)),
            Step::Gather(axis) => g.op(x, |t| Gather::along(&t[0], &t[1], *axis)),
            Step::AddAt(axis, length) => add_at(g, x, *axis, *length),
        }
    }
}

fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|size| Dim::fixed(*size)).collect()
}

/// An expression over operands that are f32, whatever they were; true and false become bytes.
fn map(g: &mut GraphBuilder, formula: Formula, x: &[NodeId]) -> Result<NodeId> {
    let mut wide = Vec::new();
    for node in x {
        wide.push(in_f32(g, *node)?);
    }
    let made = match (formula, &wide[..]) {
        (Formula::Same, [only]) => *only,
        _ => g.map(&wide, |v| formula.of(v))?,
    };
    if formula.is_truth() { g.cast(made, DType::U8) } else { Ok(made) }
}

fn in_f32(g: &mut GraphBuilder, x: NodeId) -> Result<NodeId> {
    match g.type_of(x)?.0 {
        DType::F32 => Ok(x),
        _ => g.cast(x, DType::F32),
    }
}

/// For windows side by side: where in its picture the first of each window's largest elements is.
fn pool_places(g: &mut GraphBuilder, x: NodeId, window: &Window) -> Result<NodeId> {
    let Window { size: [height, width], kernel: [rows, columns], .. } = *window;
    let (down, across) = (height / rows, width / columns);
    let largest = g.op(&[x], |t| window.op(&t[0]))?;
    let mut best = None;
    // From the last place of a window to its first, so that the first that is largest stays.
    for tap in (0..rows * columns).rev() {
        let (row, column) = (tap / columns, tap % columns);
        let seen = g.slice(x, 2, row, height, rows)?;
        let seen = g.slice(seen, 3, column, width, columns)?;
        let place = |at: usize| ((at / across * rows + row) * width + at % across * columns + column) as f32;
        let places = Tensor::from_vec((0..down * across).map(place).collect(), [down, across])?;
        let places = g.unnamed_constant(&places)?;
        best = Some(match best {
            None => {
                // What is no number is nowhere the largest: the last place stands for it.
                let none = g.map(&[seen, places], |v| v[0].clone() * 0.0 + v[1].clone())?;
                g.map(&[seen, largest, places, none], |v| {
                    v[0].clone().eq(v[1].clone()).select(v[2].clone(), v[3].clone())
                })?
            }
            Some(best) => g.map(&[seen, largest, places, best], |v| {
                v[0].clone().eq(v[1].clone()).select(v[2].clone(), v[3].clone())
            })?,
        });
    }
    let best = best.ok_or_else(|| Error::invalid("burn: a window", "at least one place", 0))?;
    g.cast(best, DType::I32)
}

/// For windows side by side: each window's gradient, at the place that it names.
fn pool_backward(g: &mut GraphBuilder, x: &[NodeId], window: &Window) -> Result<NodeId> {
    let [gradient, places] = x else { return Err(Error::invalid("burn: operands of a pool", "two", x.len())) };
    let Window { size: [height, width], .. } = *window;
    let places = in_f32(g, *places)?;
    let (gradient, places) = (over_windows(g, *gradient, window)?, over_windows(g, places, window)?);
    let own = Tensor::from_vec((0..height * width).map(|place| place as f32).collect(), [height, width])?;
    let own = g.unnamed_constant(&own)?;
    g.map(&[gradient, places, own], |v| v[1].clone().eq(v[2].clone()).select(v[0].clone(), 0.0))
}

/// One number for each window, at every place of the window.
fn over_windows(g: &mut GraphBuilder, x: NodeId, window: &Window) -> Result<NodeId> {
    let [height, width] = window.size;
    g.op(&[x], |t| Resize::new(&t[0], height, width).mode(ResizeMode::Nearest))
}

/// The first operand, with the third added where the second says along an axis.
fn add_at(g: &mut GraphBuilder, x: &[NodeId], axis: usize, length: usize) -> Result<NodeId> {
    let [to, at, value] = x else { return Err(Error::invalid("burn: operands of a scatter", "three", x.len())) };
    let rank = g.type_of(*to)?.1.len();
    let mut dims = vec![1; rank];
    dims[axis] = length;
    let own = Tensor::from_vec((0..length).map(|place| place as f32).collect(), dims)?;
    let own = g.unnamed_constant(&own)?;
    let at = in_f32(g, *at)?;
    g.map(&[*to, at, *value, own], |v| {
        let share = v[1].clone().eq(v[3].clone()).select(v[2].clone(), 0.0);
        v[0].clone() + share
    })
}
