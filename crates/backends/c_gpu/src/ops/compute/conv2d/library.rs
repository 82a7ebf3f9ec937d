//! Convolutions by a vendor's library. Its engines for 16-bit numbers want channels-last (NHWC)
//! images, so images are transposed on the way in and on the way out. The best engine, and whether
//! it transposes images itself, is determined by timing when a shape is first seen, with test
//! numbers whose sums are known. That first time waits for the device; later runs do not.

use std::rc::Rc;
use std::time::Duration;

use panoply_core::op::compute::{Activation, ConvShape};
use panoply_core::{DType, Error, Result};
use panoply_kernels::c::activation_number;

use super::trial::Trial;
use super::{ConvProduct, Operands, around, turn, widen};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, GRID_YZ_MAX, Launch, Stream};
use crate::library::{
    CONVOLUTION_ALIGN_BYTES, ConvolutionKind, ConvolutionPlan, ConvolutionProblem, ConvolutionTensors, Convolutions,
};

/// Below this many products the library's own overhead dominates.
const PRODUCTS_MIN: usize = 1 << 22;
/// Filters and channels per group from which the library's engines are faster.
const GROUP_MIN: usize = 8;
/// Maximum workspace of a plan, in bytes.
const WORKSPACE_BYTES_MAX: usize = 2 << 30;
/// Number of timed runs; the fastest counts.
const TIMED_RUNS: usize = 3;
/// Channels-last images have channels in multiples of this; fewer are padded with zeros.
const GROUP_CHANNELS: usize = 8;
/// Number of results checked for NaN.
const NAN_SAMPLES: usize = 256;
/// `THREADS` of the kernel.
const THREADS: usize = 256;

/// A convolution or a gradient, with its tensors.
pub struct ConvolutionTask {
    /// Its sizes.
    pub shape: ConvShape,
    /// Type of its elements.
    pub dtype: DType,
    /// The quantity to compute.
    pub kind: ConvolutionKind,
    /// The addresses.
    pub tensors: ConvolutionTensors,
    /// The activation.
    pub activation: Activation,
    /// The tensors that are channels-last already.
    pub lies: ChannelsLastTensors,
    /// Whether the plan fuses bias, residual and activation. True if the output is channels-last.
    pub is_fused: bool,
}

/// The tensors of a job that are channels-last, as the library wants them. A residual has the
/// layout of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelsLastTensors {
    /// The image.
    pub input: bool,
    /// The filters.
    pub weights: bool,
    /// The result.
    pub output: bool,
}

/// The scratch memory for one problem.
pub struct ConvolutionScratch {
    /// The transposed images and weights, if they are transposed.
    turned: Option<ConvolutionTensors>,
    workspace: Address,
    workspace_bytes: usize,
}

/// Queues the job if the library has a plan for it; returns false otherwise.
pub fn run(job: &ConvolutionTask, context: &mut Context) -> Result<bool> {
    let driver = Rc::clone(&context.driver);
    let Some(library) = driver.convolutions() else { return Ok(false) };
    if !job.is_eligible() {
        return Ok(false);
    }
    if job.is_fused && !library.fuses() {
        return Ok(false);
    }
    let problem = job.problem(job.is_fused);
    if context.is_request() {
        // The best plan is determined when it is needed, with these kernels.
        return job.request(context).map(|()| false);
    }
    let plan = match library.choice(&problem) {
        Some(plan) => plan,
        None => {
            // The choice serves later ops, even if this run is a rehearsal.
            let chosen = context.lasting(|context| context.follow_all().and_then(|()| choose(library, job, context)));
            let plan = match chosen {
                // Tried again when there is memory; our own kernel needs none.
                Err(Error::OutOfMemory { .. }) => return Ok(false),
                chosen => chosen?,
            };
            library.choose(problem, plan.clone());
            plan
        }
    };
    let Some(plan) = plan else { return Ok(false) };
    // Without room the op falls back to our own kernel, which needs none.
    let Ok(room) = job.room(plan.problem().channels_last, plan.workspace_bytes(), context) else { return Ok(false) };
    if job.queue(&*plan, &room, context)? {
        return Ok(true);
    }
    library.choose(problem, None);
    Ok(false)
}

