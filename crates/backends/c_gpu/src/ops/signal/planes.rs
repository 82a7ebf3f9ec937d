//! Convolve2: tiles of outputs, with elements and weights in block memory. Large kernels use
//! spectra of the whole planes, if there is memory for them.

use panoply_core::op::signal::Convolve2;
use panoply_core::{DType, Error, Result, Support, Value};
use panoply_kernels::c::{CONVOLVE, Kernel};

use super::spectra::Planes;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};
use crate::library::TransformKind;

const BLOCK_THREADS: usize = 256;
/// Outputs along each side of a tile.
const TILE: usize = 32;
/// Approximate concurrent blocks per multiprocessor, and the factor for the size of the grid.
const BLOCKS_EACH: usize = 16;
/// Approximate number of real products that cost as much as the spectra do per element.
const PRODUCTS_OF_ELEMENT: usize = 512;
/// Real products per complex product.
const PRODUCTS_OF_COMPLEX: usize = 4;
const COMPLEX_BYTES: usize = DType::Complex64.size_bytes();

/// Weights must have the type of the planes.
pub(super) fn supports(op: &Convolve2) -> Support {
    match op.kernel.dtype() == op.input.dtype() {
        true => Support::Yes,
        false => Support::No("convolve2 has no kernel for complex planes with real weights".to_owned()),
    }
}

