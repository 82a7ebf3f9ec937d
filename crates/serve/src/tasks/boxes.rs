//! Boxes on the device: a detector's output is decoded, and overlapping boxes are suppressed, on
//! the device that holds the output. The host gets only the few remaining boxes.
//!
//! 1. The graph `read` makes a table from a model's output: a column for each box, with its
//!    corners, its score and its class. Boxes that do not count get the score [`NOTHING`]. The
//!    graph also returns the number of boxes that count.
//! 2. The graph `choose` takes that many boxes with the highest scores, in descending order, and
//!    builds a matrix of suppression: a box hides each later box of its class that overlaps it too
//!    much.
//! 3. A box is kept if no kept box hides it. The matrix is strictly triangular, so there is exactly
//!    one solution: that of greedy suppression from the head of the list. Each round of `kept = 1 -
//!    kept · matrix` settles at least one more box, in practice nearly all at once. Two equal
//!    rounds are the solution. The graph `go_on` computes further rounds.
//!
//! All three consist of ordinary ops, so every device that runs the model's graphs runs them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Gather, Reduction, TopK};
use panoply_core::{DType, Location, Tensor};
use panoply_inputs::tasks::{BoxForm, BoxLayout, CANDIDATES_MAX, DetectOptions, Detection};
use panoply_models::Context;

use crate::error::{Error, Result};

/// The score of a box that does not count. A score above `SOMETHING_MIN` counts.
const NOTHING: f64 = -1e30;
const SOMETHING_MIN: f64 = -1e29;
/// The largest finite number.
const FINITE_MAX: f64 = 3.4e38;
/// The numbers of boxes that are compared with each other. The smallest that holds all counting
/// boxes is used.
const SIZES: [usize; 4] = [64, 256, 1024, CANDIDATES_MAX];
/// Number of rounds in one graph.
const ROUNDS: usize = 6;
/// The rows of a table: four corners, score, class.
const ROWS: usize = 6;
const SCORE: usize = 4;
const CLASS: usize = 5;
/// The most forms of outputs whose graphs are kept.
const FORMS_MAX: usize = 16;

/// The graphs for the forms seen so far.
#[derive(Default)]
pub(crate) struct Graphs(Mutex<HashMap<(BoxForm, DType), Arc<BoxGraphs>>>);

struct BoxGraphs {
    read: Graph,
    /// The graphs for each of [`SIZES`] that was needed.
    choose: Mutex<HashMap<usize, Arc<(Graph, Graph)>>>,
}

impl Graphs {
    fn of(&self, form: BoxForm, dtype: DType) -> Result<Arc<BoxGraphs>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = known.get(&(form, dtype)) {
            return Ok(Arc::clone(kept));
        }
        if known.len() >= FORMS_MAX {
            known.clear();
        }
        let kept = Arc::new(BoxGraphs { read: read(form, dtype)?, choose: Mutex::default() });
        known.insert((form, dtype), Arc::clone(&kept));
        Ok(kept)
    }

    /// The counting boxes in a model's output that are not suppressed, in descending order of
    /// score, in the model's pixels.
    pub async fn run(&self, context: &Context<'_>, output: &Tensor, options: &DetectOptions) -> Result<Vec<Detection>> {
        let form = BoxForm::of(output.shape().dims())?;
        if form.count == 0 || options.count_max == 0 {
            return Ok(Vec::new());
        }
        let graphs = self.of(form, output.dtype())?;
        let score_min = Tensor::from_vec(vec![options.score_min], [1, 1])?;
        let table = context.run_graph(&graphs.read, &[output, &score_min]).await?;
        let [table, count] = table.as_slice() else { return Err(unexpected("read")) };
        let count = numbers(context, count).await?.first().copied().unwrap_or(0.0) as usize;
        if count == 0 {
            return Ok(Vec::new());
        }
        let size = SIZES.into_iter().find(|size| *size >= count).unwrap_or(CANDIDATES_MAX).min(form.count);
        let chosen = graphs.chosen(form, size)?;
        let (choose, go_on) = &*chosen;
        let overlap_max = Tensor::from_vec(vec![options.overlap_max], [1, 1])?;
        let made = context.run_graph(choose, &[table, &overlap_max]).await?;
        let [found, state, counts, hides] = made.as_slice() else { return Err(unexpected("choose")) };
        let kept = settle(context, go_on, [state, counts, hides], size).await?;
        Ok(detections(&numbers(context, found).await?, &kept, size, options.count_max))
    }
}

