//! What a library's engines are tried with: numbers like any others, and sums of them that are known. Engines do not always say when
//! they round what they should not, so none is used for a shape before its sums have been compared.

use panoply_core::op::compute::Activation;
use panoply_core::{DType, Result};

use super::library::{Job, Room};
use super::{ConvProduct, Operands};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch, Stream};
use crate::library::{ConvolutionPlan, ConvolutionTensors};

/// The kernels.
const NOISE: (&str, &str) = ("noise", "TRIAL");
const EXACT: (&str, &str) = ("exact_sums", "TRIAL");
const COMPARE: (&str, &str) = ("compare_sums", "TRIAL");
const THREADS: usize = 256;
/// What tells the noise of input, weights, output, bias and residual from each other: far apart, else one would be a part of another.
const SEEDS: [u32; 5] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0xa409_3822, 0x299f_31d0];
/// The most sums that are compared, and the most products of which they are made.
const SAMPLES_MAX: usize = 1 << 14;
const PRODUCTS_MAX: usize = 1 << 32;
/// The largest product of two numbers of the noise.
const PRODUCT_MAX: f32 = 4.0;
/// The share of what is allowed that the trial's numbers may be off: others may be worse.
const CAUTION: f32 = 0.75;

/// A job with numbers of its own.
pub struct Trial {
    /// The job, with the trial's tensors.
    pub job: Job,
    product: ConvProduct,
    /// One sum of every `step`, in f64.
    exact: Address,
    samples: usize,
    step: u64,
    /// Where kernels say that a sum is wrong.
    wrong: Address,
}

impl Trial {
    /// Makes the numbers and the sums.
    pub fn new(job: &Job, context: &mut Context) -> Result<Trial> {
        let product = ConvProduct::of(job.kind, &job.shape);
        let activation = if job.is_fused { job.activation } else { Activation::None };
        let product = ConvProduct { activation, ..product };
        let mut tensor = |elements: usize, seed: u32| {
            let address = context.workspace(elements * job.dtype.size_bytes())?;
            let kernel = product.kernel(NOISE, job.dtype);
            let mut arguments = Arguments::new().address(address).u64(elements as u64).u32(seed);
            let launch = context.blocks(elements, THREADS, 4);
            context.launch(&kernel, launch, &mut arguments).map(|()| address)
        };
        let tensors = ConvolutionTensors {
            input: tensor(job.shape.input_len(), SEEDS[0])?,
            weights: tensor(job.shape.weight_len(), SEEDS[1])?,
            output: tensor(job.shape.output_len(), SEEDS[2])?,
            bias: job.tensors.bias.map(|_| tensor(job.shape.filters, SEEDS[3])).transpose()?,
            residual: job.tensors.residual.map(|_| tensor(job.shape.output_len(), SEEDS[4])).transpose()?,
        };
        let samples = product.elements().min(SAMPLES_MAX).min(PRODUCTS_MAX / product.terms().max(1)).max(1);
        // Odd, so that samples come from everywhere in an image: its sizes are even more often than not.
        let step = (product.elements() / samples - 1) as u64 | 1;
        let (exact, wrong) = (context.workspace(samples * 8)?, context.workspace(4)?);
        let operands = Operands { out: exact, ..Operands::of(job.kind, &tensors) };
        let mut arguments = product.arguments(operands, 1).u64(step);
        context.launch(&product.kernel(EXACT, job.dtype), Launch::new(samples, THREADS), &mut arguments)?;
        Ok(Trial { job: job.with(tensors), product, exact, samples, step, wrong })
    }

    /// Whether the sums that a plan has left in the job's tensors are close enough. Waits for the device.
    pub fn is_exact(&self, context: &mut Context) -> Result<bool> {
        self.compare(context)?;
        let mut wrong = 0_u32;
        // SAFETY: the target is one number, which stays where it is until the stream has been waited for.
        unsafe { context.driver.download((&raw mut wrong).cast(), self.wrong, 4, Stream::Compute)? };
        context.driver.synchronize(Stream::Compute)?;
        Ok(wrong == 0)
    }

    /// Whether a plan lets what is no number through.
    pub fn keeps_nan(&self, plan: &dyn ConvolutionPlan, room: &Room, context: &mut Context) -> Result<bool> {
        self.job.keeps_nan(plan, room, context)
    }

    /// Queues the comparison.
    pub(super) fn compare(&self, context: &mut Context) -> Result<()> {
        let relative = match self.job.dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            _ => 1e-6,
        };
        let absolute = CAUTION * PRODUCT_MAX * f32::EPSILON * (self.product.terms() as f32 + 4.0);
        context.fill(self.wrong, 0, 4)?;
        let mut arguments = Arguments::new()
            .address(self.wrong)
            .address(Operands::of(self.job.kind, &self.job.tensors).out)
            .address(self.exact)
            .address(self.job.tensors.residual.unwrap_or_default())
            .structure(&self.product.words(1))
            .structure(&self.product.words_of_n())
            .u64(self.step)
            .size(self.samples)
            .f32(relative)
            .f32(absolute);
        let launch = Launch::new(self.samples.div_ceil(THREADS), THREADS);
        context.launch(&self.product.kernel(COMPARE, self.job.dtype), launch, &mut arguments)
    }
}
