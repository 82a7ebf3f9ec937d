//! From a case to something that can be run: its inputs are made once, its op is sent again and again.

use panoply::prelude::*;

use super::cases::Work;
use super::random::Normals;

/// Runs the op once, to the end, and drops its output.
pub type Runner = Box<dyn Fn(&Runtime, &RunOptions) -> panoply::Result<()>>;

/// Every case draws its inputs from the same sequence.
const SEED: u64 = 7;

/// Makes the inputs of a case.
pub fn prepare(work: &Work) -> panoply::Result<Runner> {
    let mut normals = Normals::new(SEED);
    Ok(match *work {
        Work::MatMul { dtype, size } => {
            let (a, b) = (normals.tensor_of(dtype, [size, size])?, normals.tensor_of(dtype, [size, size])?);
            repeat(MatMul::new(&a, &b))
        }
        Work::Add { elements } => repeat(Map::add(&normals.tensor([elements])?, &normals.tensor([elements])?)),
        Work::ScaleAddRelu { elements } => {
            let (x, y) = (normals.tensor([elements])?, normals.tensor([elements])?);
            repeat(Map::new((Expr::input(0) * 2.0 + Expr::input(1)).relu(), &[&x, &y]))
        }
        Work::Sum { elements } => repeat(Reduce::sum(&normals.tensor([elements])?)),
        Work::RunningSum { elements } => repeat(Scan::sum(&normals.tensor([elements])?)),
        Work::Sort { elements } => repeat(Sort::new(&normals.tensor([elements])?)),
        Work::Softmax { rows, columns } => repeat(Softmax::new(&normals.tensor([rows, columns])?)),
        Work::LayerNorm { rows, columns } => repeat(LayerNorm::new(&normals.tensor([rows, columns])?)),
        Work::Transpose { rows, columns } => repeat(Transpose::new(&normals.tensor([rows, columns])?)),
        Work::TopK { rows, columns, k } => repeat(TopK::new(&normals.tensor([rows, columns])?, k)),
        Work::Conv2d { batch, channels, side, kernel } => {
            let images = normals.tensor([batch, channels, side, side])?;
            let weights = normals.tensor([channels, channels, kernel, kernel])?;
            repeat(Conv2d::new(&images, &weights).padding([kernel / 2; 4]))
        }
        Work::Resize { batch, channels, height, width, side } => {
            repeat(Resize::new(&normals.tensor([batch, channels, height, width])?, side, side))
        }
        Work::Search { rows, dims, queries, k } => {
            let (rows, queries) = (normals.tensor([rows, dims])?, normals.tensor([queries, dims])?);
            repeat(Search::new(&rows, &queries, Metric::Dot, k))
        }
    })
}

fn repeat<O: Operation + Clone>(op: O) -> Runner {
    Box::new(move |runtime, options| runtime.run_with(op.clone(), options.clone()).wait().map(drop))
}