impl BoxGraphs {
    fn chosen(&self, form: BoxForm, size: usize) -> Result<Arc<(Graph, Graph)>> {
        let mut known = self.choose.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(graphs) = known.get(&size) {
            return Ok(Arc::clone(graphs));
        }
        let made = Arc::new((choose(form.count, size)?, go_on(size)?));
        known.insert(size, Arc::clone(&made));
        Ok(made)
    }
}

fn unexpected(graph: &str) -> Error {
    Error::invalid("the outputs of a graph", "as many as it has", format!("others, of {graph:?}"))
}

/// A tensor's elements on the host.
async fn numbers(context: &Context<'_>, tensor: &Tensor) -> Result<Vec<f32>> {
    let on_host = match tensor.location() {
        Location::Host => tensor.clone(),
        _ => context.to_host(tensor).await?,
    };
    Ok(on_host.contiguous()?.as_slice::<f32>()?.to_vec())
}

/// Runs rounds until two are equal, and returns which boxes are kept.
async fn settle(
    context: &Context<'_>,
    go_on: &Graph,
    [state, counts, hides]: [&Tensor; 3],
    size: usize,
) -> Result<Vec<f32>> {
    let mut state = state.clone();
    // Each round settles at least one box.
    for _ in 0..=size.div_ceil(ROUNDS) {
        context.in_time()?;
        let mut rounds = numbers(context, &state).await?;
        let before = rounds.split_off(size);
        if rounds == before {
            return Ok(rounds);
        }
        let next = context.run_graph(go_on, &[&state, counts, hides]).await?;
        state = next.into_iter().next().ok_or_else(|| unexpected("go_on"))?;
    }
    Err(Error::invalid("the rounds of a suppression", "an end", "none"))
}

fn detections(found: &[f32], kept: &[f32], size: usize, count_max: usize) -> Vec<Detection> {
    let at = |row: usize, place: usize| found[row * size + place];
    let object = |place: usize| Detection {
        corners: [0, 1, 2, 3].map(|row| at(row, place)),
        class: at(CLASS, place).max(0.0) as usize,
        label: None,
        score: at(SCORE, place),
    };
    (0..size).filter(|place| kept[*place] != 0.0).take(count_max).map(object).collect()
}

fn fixed<const N: usize>(dims: [usize; N]) -> [Dim; N] {
    dims.map(Dim::fixed)
}

/// The numbers from 0 as a constant of this shape.
fn counted(graph: &mut GraphBuilder, dims: [usize; 2]) -> Result<NodeId> {
    let numbers: Vec<f32> = (0..dims[0] * dims[1]).map(|number| number as f32).collect();
    Ok(graph.unnamed_constant(&Tensor::from_vec(numbers, dims)?)?)
}

/// A range of rows of a matrix.
fn rows(graph: &mut GraphBuilder, x: NodeId, start: usize, end: usize) -> Result<NodeId> {
    Ok(graph.slice(x, 0, start, end, 1)?)
}

