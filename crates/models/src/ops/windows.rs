//! Windows of convolutions and pools: kernels, strides, padding and the resulting sizes, for any
//! number of dimensions.

use super::call::{Call, size_of_int};
use crate::bounds::{count_of, host_count, work};
use crate::error::{Error, Result};

/// The windows of one op, by dimension.
pub(crate) struct Windows {
    pub input: Vec<usize>,
    pub kernel: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub before: Vec<usize>,
    pub after: Vec<usize>,
    pub output: Vec<usize>,
}

fn sizes(call: &Call<'_>, name: &str, rank: usize, default: usize) -> Result<Vec<usize>> {
    let Some(list) = call.ints(name)? else { return Ok(vec![default; rank]) };
    let list: Vec<usize> = list.iter().map(|size| size_of_int(*size)).collect::<Result<_>>()?;
    match list.len() == rank && (default == 0 || list.iter().all(|size| *size >= default)) {
        true => Ok(list),
        false => Err(Error::invalid(name.to_owned(), format!("{rank} sizes, at least {default}"), format!("{list:?}"))),
    }
}

impl Windows {
    /// The windows of a convolution whose weights have these sizes.
    pub(crate) fn of_conv(call: &Call<'_>, input: &[usize], kernel: &[usize]) -> Result<Windows> {
        Windows::new(call, input, kernel.to_vec(), false)
    }

    /// The windows of a pool. Its kernel size is an attribute.
    pub(crate) fn of_pool(call: &Call<'_>, input: &[usize]) -> Result<Windows> {
        let kernel = sizes(call, "kernel_shape", input.len(), 1)?;
        Windows::new(call, input, kernel, call.flag("ceil_mode", false)?)
    }

    fn new(call: &Call<'_>, input: &[usize], kernel: Vec<usize>, ceil: bool) -> Result<Windows> {
        let rank = input.len();
        if kernel.len() != rank {
            return Err(Error::invalid("a kernel", format!("{rank} sizes"), kernel.len()));
        }
        let (taps, _) = (host_count(&kernel)?, count_of(input)?);
        let (stride, dilation) = (sizes(call, "strides", rank, 1)?, sizes(call, "dilations", rank, 1)?);
        let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
        let auto = call.text("auto_pad", "NOTSET")?;
        if matches!(auto, "NOTSET" | "") {
            let pads = sizes(call, "pads", 2 * rank, 0)?;
            before.copy_from_slice(&pads[..rank]);
            after.copy_from_slice(&pads[rank..]);
        }
        let mut output = Vec::new();
        for axis in 0..rank {
            let span = kernel[axis].saturating_sub(1).saturating_mul(dilation[axis]).saturating_add(1);
            if kernel[axis] == 0 {
                return Err(Error::invalid("a kernel", "at least 1", 0));
            }
            if matches!(auto, "SAME_UPPER" | "SAME_LOWER") {
                let size = input[axis].div_ceil(stride[axis]);
                let total = (size.saturating_sub(1) * stride[axis] + span).saturating_sub(input[axis]);
                let (less, more) = (total / 2, total - total / 2);
                (before[axis], after[axis]) = if auto == "SAME_UPPER" { (less, more) } else { (more, less) };
                output.push(size);
                continue;
            }
            if !matches!(auto, "NOTSET" | "" | "VALID") {
                return Err(Error::invalid("auto_pad", "NOTSET, VALID, SAME_UPPER or SAME_LOWER", auto));
            }
            let padded = input[axis].saturating_add(before[axis]).saturating_add(after[axis]);
            let Some(room) = padded.checked_sub(span) else {
                return Err(Error::invalid("a kernel", format!("at most the padded {padded}"), span));
            };
            let mut size = if ceil { room.div_ceil(stride[axis]) + 1 } else { room / stride[axis] + 1 };
            // A window must not begin after the end of the padded image.
            if ceil && (size - 1) * stride[axis] >= input[axis] + before[axis] {
                size -= 1;
            }
            output.push(size);
        }
        work(&[count_of(&output)?, taps])?;
        Ok(Windows { input: input.to_vec(), kernel, stride, dilation, before, after, output })
    }

    /// The number of elements by which the last windows reach beyond the image.
    pub(crate) fn reach(&self) -> Vec<usize> {
        let reach = |axis: usize| {
            let end =
                (self.output[axis].max(1) - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            end.saturating_sub(self.input[axis] + self.before[axis])
        };
        (0..self.input.len()).map(reach).collect()
    }

    /// Visits the taps of an output that lie inside the input: the position in the input and the
    /// tap's number.
    pub(crate) fn taps(&self, output: &[usize], visit: &mut dyn FnMut(usize, usize)) {
        let rank = self.input.len();
        let count: usize = self.kernel.iter().product();
        for tap in 0..count {
            let (mut rest, mut place, mut stride, mut inside) = (tap, 0, 1, true);
            for axis in (0..rank).rev() {
                let offset = rest % self.kernel[axis] * self.dilation[axis];
                rest /= self.kernel[axis];
                let at = (output[axis] * self.stride[axis] + offset).checked_sub(self.before[axis]);
                match at.filter(|at| *at < self.input[axis]) {
                    Some(at) => place += at * stride,
                    None => inside = false,
                }
                stride *= self.input[axis];
            }
            if inside {
                visit(tap, place);
            }
        }
    }

    /// The multi-indices of all outputs, in order.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        let count: usize = self.output.iter().product();
        (0..count).map(|place| {
            let mut rest = place;
            let mut index = vec![0; self.output.len()];
            for axis in (0..index.len()).rev() {
                index[axis] = rest % self.output[axis];
                rest /= self.output[axis];
            }
            index
        })
    }

    /// Number of a window's taps inside the padded image, the divisor of an average that includes
    /// padding.
    pub(crate) fn counted(&self, output: &[usize]) -> usize {
        let along = |axis: usize| {
            let padded = self.input[axis] + self.before[axis] + self.after[axis];
            let start = output[axis] * self.stride[axis];
            (0..self.kernel[axis]).filter(|tap| start + tap * self.dilation[axis] < padded).count()
        };
        (0..self.input.len()).map(along).product()
    }
}