pub(super) fn convolve2(op: &Convolve2, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let (source, weights) = (context.input(&op.input)?, context.input(&op.kernel)?);
        let work = PlaneTask::new(op, source, weights);
        let done = match work.is_for_spectra() {
            true => work.by_spectra(output.address, context),
            false => work.by_tiles(output.address, context),
        };
        match done {
            // The output has not been written yet.
            Err(Error::OutOfMemory { .. }) => work.by_tiles(output.address, context)?,
            done => done?,
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Planes and a kernel on the device, rows before columns.
struct PlaneTask {
    dtype: DType,
    source: Address,
    weights: Address,
    planes: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    /// The first row and column of the wanted part of the full convolution.
    first: [usize; 2],
    output: [usize; 2],
    is_turned: bool,
}

impl PlaneTask {
    fn new(op: &Convolve2, source: Address, weights: Address) -> PlaneTask {
        let (dims, kernel) = (op.input.shape(), op.kernel.shape());
        let input = [dims[dims.rank() - 2], dims[dims.rank() - 1]];
        let [(first_row, rows), (first_column, columns)] = op.parts_of_full();
        PlaneTask {
            dtype: op.input.dtype(),
            source,
            weights,
            planes: op.input.elements() / (input[0] * input[1]),
            input,
            kernel: [kernel[0], kernel[1]],
            first: [first_row, first_column],
            output: [rows, columns],
            is_turned: op.correlation,
        }
    }

    fn is_complex(&self) -> bool {
        self.dtype == DType::Complex64
    }

    /// Rows and columns of the transforms.
    fn dims(&self) -> [usize; 2] {
        [0, 1].map(|axis| smooth_len(self.input[axis] + self.kernel[axis] - 1))
    }

    fn is_for_spectra(&self) -> bool {
        let products = if self.is_complex() { PRODUCTS_OF_COMPLEX } else { 1 };
        let direct = [self.kernel[0], self.kernel[1], self.output[0], self.output[1]];
        let direct = direct.into_iter().fold(products, usize::saturating_mul);
        let [height, width] = self.dims();
        direct > height.saturating_mul(width).saturating_mul(PRODUCTS_OF_ELEMENT)
    }

    fn launch_kernel(&self, entry: &'static str) -> Kernel {
        Kernel::new(CONVOLVE, entry).flag("COMPLEX", self.is_complex()).flag("TILES", entry == "convolve_tiles")
    }

    /// Adds the kernels' `shape` structure.
    fn add_to(&self, arguments: Arguments) -> Arguments {
        let turned = [usize::from(self.is_turned), 0];
        arguments.sizes(&[[self.planes, 0], self.input, self.output, self.kernel, self.first, turned])
    }

    fn by_tiles(&self, target: Address, context: &mut Context) -> Result<()> {
        let tiles = self.planes * self.output[0].div_ceil(TILE) * self.output[1].div_ceil(TILE);
        let blocks = tiles.min(context.multiprocessors() * BLOCKS_EACH).max(1);
        let arguments = Arguments::new().address(target).address(self.source).address(self.weights);
        let launch = Launch::new(blocks, BLOCK_THREADS);
        context.launch(&self.launch_kernel("convolve_tiles"), launch, &mut self.add_to(arguments))
    }

    fn by_spectra(&self, target: Address, context: &mut Context) -> Result<()> {
        let [height, width] = self.dims();
        let bins = if self.is_complex() { width } else { width / 2 + 1 };
        let planes = |count| Planes { count, rows: height, columns: width, bins };
        let (padded_bytes, spectrum_bytes) = (height * width * self.dtype.size_bytes(), height * bins * COMPLEX_BYTES);
        let padded_weights = context.scratch(padded_bytes)?;
        let weight_bins = context.scratch(spectrum_bytes)?;
        let padded = context.scratch(self.planes * padded_bytes)?;
        let spectra = context.scratch(self.planes * spectrum_bytes)?;
        self.pad(padded_weights, self.weights, true, context)?;
        let weights = self.spectra(&planes(1), [weight_bins, padded_weights], context)?;
        self.pad(padded, self.source, false, context)?;
        let all = planes(self.planes);
        let turned = self.spectra(&all, [spectra, padded], context)?;
        let (count, each) = (self.planes * height * bins, height * bins);
        let mut arguments = Arguments::new().address(turned).address(weights).u64(count as u64).u64(each as u64);
        let launch = context.blocks(count, BLOCK_THREADS, 2);
        context.launch(&self.launch_kernel("multiply_bins"), launch, &mut arguments)?;
        let between = context.scratch(self.planes * spectrum_bytes)?;
        all.transform_turned(true, between, turned, context)?;
        all.turn_back(turned, between, context)?;
        let kind = if self.is_complex() { TransformKind::Inverse } else { TransformKind::ToReal };
        all.transform_rows(kind, padded, turned, context)?;
        let offset = (self.first[0] * width + self.first[1]) * self.dtype.size_bytes();
        let strides = [(height * width) as isize, width as isize, 1];
        let layout = Layout::new(&[self.planes, self.output[0], self.output[1]], &strides);
        let view = View { address: padded + offset, layout };
        context.copy_view(target, &view, self.dtype, self.planes * self.output[0] * self.output[1])
    }

    /// Computes spectra with rows and columns transposed, and returns their address.
    fn spectra(&self, planes: &Planes, [target, source]: [Address; 2], context: &mut Context) -> Result<Address> {
        let kind = if self.is_complex() { TransformKind::Forward } else { TransformKind::FromReal };
        planes.transform_rows(kind, target, source, context)?;
        planes.transform_columns(false, target, context)
    }

    fn pad(&self, target: Address, source: Address, is_kernel: bool, context: &mut Context) -> Result<()> {
        let [height, width] = self.dims();
        let arguments = self.add_to(Arguments::new().address(target).address(source));
        let mut arguments = arguments.size(height).size(width).u32(u32::from(is_kernel));
        let planes = if is_kernel { 1 } else { self.planes };
        let launch = context.blocks(planes * height * width, BLOCK_THREADS, 2);
        context.launch(&self.launch_kernel("pad_planes"), launch, &mut arguments)
    }
}

/// The smallest length of at least `len` whose prime factors are 2, 3 and 5.
fn smooth_len(len: usize) -> usize {
    let is_smooth = |len: &usize| {
        let without = |mut rest: usize, factor: usize| {
            while rest.is_multiple_of(factor) {
                rest /= factor;
            }
            rest
        };
        [2, 3, 5].into_iter().fold(*len, without) == 1
    };
    (len.max(1)..).find(is_smooth).unwrap_or(len)
}

#[cfg(test)]
mod tests {
    use super::smooth_len;

    #[test]
    fn lengths_of_small_factors_are_found() {
        assert_eq!([1, 7, 11, 121, 1025].map(smooth_len), [1, 8, 12, 125, 1080]);
    }
}
