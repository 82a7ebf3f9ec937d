//! Cases of images: convolution and resizing.

use panoply::DType;
use panoply::prelude::{Conv2d, Resize};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// A convolution with as many filters as channels, over square images that keep their size.
#[derive(Clone, Copy)]
pub struct Conv2dCase {
    pub dtype: DType,
    pub batch: usize,
    pub channels: usize,
    pub side: usize,
    pub kernel: usize,
}

impl Case for Conv2dCase {
    fn name(&self) -> String {
        let Conv2dCase { dtype, batch, channels, side, kernel } = self;
        format!("conv2d/{dtype}/{batch}x{channels}x{side}x{side}k{kernel}")
    }

    fn amount(&self) -> Amount {
        let Conv2dCase { batch, channels, side, kernel, .. } = *self;
        Amount::Flops(2.0 * (batch * side * side * channels * channels * kernel * kernel) as f64)
    }

    fn scale(&self) -> Scale {
        if self.batch > 8 { Scale::Large } else { Scale::Medium }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (Conv2dCase { dtype, batch, channels, side, kernel }, mut normals) = (*self, place.normals());
        let images = normals.tensor_of(dtype, [batch, channels, side, side])?;
        let weights = normals.tensor_of(dtype, [channels, channels, kernel, kernel])?;
        place.repeat(Conv2d::new(&images, &weights).padding([kernel / 2; 4]))
    }
}

/// Bilinear resizing of images to squares.
#[derive(Clone, Copy)]
pub struct ResizeCase {
    pub batch: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub side: usize,
}

impl Case for ResizeCase {
    fn name(&self) -> String {
        let ResizeCase { batch, channels, height, width, side } = self;
        format!("resize/f32/{batch}x{channels}x{height}x{width}to{side}")
    }

    fn amount(&self) -> Amount {
        Amount::TimeOnly
    }

    fn scale(&self) -> Scale {
        if self.batch > 8 { Scale::Large } else { Scale::Medium }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let ResizeCase { batch, channels, height, width, side } = *self;
        place.repeat(Resize::new(&place.normals().tensor([batch, channels, height, width])?, side, side))
    }
}
