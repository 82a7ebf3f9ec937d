//! Cases of copies between host memory and device memory.

use std::collections::VecDeque;

use panoply::prelude::{Expr, Map, Tensor, Transfer};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// Batches in flight in an overlapped stream.
const STREAM_DEPTH: usize = 6;

/// All cases of copies.
pub const CASES: &[&dyn Case] = &[
    &UploadCase { pinned: true, bytes: 1 << 30 },
    &UploadCase { pinned: false, bytes: 1 << 30 },
    &DownloadCase { bytes: 1 << 30 },
    &StreamCase { overlapped: false, batches: 64, bytes: 64 << 20 },
    &StreamCase { overlapped: true, batches: 64, bytes: 64 << 20 },
];

/// A copy from host memory to the device.
struct UploadCase {
    pinned: bool,
    bytes: usize,
}

impl Case for UploadCase {
    fn name(&self) -> String {
        format!("upload/{}/{}", if self.pinned { "pinned" } else { "ordinary" }, bytes_name(self.bytes))
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(self.bytes as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Large
    }

    /// Pinned memory is memory that the device itself downloaded into.
    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let mut source = floats(self.bytes)?;
        if self.pinned {
            source = place.run(Transfer::to_host(&place.resident(&source)?)).wait()?;
        }
        let place = place.clone();
        Ok(Box::new(move || {
            let op = Transfer::to_device(&source, place.device.id);
            Ok(place.run(op).with_report().wait()?.report.transferred)
        }))
    }
}

/// A copy from device memory to the host.
struct DownloadCase {
    bytes: usize,
}

impl Case for DownloadCase {
    fn name(&self) -> String {
        format!("download/pinned/{}", bytes_name(self.bytes))
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(self.bytes as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Large
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (source, place) = (place.resident(&floats(self.bytes)?)?, place.clone());
        Ok(Box::new(move || Ok(place.run(Transfer::to_host(&source)).with_report().wait()?.report.transferred)))
    }
}

/// Batches from the host through one kernel and back: one after the other, or overlapped.
struct StreamCase {
    overlapped: bool,
    batches: usize,
    bytes: usize,
}

impl Case for StreamCase {
    fn name(&self) -> String {
        let how = if self.overlapped { "overlapped" } else { "serial" };
        format!("stream/{how}/{}x{}", self.batches, bytes_name(self.bytes))
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(2.0 * (self.batches * self.bytes) as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Large
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let source = place.run(Transfer::to_host(&place.resident(&floats(self.bytes)?)?)).wait()?;
        let (place, batches) = (place.clone(), self.batches);
        let depth = if self.overlapped { STREAM_DEPTH } else { 1 };
        let expr = (Expr::input(0) * 2.0 + 1.0).relu().finish().map_err(panoply::Error::Expression)?;
        Ok(Box::new(move || {
            let mut maps = VecDeque::new();
            let mut downloads = VecDeque::new();
            for batch in 0..batches + depth {
                if batch < batches {
                    maps.push_back(place.run(Map::with_program(&expr, &[&source])));
                }
                if (maps.len() >= depth || batch >= batches)
                    && let Some(map) = maps.pop_front()
                {
                    downloads.push_back(place.run(Transfer::to_host(&map.wait()?)));
                }
                while downloads.len() >= depth || (batch + 1 == batches + depth && !downloads.is_empty()) {
                    if let Some(download) = downloads.pop_front() {
                        download.wait()?;
                    }
                }
            }
            Ok(None)
        }))
    }
}

fn floats(bytes: usize) -> panoply::Result<Tensor> {
    Tensor::from_vec(vec![1.5_f32; bytes / 4], [bytes / 4])
}

fn bytes_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{}GiB", bytes >> 30) } else { format!("{}MiB", bytes >> 20) }
}
