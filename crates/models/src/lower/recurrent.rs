//! Recurrent layers with constant weights. The input products of all steps are one product; the
//! steps are a custom kernel.

use std::sync::OnceLock;

use panoply_core::op::compute::{Kernel, KernelCall, MatMul};
use panoply_core::{DType, Shape};

use super::{Arg, Lower, LoweredOutputs, forms};
use crate::array::Array;
use crate::bounds::work;
use crate::element::ElementType;
use crate::error::Result;
use crate::ops::recurrent::{Gates, Layer, RunInputs, RunOutputs};
use crate::ops::sizes;

/// A layer with settings that can be recorded.
#[derive(Clone)]
struct RecurrentLayer {
    gates: Gates,
    reversed: Vec<bool>,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    lengths: Vec<usize>,
}

impl Lower<'_, '_> {
    pub(super) fn recurrent(&mut self) -> LoweredOutputs {
        match self.recurrent_plan()? {
            Some(plan) => self.layer(&plan),
            None => self.kernel(),
        }
    }

    /// The plan of the layer, if its settings are the usual ones.
    fn recurrent_plan(&self) -> Result<Option<RecurrentLayer>> {
        let (Some(w), Some(r)) = (self.fixed(1), self.fixed(2)) else { return Ok(None) };
        let ([steps, batch, input], [directions, rows, width], [r_directions, r_rows, hidden]) =
            (self.dims(0)?, w.dims(), r.dims())
        else {
            return Ok(None);
        };
        let (Some(gates), Some(reversed)) = (self.gates()?, self.reversed()?) else { return Ok(None) };
        let fits = reversed.len() == *directions
            && (r_directions, r_rows, width) == (directions, rows, input)
            && *rows == gates.count() * hidden
            && [*steps, *batch, *input, *hidden].iter().all(|dim| *dim > 0);
        let is_plain = !self.node.attributes.contains_key("clip")
            && !self.call.flag("layout", false)?
            && !self.call.flag("input_forget", false)?
            && !self.is_given(7);
        let is_float =
            |place: usize| !self.is_given(place) || self.kind(place).is_ok_and(|kind| kind == ElementType::F32);
        let floats = [0, 1, 2, 3, 5, 6].into_iter().all(is_float) && r.as_slice::<f32>().is_ok();
        let states = (5..=6).all(|place| {
            !self.is_given(place) || self.dims(place).is_ok_and(|dims| dims == [*directions, *batch, *hidden])
        });
        let biases = !self.is_given(3) || self.fixed(3).is_some_and(|b| b.len() == directions * 2 * rows);
        let Some(lengths) = self.lengths(*steps, *batch)? else { return Ok(None) };
        if !(fits && is_plain && floats && states && biases) {
            return Ok(None);
        }
        work(&[*steps, *batch, *directions, *rows, hidden + input])?;
        let (steps, batch, input, hidden) = (*steps, *batch, *input, *hidden);
        Ok(Some(RecurrentLayer { gates, reversed, steps, batch, input, hidden, lengths }))
    }

    fn lengths(&self, steps: usize, batch: usize) -> Result<Option<Vec<usize>>> {
        match (self.is_given(4), self.fixed(4)) {
            (false, _) => Ok(Some(vec![steps; batch])),
            (true, None) => Ok(None),
            (true, Some(array)) => {
                let lengths = array.to_i64s()?.into_iter().map(|len| usize::try_from(len).ok());
                let lengths: Option<Vec<usize>> = lengths.map(|len| len.filter(|len| *len <= steps)).collect();
                Ok(lengths.filter(|lengths| lengths.len() == batch))
            }
        }
    }

    /// For each direction, whether it runs from the last step to the first.
    fn reversed(&self) -> Result<Option<Vec<bool>>> {
        Ok(match self.call.text("direction", "forward")? {
            "forward" => Some(vec![false]),
            "reverse" => Some(vec![true]),
            "bidirectional" => Some(vec![false, true]),
            _ => None,
        })
    }

    /// The kind of cell, if its activations are the default ones.
    fn gates(&self) -> Result<Option<Gates>> {
        let usual: &[&str] = match self.node.op.as_str() {
            "LSTM" => &["sigmoid", "tanh", "tanh"],
            "GRU" => &["sigmoid", "tanh"],
            _ => &["tanh"],
        };
        let names = self.call.texts("activations")?.unwrap_or_default();
        let all = |usual: &[&str]| {
            names.iter().enumerate().all(|(at, name)| name.eq_ignore_ascii_case(usual[at % usual.len()]))
        };
        Ok(match self.node.op.as_str() {
            "LSTM" if all(usual) => Some(Gates::Lstm),
            "GRU" if all(usual) && self.call.flag("linear_before_reset", false)? => Some(Gates::Gru),
            "RNN" if all(usual) => Some(Gates::Tanh),
            "RNN" if all(&["relu"]) && names.len() == self.reversed()?.map_or(0, |all| all.len()) => Some(Gates::Relu),
            _ => None,
        })
    }

