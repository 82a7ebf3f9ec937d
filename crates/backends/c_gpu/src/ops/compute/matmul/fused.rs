//! Products of 16-bit numbers with a residual or a fused activation, by the vendor's convolutions.
//! A product is a convolution of channels-last images of one column with a kernel of one pixel. The
//! convolutions apply the whole epilogue before rounding. Whether that is faster than the library
//! for products, followed by our own epilogue kernel, is timed when a shape is first seen.

use std::rc::Rc;
use std::time::Duration;

use panoply_core::op::compute::{Activation, ConvOptions, ConvShape};
use panoply_core::{DType, Error, Result};

use super::{Product, TIMED_RUNS};
use crate::context::Context;
use crate::driver::Stream;
use crate::library::{ConvolutionKind, ConvolutionTensors, Order};
use crate::ops::compute::conv2d::library::{self, ChannelsLastTensors, ConvolutionTask};

impl Product<'_> {
    /// Runs the product through the library for convolutions. Returns false if the library does not
    /// support the product, or is slower.
    pub(super) fn by_convolution(&self, context: &mut Context) -> Result<bool> {
        let driver = Rc::clone(&context.driver);
        let Some(library) = driver.convolutions().filter(|library| library.fuses()) else { return Ok(false) };
        let Some(job) = self.as_convolution().filter(ConvolutionTask::is_eligible) else { return Ok(false) };
        let problem = job.problem(true);
        if library.choice(&problem).is_none() && !context.is_request() {
            let plan = context.lasting(|context| -> Result<_> {
                context.follow_all()?;
                let own = self.time_of_products(context)?;
                match library::fastest(library, &job, context) {
                    Err(Error::OutOfMemory { .. }) => Ok(None),
                    best => Ok(best?.filter(|(time, _)| own.is_none_or(|own| *time < own)).map(|(_, plan)| plan)),
                }
            })?;
            library.choose(problem, plan);
        }
        library::run(&job, context)
    }

    /// The product as a convolution; `None` if it has no suitable epilogue, or its layout does not
    /// fit.
    fn as_convolution(&self) -> Option<ConvolutionTask> {
        let (op, shape) = (self.op, &self.shape);
        let is_half = matches!(op.a.dtype(), DType::F16 | DType::BF16);
        let follows = self.c.is_some() || matches!(op.activation, Activation::Relu | Activation::Gelu);
        let has_factors = op.alpha != 1.0 || self.c.is_some() && op.beta != 1.0;
        if !is_half || !follows || has_factors || self.bias_kind() > 1 {
            return None;
        }
        let (a, b) = (self.a.matrix([shape.m, shape.k])?, self.b.matrix([shape.k, shape.n])?);
        let batches = shape.batch.elements();
        let (rows, k) = (shape.m as i64, shape.k as i64);
        let is_dense = a.order == Order::Rows && a.step == k && (batches == 1 || a.batch_step == rows * k);
        let is_turned = b.order == Order::Columns && b.step == k && (batches == 1 || b.batch_step == 0);
        let residual = match &self.c {
            Some(_) => Some(self.addend_in_place()?),
            None => None,
        };
        if !is_dense || !is_turned {
            return None;
        }
        let (images, filters) = ([batches, shape.k, shape.m, 1], [shape.n, shape.k, 1, 1]);
        let shape = ConvShape::new(images, filters, &ConvOptions::default()).ok()?;
        let tensors = ConvolutionTensors {
            input: self.a.address,
            weights: self.b.address,
            output: self.output,
            bias: self.bias,
            residual,
        };
        let lies = ChannelsLastTensors { input: true, weights: true, output: true };
        let job = ConvolutionTask::new(shape, op.a.dtype(), ConvolutionKind::Forward, tensors, op.activation);
        Some(ConvolutionTask { lies, is_fused: true, ..job })
    }

    /// The time of the product by the library for products, including the epilogue; `None` if that
    /// library does not support the product.
    fn time_of_products(&self, context: &mut Context) -> Result<Option<Duration>> {
        let driver = Rc::clone(&context.driver);
        if !self.by_library(context)? {
            return Ok(None);
        }
        let (start, stop) = (driver.event()?, driver.event()?);
        let mut least = Duration::MAX;
        for _ in 0..TIMED_RUNS {
            driver.record(start, Stream::Compute)?;
            self.by_library(context)?;
            driver.record(stop, Stream::Compute)?;
            driver.synchronize(Stream::Compute)?;
            least = least.min(driver.between(start, stop)?);
        }
        Ok(Some(least))
    }
}