/// Builds the graph that returns the output as a table of [`ROWS`] rows, and the number of boxes
/// that count.
fn read(form: BoxForm, dtype: DType) -> Result<Graph> {
    let BoxForm { layout, count, width, is_batch } = form;
    let mut g = Graph::builder("read_boxes");
    let dims = if layout == BoxLayout::Across { [1, width, count] } else { [1, count, width] };
    let x = g.input("output", dtype, &fixed(dims)[usize::from(!is_batch)..])?;
    let score_min = g.input("score_min", DType::F32, &fixed([1, 1]))?;
    let x = g.reshape(x, &fixed([dims[1], dims[2]]))?;
    let x = if dtype == DType::F32 { x } else { g.cast(x, DType::F32)? };
    let x = if layout == BoxLayout::Across { x } else { g.permute(x, &[1, 0])? };
    let (score, class) = scores(&mut g, form, x)?;
    let mut sides = Vec::with_capacity(4);
    for side in 0..4 {
        sides.push(rows(&mut g, x, side, side + 1)?);
    }
    let row = counted(&mut g, [ROWS, 1])?;
    let is_centre = layout != BoxLayout::Corners;
    let operands = [row, sides[0], sides[1], sides[2], sides[3], score, class, score_min];
    let table = g.map(&operands, |inputs| entry(inputs, is_centre))?;
    let score = rows(&mut g, table, SCORE, SCORE + 1)?;
    let counts = g.map(&[score], |inputs| inputs[0].clone().gt(SOMETHING_MIN))?;
    let count = g.reduce(Reduction::Sum, counts, &[1])?;
    g.output("table", table)?;
    g.output("count", count)?;
    Ok(g.finish()?)
}

/// The best score of each box and its class, as rows.
fn scores(g: &mut GraphBuilder, form: BoxForm, x: NodeId) -> Result<(NodeId, NodeId)> {
    let BoxForm { layout, count, width, .. } = form;
    let first = if layout == BoxLayout::Down { 5 } else { 4 };
    if layout == BoxLayout::Corners || first == width {
        let score = rows(g, x, SCORE, SCORE + 1)?;
        let class = match layout {
            BoxLayout::Corners => rows(g, x, CLASS, CLASS + 1)?,
            // With one class there is nothing to choose.
            _ => g.unnamed_constant(&Tensor::zeros(DType::F32, [1, count])?)?,
        };
        return Ok((score, class));
    }
    let mut likely = rows(g, x, first, width)?;
    if layout == BoxLayout::Down {
        let certain = rows(g, x, 4, 5)?;
        likely = g.mul(likely, certain)?;
    }
    let score = g.reduce(Reduction::Max, likely, &[0])?;
    let class = g.reduce(Reduction::ArgMax, likely, &[0])?;
    let class = g.cast(class, DType::F32)?;
    Ok((g.reshape(score, &fixed([1, count]))?, g.reshape(class, &fixed([1, count]))?))
}

/// One element of the table, selected by its row: four corners, the score, the class.
fn entry(inputs: &[Expr], is_centre: bool) -> Expr {
    let [row, a, b, c, d, score, class, score_min] = [0, 1, 2, 3, 4, 5, 6, 7].map(|place| inputs[place].clone());
    let [left, top, right, bottom] = match is_centre {
        true => [
            a.clone() - c.clone() * 0.5,
            b.clone() - d.clone() * 0.5,
            a.clone() + c.clone() * 0.5,
            b.clone() + d.clone() * 0.5,
        ],
        false => [a.clone(), b.clone(), c.clone(), d.clone()],
    };
    let finite = |x: &Expr| x.clone().abs().le(FINITE_MAX);
    let counts = finite(&left) * finite(&top) * finite(&right) * finite(&bottom) * score.clone().ge(score_min);
    let score = counts.select(score, NOTHING);
    let is = |number: f64| row.clone().eq(number);
    let low = is(0.0).select(left, is(1.0).select(top, right));
    let high = is(3.0).select(bottom, is(4.0).select(score, class));
    row.clone().lt(3.0).select(low, high)
}