    fn layer(&mut self, plan: &RecurrentLayer) -> LoweredOutputs {
        let RecurrentLayer { gates, steps, batch, input, hidden, .. } = *plan;
        let (Some(w), Some(r)) = (self.fixed(1).cloned(), self.fixed(2).cloned()) else { return Ok(None) };
        let (rows, directions) = (gates.count() * hidden, plan.reversed.len());
        let biases =
            self.fixed(3).map_or(Ok(vec![0.0; directions * 2 * rows]), |b| b.as_slice().map(<[f32]>::to_vec))?;
        let halves = |half: usize| biases.chunks_exact(rows).skip(half).step_by(2).flatten().copied().collect();
        let [of_input, of_state]: [Vec<f32>; 2] = [halves(0), halves(1)];
        let turned = crate::ops::index::transpose(&w.reshape([directions * rows, input])?, &[1, 0])?;
        let weights = self.constant(&turned)?;
        let bias = self.constant(&Array::from_slice(&of_input, [directions * rows])?)?;
        let x = self.id(0)?;
        let x = self.reshape(x, &[steps * batch, input])?;
        let product =
            self.graph().op(&[x, weights, bias], |tensors| MatMul::new(&tensors[0], &tensors[1]).bias(&tensors[2]))?;

        let dims: Vec<Option<Vec<usize>>> =
            self.args.iter().enumerate().map(|(place, _)| self.dims(place).ok().map(<[usize]>::to_vec)).collect();
        let Some(outputs) = sizes::outputs(&self.call, &dims)? else { return Ok(None) };
        let mut nodes = vec![product];
        let has_state = [5, 6].map(|place| !matches!(self.args.get(place), None | Some(Arg::Missing)));
        for place in [5, 6].into_iter().zip(has_state).filter_map(|(place, has)| has.then_some(place)) {
            nodes.push(self.id(place)?);
        }
        // Additional operands of the device code.
        let by_units = crate::ops::index::transpose(&r.reshape([directions, rows, hidden])?, &[0, 2, 1])?;
        nodes.push(self.constant(&by_units)?);
        nodes.push(self.constant(&Array::from_slice(&of_state, [directions * rows])?)?);
        let lengths: Vec<u32> = plan.lengths.iter().map(|len| *len as u32).collect();
        nodes.push(self.constant(&Array::from_slice(&lengths, [batch])?)?);
        let (wants_all, lens) = (self.call.wants(0), [steps, 1].map(|steps| steps * directions * batch * hidden));
        let has_cells = gates == Gates::Lstm;
        let steps_on_cpu =
            OnCpu { layer: OnceLock::new(), plan: plan.clone(), weights: r, biases: of_state, has_state, wants_all };
        let body = move |call: &mut KernelCall<'_>| steps_on_cpu.run(call, lens);
        let mut program = Kernel::on_cpu("recurrent", body).input("sums", DType::F32);
        for (name, has) in ["first_hidden", "first_cells"].into_iter().zip(has_state) {
            program = if has { program.input(name, DType::F32) } else { program };
        }
        program = program.input("weights", DType::F32).input("biases", DType::F32);
        program = program.input("lengths", DType::U32).output("y", DType::F32);
        // The op may omit outputs at the end. The kernel has room for all of them.
        let made = lens[0] + lens[1] * (1 + usize::from(has_cells));
        let is_wide = forms::recurrent_is_wide(gates, hidden);
        let total = made + if is_wide { lens[1] } else { 0 };
        let has_forms = forms::fits(&[total, steps * batch * directions * rows, directions * rows * hidden]);
        if has_forms {
            program = forms::recurrent(program, gates, has_state, is_wide);
        }
        let (program, shape) = (program.build()?, Shape::new([total])?);
        let reversed = plan.reversed.iter().enumerate().map(|(place, is)| usize::from(*is) << place).sum();
        let scalars = [steps, batch, directions, hidden, reversed, usize::from(wants_all)];
        let whole = self.graph().op(&nodes, |tensors| {
            let kernel =
                tensors.iter().fold(Kernel::new(&program), |kernel, tensor| kernel.input(tensor)).output(shape);
            match has_forms {
                true => scalars.iter().fold(kernel, |kernel, value| kernel.scalar(*value as u32)),
                false => kernel,
            }
            .launch(forms::recurrent_launch(batch, directions))
        })?;
        let (mut start, mut parts) = (0, Vec::new());
        for dims in outputs {
            let len: usize = dims.iter().product();
            let part = self.graph().slice(whole, 0, start, start + len, 1)?;
            parts.push((self.reshape(part, &dims)?, ElementType::F32));
            start += len;
        }
        Ok(Some(parts))
    }
}

/// The layer on the CPU, which keeps the weights in an order of its own. They are packed on the
/// first run on the CPU, because other devices do not need them.
struct OnCpu {
    layer: OnceLock<Layer>,
    plan: RecurrentLayer,
    weights: Array,
    biases: Vec<f32>,
    has_state: [bool; 2],
    wants_all: bool,
}

impl OnCpu {
    fn layer(&self) -> Layer {
        let RecurrentLayer { gates, steps, hidden, lengths, reversed, .. } = &self.plan;
        // Recorded layers have weights that can be read as f32.
        let weights = (self.weights.as_slice().unwrap_or_default(), self.biases.as_slice());
        Layer::new(*gates, (*steps, *hidden), lengths.clone(), weights, reversed)
    }

    /// Runs on a kernel's operands: products, followed by the given states. `lens` holds the
    /// lengths of all states and of the last ones.
    fn run(&self, call: &mut KernelCall<'_>, lens: [usize; 2]) -> panoply_core::Result<()> {
        let [has_hidden, has_cells] = self.has_state;
        let sums = call.input::<f32>(0)?;
        let hidden = if has_hidden { Some(call.input::<f32>(1)?) } else { None };
        let cells = if has_cells { Some(call.input::<f32>(1 + usize::from(has_hidden))?) } else { None };
        let (all, rest) = call.output::<f32>(0)?.split_at_mut(lens[0]);
        let (last, kept) = rest.split_at_mut(lens[1]);
        let kept = if self.plan.gates == Gates::Lstm { &mut kept[..lens[1]] } else { &mut [] };
        let mut made = RunOutputs { all: self.wants_all.then_some(all), last, cells: kept };
        self.layer.get_or_init(|| self.layer()).run(&RunInputs { sums, hidden, cells }, &mut made);
        Ok(())
    }
}
