//! Convolutions by a vendor's library. Its engines for 16-bit numbers want the channels of a pixel side by side, so images are turned on
//! the way in and on the way out; which engine, and whether it turns images by itself, is timed when a shape is first seen, with
//! numbers of which the sums are known. That first time waits for the device; later ones do not.

use std::rc::Rc;
use std::time::Duration;

use panoply_core::op::compute::{Activation, ConvShape};
use panoply_core::{DType, Error, Result};
use panoply_kernels::c::activation_number;

use super::trial::Trial;
use super::{around, turn};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, GRID_YZ_MAX, Launch, Stream};
use crate::library::{
    CONVOLUTION_ALIGN_BYTES, ConvolutionKind, ConvolutionPlan, ConvolutionProblem, ConvolutionTensors, Convolutions,
};

/// Below so many products the library's own overhead is the larger part.
const PRODUCTS_MIN: usize = 1 << 22;
/// Filters and channels of a group from which on the library's engines are the faster ones.
const GROUP_MIN: usize = 8;
/// What a plan may ask for besides the tensors.
const WORKSPACE_BYTES_MAX: usize = 2 << 30;
/// Runs of which the fastest counts.
const TIMED_RUNS: usize = 3;
/// `THREADS` of the kernel.
const THREADS: usize = 256;

/// A convolution or a gradient, and where its tensors are.
pub struct Job {
    /// Its sizes.
    pub shape: ConvShape,
    /// The type of its elements.
    pub dtype: DType,
    /// What is computed.
    pub kind: ConvolutionKind,
    /// Where everything is.
    pub tensors: ConvolutionTensors,
    /// What follows.
    pub activation: Activation,
}

/// Memory for one problem.
pub struct Room {
    /// Where images and weights lie turned, if they do.
    turned: Option<ConvolutionTensors>,
    workspace: Address,
    workspace_bytes: usize,
}

/// Queues the job if the library has a plan for it; false says that it has not.
pub fn run(job: &Job, context: &mut Context) -> Result<bool> {
    let driver = Rc::clone(&context.driver);
    let Some(library) = driver.convolutions() else { return Ok(false) };
    if !job.is_eligible() {
        return Ok(false);
    }
    let problem = job.problem(false);
    if context.is_request() {
        // Which plan is best is found out when it is needed, with these kernels.
        return job.request(context).map(|()| false);
    }
    let plan = match library.choice(&problem) {
        Some(plan) => plan,
        None => {
            // What is chosen now serves later ops, also where this one is a rehearsal.
            let plan = match context.lasting(|context| choose(library, job, context)) {
                // It is tried again when there is room; the kernel of ours needs none.
                Err(Error::OutOfMemory { .. }) => return Ok(false),
                chosen => chosen?,
            };
            library.choose(problem, plan.clone());
            plan
        }
    };
    let Some(plan) = plan else { return Ok(false) };
    // The kernel of ours needs no room.
    let Ok(room) = job.room(plan.problem().channels_last, plan.workspace_bytes(), context) else { return Ok(false) };
    if job.queue(&*plan, &room, context)? {
        return Ok(true);
    }
    library.choose(problem, None);
    Ok(false)
}

/// The fastest plan for the job whose sums are right, found by running each.
fn choose(library: &dyn Convolutions, job: &Job, context: &mut Context) -> Result<Option<Rc<dyn ConvolutionPlan>>> {
    let mut best: Option<(Duration, Rc<dyn ConvolutionPlan>)> = None;
    let trial = Trial::new(job, context)?;
    for channels_last in job.layouts() {
        let mut plans = library.plans(&job.problem(channels_last)).unwrap_or_default();
        plans.retain(|plan| plan.workspace_bytes() <= WORKSPACE_BYTES_MAX);
        let Some(bytes) = plans.iter().map(|plan| plan.workspace_bytes()).max() else { continue };
        let Ok(room) = trial.job.room(channels_last, bytes, context) else { continue };
        for plan in plans {
            if let Some(time) = trial.job.time(&*plan, &room, context)?
                && best.as_ref().is_none_or(|(least, _)| time < *least)
                && trial.is_exact(context)?
            {
                best = Some((time, plan));
            }
        }
    }
    Ok(best.map(|(_, plan)| plan))
}

impl Job {
    /// The same with other tensors, and without an activation.
    pub(super) fn with(&self, tensors: ConvolutionTensors) -> Job {
        Job { tensors, activation: Activation::None, ..*self }
    }