/// The fastest plan with correct sums; `None` if our own kernel is faster.
fn choose(
    library: &dyn Convolutions,
    job: &ConvolutionTask,
    context: &mut Context,
) -> Result<Option<Rc<dyn ConvolutionPlan>>> {
    let trial = Trial::new(job, context)?;
    let Some((time, plan)) = tried(library, job, &trial, context)? else { return Ok(None) };
    // Our own kernel does not fuse everything that such a plan does.
    if job.is_fused {
        return Ok(Some(plan));
    }
    let own = trial.job.time_own(context)?;
    Ok((time <= own).then_some(plan))
}

/// A plan and its time.
pub type TimedPlan = (Duration, Rc<dyn ConvolutionPlan>);

/// The fastest plan with correct sums, not compared with our own kernel.
pub fn fastest(library: &dyn Convolutions, job: &ConvolutionTask, context: &mut Context) -> Result<Option<TimedPlan>> {
    let trial = Trial::new(job, context)?;
    tried(library, job, &trial, context)
}

/// Runs every plan for the job on the numbers of a trial.
fn tried(
    library: &dyn Convolutions,
    job: &ConvolutionTask,
    trial: &Trial,
    context: &mut Context,
) -> Result<Option<TimedPlan>> {
    let mut best: Option<TimedPlan> = None;
    for channels_last in job.layouts() {
        let mut plans = library.plans(&job.problem(channels_last)).unwrap_or_default();
        plans.retain(|plan| plan.workspace_bytes() <= WORKSPACE_BYTES_MAX);
        let Some(bytes) = plans.iter().map(|plan| plan.workspace_bytes()).max() else { continue };
        let Ok(room) = trial.job.room(channels_last, bytes, context) else { continue };
        for plan in plans {
            if let Some(time) = trial.job.time(&*plan, &room, context)?
                && best.as_ref().is_none_or(|(least, _)| time < *least)
                && trial.is_exact(context)?
                && trial.keeps_nan(&*plan, &room, context)?
            {
                best = Some((time, plan));
            }
        }
    }
    Ok(best)
}

impl ConvolutionTask {
    /// A job whose tensors have the ops' layout (channels first).
    pub fn new(
        shape: ConvShape,
        dtype: DType,
        kind: ConvolutionKind,
        tensors: ConvolutionTensors,
        activation: Activation,
    ) -> ConvolutionTask {
        ConvolutionTask {
            shape,
            dtype,
            kind,
            tensors,
            activation,
            lies: ChannelsLastTensors::default(),
            is_fused: false,
        }
    }

    /// The same job with other tensors in the ops' layout, and without an activation unless the
    /// plan fuses it.
    pub(super) fn with(&self, tensors: ConvolutionTensors) -> ConvolutionTask {
        let activation = if self.is_fused { self.activation } else { Activation::None };
        ConvolutionTask { tensors, activation, lies: ChannelsLastTensors::default(), ..*self }
    }

    /// Number of channels that the plan sees.
    fn channels(&self) -> usize {
        if self.is_fused { self.shape.channels.next_multiple_of(GROUP_CHANNELS) } else { self.shape.channels }
    }

    /// Whether images of few channels are padded with zero channels.
    fn is_widened(&self) -> bool {
        self.channels() != self.shape.channels
    }

