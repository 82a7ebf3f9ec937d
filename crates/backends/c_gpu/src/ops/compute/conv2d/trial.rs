//! Trial data for a library's engines: noise, and exact sums to compare with. Engines do not always
//! report that they round where they should not, so no engine is used for a shape before its sums
//! have been compared.

use panoply_core::op::compute::Activation;
use panoply_core::{DType, Result};

use super::library::{ConvolutionScratch, ConvolutionTask};
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
/// Seeds of the noise of input, weights, output, bias and residual. They are far apart, or else one
/// sequence would contain another.
const SEEDS: [u32; 5] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0xa409_3822, 0x299f_31d0];
/// Maximum number of sums compared, and of the products in them.
const SAMPLES_MAX: usize = 1 << 14;
const PRODUCTS_MAX: usize = 1 << 32;
/// The largest product of two noise numbers.
const PRODUCT_MAX: f32 = 4.0;
/// Share of the tolerance that the trial may use, since other numbers may be worse.
const CAUTION: f32 = 0.75;

/// A job with trial data.
pub struct Trial {
    /// The job, with the trial's tensors.
    pub job: ConvolutionTask,
    product: ConvProduct,
    /// The exact value of one sum in every `step`, in f64.
    exact: Address,
    samples: usize,
    step: u64,
    /// The flag that a kernel sets if a sum is wrong.
    wrong: Address,
}

impl Trial {
    /// Generates the noise and the exact sums.
    pub fn new(job: &ConvolutionTask, context: &mut Context) -> Result<Trial> {
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
        // Odd, so that samples come from everywhere in an image, whose sizes are mostly even.
        let step = (product.elements() / samples - 1) as u64 | 1;
        let (exact, wrong) = (context.workspace(samples * 8)?, context.workspace(4)?);
        let operands = Operands { out: exact, ..Operands::of(job.kind, &tensors) };
        let mut arguments = product.arguments(operands, 1).u64(step);
        context.launch(&product.kernel(EXACT, job.dtype), Launch::new(samples, THREADS), &mut arguments)?;
        Ok(Trial { job: job.with(tensors), product, exact, samples, step, wrong })
    }

    /// Whether the sums that a plan has written to the job's tensors are close enough. Waits for
    /// the device.
    pub fn is_exact(&self, context: &mut Context) -> Result<bool> {
        self.compare(context)?;
        let mut wrong = 0_u32;
        // SAFETY: the target is one number, which is not moved until the stream has been waited
        // for.
        unsafe { context.driver.download((&raw mut wrong).cast(), self.wrong, 4, Stream::Compute)? };
        context.driver.synchronize(Stream::Compute)?;
        Ok(wrong == 0)
    }

    /// Whether a plan propagates NaN.
    pub fn keeps_nan(
        &self,
        plan: &dyn ConvolutionPlan,
        room: &ConvolutionScratch,
        context: &mut Context,
    ) -> Result<bool> {
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