    /// Whether a library may be asked for it.
    pub fn is_eligible(&self) -> bool {
        let shape = &self.shape;
        let pixels: usize = shape.output().iter().product();
        let products = shape.batch * pixels * shape.filters * shape.group_channels() * shape.taps();
        let addresses = [self.tensors.input, self.tensors.weights, self.tensors.output];
        let largest = shape.input_len().max(shape.output_len()).max(shape.weight_len());
        let is_half = matches!(self.dtype, DType::F16 | DType::BF16);
        // Where sums were rounded to 16 bits before another function, they would be rounded twice.
        let activates_last = !is_half || matches!(self.activation, Activation::None | Activation::Relu);
        (is_half || self.dtype == DType::F32)
            && products >= PRODUCTS_MIN
            && shape.group_channels().min(shape.group_filters()) >= GROUP_MIN
            && addresses
                .into_iter()
                .chain(self.tensors.bias)
                .all(|address| address.is_multiple_of(CONVOLUTION_ALIGN_BYTES))
            && i32::try_from(largest).is_ok()
            && shape.padding.iter().zip(shape.kernel.iter().chain(&shape.kernel)).all(|(pad, kernel)| pad < kernel)
            && activates_last
    }

    /// Asks for the kernels that a trial and what comes around a plan take.
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

    /// In which layouts plans are looked for: 16-bit engines with channels last, and as images lie where nothing follows.
    pub fn layouts(&self) -> impl Iterator<Item = bool> {
        let fits = self.shape.group_channels().is_multiple_of(8) && self.shape.group_filters().is_multiple_of(8);
        let is_plain = self.tensors.bias.is_none() && self.activation == Activation::None;
        let turned = self.is_half() && fits;
        let as_it_is = !self.is_half() || is_plain;
        [(true, turned), (false, as_it_is)].into_iter().filter(|(_, wanted)| *wanted).map(|(last, _)| last)
    }

    /// The job as a library sees it.
    pub fn problem(&self, channels_last: bool) -> ConvolutionProblem {
        let dims = |dims: [usize; 4]| dims.map(|size| size as i64);
        let [top, left, bottom, right] = dims(self.shape.padding);
        ConvolutionProblem {
            dtype: self.dtype,
            kind: self.kind,
            channels_last,
            input: dims(self.shape.input_dims()),
            weights: dims(self.shape.weight_dims()),
            output: dims(self.shape.output_dims()),
            stride: self.shape.stride.map(|step| step as i64),
            dilation: self.shape.dilation.map(|step| step as i64),
            padding: [[top, left], [bottom, right]],
            // f32 loses nothing where the bias is added by a kernel of ours.
            has_bias: self.is_half() && self.tensors.bias.is_some(),
        }
    }

    /// Memory for plans of this layout that ask for so much.
    pub fn room(&self, channels_last: bool, workspace_bytes: usize, context: &mut Context) -> Result<Room> {
        let workspace = context.scratch(workspace_bytes.max(1))?;
        let turned = if channels_last {
            let bytes = self.dtype.size_bytes();
            Some(ConvolutionTensors {
                input: context.scratch(self.shape.input_len() * bytes)?,
                weights: context.scratch(self.shape.weight_len() * bytes)?,
                output: context.scratch(self.shape.output_len() * bytes)?,
                bias: self.tensors.bias,
            })
        } else {
            None
        };
        Ok(Room { turned, workspace, workspace_bytes })
    }

    /// How long a plan takes with all that belongs to it; nothing where it does not run.
    pub fn time(&self, plan: &dyn ConvolutionPlan, room: &Room, context: &mut Context) -> Result<Option<Duration>> {
        let driver = Rc::clone(&context.driver);
        if !self.queue(plan, room, context)? {
            return Ok(None);
        }
        let (start, stop) = (driver.event()?, driver.event()?);
        let mut least = Duration::MAX;
        for _ in 0..TIMED_RUNS {
            driver.record(start, Stream::Compute)?;
            if !self.queue(plan, room, context)? {
                return Ok(None);
            }
            driver.record(stop, Stream::Compute)?;
            driver.synchronize(Stream::Compute)?;
            least = least.min(driver.between(start, stop)?);
        }
        Ok(Some(least))
    }

    /// Queues everything that the job takes with this plan; false where the library refuses.
    pub fn queue(&self, plan: &dyn ConvolutionPlan, room: &Room, context: &mut Context) -> Result<bool> {
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

    fn turn_inputs(&self, turned: &ConvolutionTensors, context: &mut Context) -> Result<()> {
        for (which, (from, to, dims)) in self.tensors_of(turned).into_iter().enumerate() {
            // The result is not read.
            if which != self.result_index() {
                turn(self.dtype, to, from, [dims[0], dims[1], dims[2] * dims[3]], Activation::None, context)?;
            }
        }
        Ok(())
    }

    fn turn_result(&self, turned: &ConvolutionTensors, context: &mut Context) -> Result<()> {
        let (to, from, dims) = self.tensors_of(turned)[self.result_index()];
        turn(self.dtype, to, from, [dims[0], dims[2] * dims[3], dims[1]], self.activation, context)
    }

    /// Input, weights and output: as they are, turned, and their dimensions.
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

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
