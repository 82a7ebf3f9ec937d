//! Compiled kernels of one device: each is compiled when it is first launched, and then found by its name and parameters
//! without touching the heap. Where kernels run emulated and NVRTC is installed, each is compiled for CUDA as well, so that a
//! machine without a GPU finds what would not compile for one.

use std::collections::HashMap;

use panoply_core::{DeviceId, Result};
use panoply_kernels::c::{Dialect, Kernel};

use crate::driver::compiler::Compiler;
use crate::driver::{Driver, Function};

/// The architecture that emulated kernels are also compiled for.
const CHECKED_CAPABILITY: u32 = 90;

pub(crate) struct Kernels {
    device: DeviceId,
    dialect: Dialect,
    checker: Option<Compiler>,
    loaded: HashMap<Kernel, Function>,
}

impl Kernels {
    pub(crate) fn new(device: DeviceId, dialect: Dialect) -> Kernels {
        let checks = dialect == Dialect::Host && Compiler::is_present();
        let checker = checks.then(|| Compiler::new(String::new(), CHECKED_CAPABILITY));
        Kernels { device, dialect, checker, loaded: HashMap::new() }
    }

    /// The kernel, compiled and loaded.
    pub(crate) fn get(&mut self, driver: &dyn Driver, kernel: &Kernel) -> Result<Function> {
        if let Some(function) = self.loaded.get(kernel) {
            return Ok(*function);
        }
        if let Some(checker) = &self.checker {
            checker.compile(self.device, &kernel.name(), &kernel.source(Dialect::Cuda))?;
        }
        let function = driver.load(&kernel.name(), &kernel.source(self.dialect), kernel.entry)?;
        self.loaded.insert(kernel.clone(), function);
        Ok(function)
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::{Api, DType};
    use panoply_kernels::c::{
        COLOR, CONV, FFT, FFT_TILES, GATHER, INTERPRET, LAYERNORM, MATMUL, MATMUL_TILES, NORMALIZE, POOL, REDUCE,
        RESIZE, SCAN, SEARCH_PACK, SOFTMAX, SORT, STRIDED, UNITS,
    };

    use super::*;

    /// One kernel of each unit, with the parameters of an everyday launch.
    fn representatives() -> Vec<Kernel> {
        let f32_rows = |unit, entry, mode| {
            let kernel = Kernel::new(unit, entry).dtype("T", DType::F32).integer("GROUP", 32).integer("ITEMS", 8);
            kernel.integer("VECTOR", 4).integer("VECTOR_BYTES", 16).flag(mode, true)
        };
        let f32 = |unit, entry| Kernel::new(unit, entry).dtype("T", DType::F32);
        vec![
            f32(MATMUL, "matmul")
                .dtype("R", DType::F32)
                .dtype("S", DType::F32)
                .integer("BIAS", 0)
                .integer("ACTIVATION", 0)
                .flag("HAS_C", false),
            f32(MATMUL_TILES, "matmul_tiles")
                .dtype("R", DType::F32)
                .integer("TILE_M", 64)
                .flag("A_DEEP", true)
                .flag("B_DEEP", false)
                .integer("BIAS", 1)
                .integer("ACTIVATION", 1)
                .flag("HAS_C", true),
            Kernel::new(STRIDED, "gather_view").word("T", "u32x4").flag("GATHER_VIEW", true),
            Kernel::new(STRIDED, "transpose_tiles").word("T", "u16").integer("TILE", 64),
            Kernel::new(INTERPRET, "interpret"),
            f32(REDUCE, "rows")
                .dtype("R", DType::U32)
                .integer("OPERATION", 4)
                .integer("VECTOR", 4)
                .integer("VECTOR_BYTES", 16)
                .flag("ROWS", true)
                .flag("FLAT", true)
                .flag("BLOCKS", true),
            f32(SCAN, "scan_long")
                .integer("KIND", 0)
                .integer("THREADS", 256)
                .integer("ITEMS", 11)
                .integer("VECTOR", 4)
                .integer("VECTOR_BYTES", 16)
                .flag("REVERSED", false)
                .flag("EXCLUSIVE", false)
                .flag("LONG", true),
            f32_rows(SOFTMAX, "softmax_rows", "ROWS").flag("IS_LOG", false),
            f32_rows(LAYERNORM, "layernorm_rows", "ROWS"),
            Kernel::new(FFT, "butterfly").integer("RADIX", 4),
            Kernel::new(GATHER, "gather").word("T", "u64").dtype("I", DType::I32),
            Kernel::new(NORMALIZE, "normalize")
                .dtype("T", DType::U8)
                .dtype("R", DType::F16)
                .integer("VECTOR", 4)
                .integer("T_VECTOR_BYTES", 4)
                .integer("R_VECTOR_BYTES", 8),
        ]
    }

    /// The same of images, convolutions, sorts and searches.
    fn further_representatives() -> Vec<Kernel> {
        let f32 = |unit, entry| Kernel::new(unit, entry).dtype("T", DType::F32);
        vec![
            Kernel::new(COLOR, "convert").dtype("T", DType::U8).integer("SIDE", 2).word("INDEX", "u32"),
            f32(CONV, "convolve")
                .word("POS", "i32")
                .word("INDEX", "u32")
                .flag("DIVIDES", false)
                .integer("ACTIVATION", 0)
                .flag("BIAS", true)
                .flag("PARTS", false),
            Kernel::new(FFT, "butterfly").integer("RADIX", 8),
            Kernel::new(FFT_TILES, "fft_tiles")
                .integer("LEN", 2048)
                .integer("LINES", 8)
                .flag("INVERSE", true)
                .flag("FIRST", true)
                .integer("BLOCKS", 1),
            f32(POOL, "pool").word("INDEX", "u32").flag("MAX", true).flag("COUNT_PADDING", false).integer("LANES", 1),
            f32(RESIZE, "resize").flag("MODE_NEAREST", true).integer("ROWS", 4).word("INDEX", "u32"),
            f32(SORT, "sort_lines")
                .flag("FALLS", false)
                .integer("V_BYTES", 0)
                .flag("POSITIONS", false)
                .flag("KEYS_OUT", true)
                .flag("SHORT", true),
            Kernel::new(SEARCH_PACK, "pack_rows").word("T", "u32").integer("THREADS", 256),
        ]
    }

    #[test]
    fn every_unit_compiles_for_cuda() {
        let kernels = [representatives(), further_representatives()].concat();
        for unit in UNITS {
            let start = format!("{}/", unit.name);
            assert!(kernels.iter().any(|kernel| kernel.name().starts_with(&start)), "no kernel of {} here", unit.name);
        }
        if !Compiler::is_present() {
            return println!("skipped: NVRTC is not installed, so that no kernel can be compiled for CUDA");
        }
        let compiler = Compiler::new(String::new(), CHECKED_CAPABILITY);
        let device = DeviceId { api: Api::CUDA, index: 0 };
        for kernel in kernels {
            let compiled = compiler.compile(device, &kernel.name(), &kernel.source(Dialect::Cuda));
            assert!(compiled.is_ok_and(|image| !image.is_empty()), "{} does not compile", kernel.name());
        }
    }
}