    /// Whether a library may be used.
    pub fn is_eligible(&self) -> bool {
        let shape = &self.shape;
        let pixels: usize = shape.output().iter().product();
        let products = shape.batch * pixels * shape.filters * shape.group_channels() * shape.taps();
        let addresses = [self.tensors.input, self.tensors.weights, self.tensors.output];
        let largest = shape.input_len().max(shape.output_len()).max(shape.weight_len());
        let is_half = matches!(self.dtype, DType::F16 | DType::BF16);
        // Rounding sums to 16 bits before another function would round twice.
        let fused = self.is_fused && self.activation == Activation::Gelu;
        let activates_last = !is_half || fused || matches!(self.activation, Activation::None | Activation::Relu);
        let channels = if self.is_fused { self.channels() } else { shape.group_channels() };
        (is_half || self.dtype == DType::F32)
            && products >= PRODUCTS_MIN
            && channels.min(shape.group_filters()) >= GROUP_MIN
            && (!self.is_fused || self.suits_fusing())
            && addresses
                .into_iter()
                .chain(self.tensors.bias)
                .all(|address| address.is_multiple_of(CONVOLUTION_ALIGN_BYTES))
            && i32::try_from(largest).is_ok()
            && shape.padding.iter().zip(shape.kernel.iter().chain(&shape.kernel)).all(|(pad, kernel)| pad < kernel)
            && activates_last
    }

    /// Whether a plan may fuse everything: 16-bit images in one group, with whole groups of
    /// filters.
    fn suits_fusing(&self) -> bool {
        self.is_half()
            && self.kind == ConvolutionKind::Forward
            && self.shape.groups == 1
            && self.shape.filters.is_multiple_of(GROUP_CHANNELS)
            && self.tensors.residual.is_none_or(|address| address.is_multiple_of(CONVOLUTION_ALIGN_BYTES))
            && (!self.is_widened() || !self.lies.input && !self.lies.weights && self.shape.channels < GROUP_CHANNELS)
    }

    /// Requests the kernels of a trial and those around a plan.
    fn request(&self, context: &mut Context) -> Result<()> {
        let trial = Trial::new(self, context)?;
        trial.compare(context)?;
        if self.layouts().any(|channels_last| channels_last) {
            let turned = trial.job.tensors;
            self.turn_inputs(&turned, context)?;
            self.turn_result(&turned, context)?;
        }
        self.finish(context)
    }

    fn is_half(&self) -> bool {
        self.dtype != DType::F32
    }

    /// The layouts in which plans are searched, as `channels_last` flags: channels-last for 16-bit
    /// engines, and the ops' layout if there is no epilogue.
    pub fn layouts(&self) -> impl Iterator<Item = bool> {
        let channels = if self.is_fused { self.channels() } else { self.shape.group_channels() };
        let fits = channels.is_multiple_of(GROUP_CHANNELS) && self.shape.group_filters().is_multiple_of(GROUP_CHANNELS);
        let is_plain = self.tensors.bias.is_none() && self.activation == Activation::None;
        let turned = self.is_half() && fits;
        let as_it_is = (!self.is_half() || is_plain) && !self.is_fused;
        [(true, turned), (false, as_it_is)].into_iter().filter(|(_, wanted)| *wanted).map(|(last, _)| last)
    }

    /// The problem in the library's terms.
    pub fn problem(&self, channels_last: bool) -> ConvolutionProblem {
        let dims = |dims: [usize; 4]| dims.map(|size| size as i64);
        let [top, left, bottom, right] = dims(self.shape.padding);
        let ([batch, _, height, width], [filters, _, down, across]) =
            (self.shape.input_dims(), self.shape.weight_dims());
        let (input, weights) = match self.is_fused {
            true => ([batch, self.channels(), height, width], [filters, self.channels(), down, across]),
            false => (self.shape.input_dims(), self.shape.weight_dims()),
        };
        ConvolutionProblem {
            dtype: self.dtype,
            kind: self.kind,
            channels_last,
            input: dims(input),
            weights: dims(weights),
            output: dims(self.shape.output_dims()),
            stride: self.shape.stride.map(|step| step as i64),
            dilation: self.shape.dilation.map(|step| step as i64),
            padding: [[top, left], [bottom, right]],
            // In f32 nothing is lost if our own kernel adds the bias.
            has_bias: self.is_half() && self.tensors.bias.is_some(),
            has_residual: self.tensors.residual.is_some(),
            activation: if self.is_fused { self.activation } else { Activation::None },
        }
    }