/// Builds the graph that returns the highest-scoring boxes of a table, the states of the first two
/// rounds, the boxes that count, and the suppression matrix.
fn choose(count: usize, size: usize) -> Result<Graph> {
    let mut g = Graph::builder("choose_boxes");
    let table = g.input("table", DType::F32, &fixed([ROWS, count]))?;
    let overlap_max = g.input("overlap_max", DType::F32, &fixed([1, 1]))?;
    let score = rows(&mut g, table, SCORE, SCORE + 1)?;
    let score = g.reshape(score, &fixed([count]))?;
    let (_, places) = g.op_pair(&[score], |tensors| TopK::new(&tensors[0], size))?;
    let found = g.op(&[table, places], |tensors| Gather::new(&tensors[0], &tensors[1], 1))?;
    let score = rows(&mut g, found, SCORE, SCORE + 1)?;
    let counts = g.map(&[score], |inputs| inputs[0].clone().gt(SOMETHING_MIN))?;
    let hides = hidden(&mut g, found, overlap_max, size)?;
    let (kept, before) = rounds(&mut g, counts, counts, hides)?;
    let state = joined(&mut g, kept, before)?;
    for (name, node) in [("found", found), ("state", state), ("counts", counts), ("hides", hides)] {
        g.output(name, node)?;
    }
    Ok(g.finish()?)
}

/// A matrix with 1 if the row's box hides the column's box: it precedes the other box, has the same
/// class, and overlaps it too much.
fn hidden(g: &mut GraphBuilder, found: NodeId, overlap_max: NodeId, size: usize) -> Result<NodeId> {
    let mut nodes = vec![overlap_max, counted(g, [size, 1])?, counted(g, [1, size])?];
    for row in [0, 1, 2, 3, CLASS] {
        let across = rows(g, found, row, row + 1)?;
        nodes.push(g.reshape(across, &fixed([size, 1]))?);
        nodes.push(across);
    }
    let matrix = g.map(&nodes, |inputs| {
        let side = |side: usize, of: usize| inputs[3 + 2 * side + of].clone();
        let area = |left: Expr, top: Expr, right: Expr, bottom: Expr| (right - left).max(0.0) * (bottom - top).max(0.0);
        let own = |of: usize| area(side(0, of), side(1, of), side(2, of), side(3, of));
        let shared = area(
            side(0, 0).max(side(0, 1)),
            side(1, 0).max(side(1, 1)),
            side(2, 0).min(side(2, 1)),
            side(3, 0).min(side(3, 1)),
        );
        let covered = own(0) + own(1) - shared.clone();
        let same = side(4, 0).eq(side(4, 1));
        shared.gt(covered * inputs[0].clone()) * same * inputs[1].clone().lt(inputs[2].clone())
    })?;
    Ok(matrix)
}

/// Runs [`ROUNDS`] rounds. Returns the states of the last two, the last one first.
fn rounds(g: &mut GraphBuilder, state: NodeId, counts: NodeId, hides: NodeId) -> Result<(NodeId, NodeId)> {
    let (mut kept, mut before) = (state, state);
    for _ in 0..ROUNDS {
        before = kept;
        let over = g.matmul(kept, hides)?;
        kept = g.map(&[over, counts], |inputs| inputs[0].clone().lt(0.5) * inputs[1].clone())?;
    }
    Ok((kept, before))
}

/// Stacks two rows to a matrix.
fn joined(g: &mut GraphBuilder, first: NodeId, second: NodeId) -> Result<NodeId> {
    let row = counted(g, [2, 1])?;
    Ok(g.map(&[row, first, second], |inputs| inputs[0].clone().lt(0.5).select(inputs[1].clone(), inputs[2].clone()))?)
}

/// Builds the graph for further rounds.
fn go_on(size: usize) -> Result<Graph> {
    let mut g = Graph::builder("go_on_with_boxes");
    let state = g.input("state", DType::F32, &fixed([2, size]))?;
    let counts = g.input("counts", DType::F32, &fixed([1, size]))?;
    let hides = g.input("hides", DType::F32, &fixed([size, size]))?;
    let state = rows(&mut g, state, 0, 1)?;
    let (kept, before) = rounds(&mut g, state, counts, hides)?;
    let state = joined(&mut g, kept, before)?;
    g.output("state", state)?;
    Ok(g.finish()?)
}