    /// Memory for plans of this layout with a workspace of this size.
    pub fn room(
        &self,
        channels_last: bool,
        workspace_bytes: usize,
        context: &mut Context,
    ) -> Result<ConvolutionScratch> {
        let workspace = context.workspace(workspace_bytes.max(1))?;
        let turned = if channels_last {
            let bytes = self.dtype.size_bytes();
            let mut place = |lies: bool, own: Address, elements: usize| {
                if lies { Ok(own) } else { context.workspace(elements * bytes) }
            };
            let (lies, tensors, shape) = (self.lies, &self.tensors, &self.shape);
            // Padded tensors have more channels per pixel.
            let wide = |elements: usize| elements / shape.channels.max(1) * self.channels();
            let (input, weights) = if self.is_fused {
                (wide(shape.input_len()), wide(shape.weight_len()))
            } else {
                (shape.input_len(), shape.weight_len())
            };
            Some(ConvolutionTensors {
                input: place(lies.input, tensors.input, input)?,
                weights: place(lies.weights, tensors.weights, weights)?,
                output: place(lies.output, tensors.output, shape.output_len())?,
                bias: tensors.bias,
                residual: tensors.residual.map(|own| place(lies.output, own, shape.output_len())).transpose()?,
            })
        } else {
            None
        };
        Ok(ConvolutionScratch { turned, workspace, workspace_bytes })
    }

    /// The time of a plan including everything around it; `None` if it does not run.
    pub fn time(
        &self,
        plan: &dyn ConvolutionPlan,
        room: &ConvolutionScratch,
        context: &mut Context,
    ) -> Result<Option<Duration>> {
        if !self.queue(plan, room, context)? {
            return Ok(None);
        }
        timed(context, |context| match &room.turned {
            // A fused job needs no transposes outside of the trial, so only the plan is timed.
            Some(turned) if self.is_fused => Ok(plan.run(turned, room.workspace).is_ok()),
            _ => self.queue(plan, room, context),
        })
    }

    /// The time of our own kernel.
    fn time_own(&self, context: &mut Context) -> Result<Duration> {
        let product = ConvProduct::of(self.kind, &self.shape);
        let queue = |context: &mut Context| {
            product.run(self.dtype, Operands::of(self.kind, &self.tensors), context).map(|()| true)
        };
        Ok(timed(context, queue)?.unwrap_or(Duration::MAX))
    }

    /// Queues the whole job with this plan; false if the library refuses.
    pub fn queue(&self, plan: &dyn ConvolutionPlan, room: &ConvolutionScratch, context: &mut Context) -> Result<bool> {
        debug_assert!(plan.workspace_bytes() <= room.workspace_bytes);
        let Some(turned) = &room.turned else {
            let mut tensors = self.tensors;
            if !plan.problem().has_bias {
                tensors.bias = None;
            }
            let ran = plan.run(&tensors, room.workspace).is_ok();
            if ran && (self.tensors.bias.is_some() || self.activation != Activation::None) {
                self.finish(context)?;
            }
            return Ok(ran);
        };
        self.turn_inputs(turned, context)?;
        if plan.run(turned, room.workspace).is_err() {
            return Ok(false);
        }
        self.turn_result(turned, context)?;
        Ok(true)
    }

    /// Transposes to channels-last what the plan reads and is not in that layout.
    fn turn_inputs(&self, turned: &ConvolutionTensors, context: &mut Context) -> Result<()> {
        let lies = [self.lies.input, self.lies.weights, self.lies.output];
        for (which, (from, to, dims)) in self.tensors_of(turned).into_iter().enumerate() {
            // The result is not an input.
            if which == self.result_index() || lies[which] {
                continue;
            }
            let matrices = [dims[0], dims[1], dims[2] * dims[3]];
            match self.is_widened() {
                true => widen(self.dtype, to, from, matrices, context)?,
                false => turn(self.dtype, to, from, matrices, Activation::None, context)?,
            }
        }
        match (self.tensors.residual, turned.residual, self.shape.output_dims()) {
            (Some(from), Some(to), dims) if !self.lies.output => {
                turn(self.dtype, to, from, [dims[0], dims[1], dims[2] * dims[3]], Activation::None, context)
            }
            _ => Ok(()),
        }
    }

    fn turn_result(&self, turned: &ConvolutionTensors, context: &mut Context) -> Result<()> {
        if self.lies.output {
            return Ok(());
        }
        let (to, from, dims) = self.tensors_of(turned)[self.result_index()];
        let activation = if self.is_fused { Activation::None } else { self.activation };
        turn(self.dtype, to, from, [dims[0], dims[2] * dims[3], dims[1]], activation, context)
    }

    /// Whether a plan propagates NaN: an image of only NaN must give only NaN. Waits for the
    /// device.
    pub(super) fn keeps_nan(
        &self,
        plan: &dyn ConvolutionPlan,
        room: &ConvolutionScratch,
        context: &mut Context,
    ) -> Result<bool> {
        let (Some(turned), true) = (&room.turned, self.is_fused && self.activation == Activation::Relu) else {
            return Ok(true);
        };
        let elements = self.shape.input_len() / self.shape.channels.max(1) * self.channels();
        context.fill(turned.input, 0xff, elements * self.dtype.size_bytes())?;
        if plan.run(turned, room.workspace).is_err() {
            return Ok(false);
        }
        let mut results = vec![0_u16; self.shape.output_len().min(NAN_SAMPLES)];
        let target = results.as_mut_ptr().cast();
        // SAFETY: the target holds as many numbers, and is not moved until the stream has been
        // waited for.
        unsafe { context.driver.download(target, turned.output, results.len() * 2, Stream::Compute)? };
        context.driver.synchronize(Stream::Compute)?;
        let infinity = if self.dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
        Ok(results.iter().all(|bits| bits & 0x7fff > infinity))
    }

    /// Input, weights and output: the original and the transposed address, and the dimensions.
    fn tensors_of(&self, turned: &ConvolutionTensors) -> [(Address, Address, [usize; 4]); 3] {
        [
            (self.tensors.input, turned.input, self.shape.input_dims()),
            (self.tensors.weights, turned.weights, self.shape.weight_dims()),
            (self.tensors.output, turned.output, self.shape.output_dims()),
        ]
    }

    fn result_index(&self) -> usize {
        match self.kind {
            ConvolutionKind::Input => 0,
            ConvolutionKind::Weights => 1,
            ConvolutionKind::Forward => 2,
        }
    }

    /// Adds the bias to the output and applies the activation, in place.
    fn finish(&self, context: &mut Context) -> Result<()> {
        let pixels: usize = self.shape.output().iter().product();
        let kernel = around("finish", self.dtype).flag("PAIRS", false);
        let mut arguments = Arguments::new()
            .address(self.tensors.output)
            .address(self.tensors.bias.unwrap_or_default())
            .u64(pixels as u64)
            .size(self.shape.filters)
            .u32(activation_number(self.activation));
        let columns = pixels.div_ceil(THREADS * 4).min(GRID_YZ_MAX);
        let grid = [self.shape.batch * self.shape.filters, columns, 1];
        context.launch(&kernel, Launch::grid(grid, THREADS), &mut arguments)
    }
}

/// The shortest time of several runs, after an uncounted first run; `None` if a run is not queued.
fn timed(context: &mut Context, mut queue: impl FnMut(&mut Context) -> Result<bool>) -> Result<Option<Duration>> {
    let driver = Rc::clone(&context.driver);
    if !queue(context)? {
        return Ok(None);
    }
    let (start, stop) = (driver.event()?, driver.event()?);
    let mut least = Duration::MAX;
    for _ in 0..TIMED_RUNS {
        driver.record(start, Stream::Compute)?;
        if !queue(context)? {
            return Ok(None);
        }
        driver.record(stop, Stream::Compute)?;
        driver.synchronize(Stream::Compute)?;
        least = least.min(driver.between(start, stop)?);
    }
    Ok(Some(least))
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
