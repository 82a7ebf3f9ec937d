//! Checks every kernel of the suite without a device. A driver that computes nothing compiles each
//! text with naga, validates it, and translates it to SPIR-V, as a direct Vulkan backend would, and
//! to Metal's language, as wgpu does on a Mac.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use panoply_conformance::cases;
use panoply_core::op::compute::{Metric, Reduction, ScanKind, Transfer};
use panoply_core::{
    Api, DType, DeviceId, DeviceInfo, DeviceKind, Engine, ErrorKind, Item, MemoryLimits, Op, Operation, Result, Tensor,
};
use panoply_kernels::warm::GrowingSet;
use panoply_kernels::wgsl::{
    Epilogue, Kernel, ListKernel, Load, RadixKernel, RadixStep, ReduceForm, ReduceKernel, RowForm, RowKernel, RowOp,
    ScanForm, ScanKernel, SearchKernel, WideKernel, WideSource, WideTarget, with_immediates,
};

use crate::driver::{BoundRange, BufferOffset, Direction, Fence, KernelText, Params, Transfers};
use crate::engine::{GpuEngine, Opening};
use crate::fault::Faults;
use crate::profile::{Profile, WideMatrices};
use crate::tuning::{LARGE_TILES, WIDE_TILES};
use crate::{Commands, Driver, Staging, ops};

#[path = "metal_tests.rs"]
mod metal;

/// The texts with their results, shared by several devices: the text in Metal's language, `None` if
/// Metal is never given the kernel.
type CheckedTexts = Rc<RefCell<HashMap<String, Result<Option<String>, String>>>>;

/// A device that only compiles.
struct Checker {
    faults: Arc<Faults>,
    checked: CheckedTexts,
    last: Rc<Cell<u64>>,
}

/// Plain host memory.
struct Memory(Box<[u64]>);

/// The number of the last submission.
struct Nothing(Rc<Cell<u64>>);

impl Driver for Checker {
    type Buffer = u64;
    type Pipeline = ();
    type Bindings = ();
    type Staging = Memory;
    type Commands = Nothing;

    fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    fn transfers(&self) -> Transfers {
        Transfers { chunk_bytes: 1 << 20, chunks: 2, copiers_max: 1 }
    }

    fn buffer(&self, bytes: u64) -> Result<u64> {
        Ok(bytes)
    }

    fn pipeline(&self, kernel: &KernelText<'_>) -> Result<()> {
        let mut checked = self.checked.borrow_mut();
        let known = checked.entry(kernel.source.to_owned()).or_insert_with(|| check(kernel.source));
        match known {
            Ok(_) => Ok(()),
            Err(reason) => Err(self.faults.fault(reason.clone())),
        }
    }

    fn bindings(&self, (): &(), bound: &[BoundRange<'_, Checker>]) {
        for BoundRange { buffer, offset, bytes } in bound {
            assert!(offset + bytes <= **buffer && offset.is_multiple_of(256), "{bytes} at {offset} of {buffer}");
        }
    }

    fn staging(&self, bytes: u64, _direction: Direction) -> Result<Memory> {
        Ok(Memory(vec![0; bytes.div_ceil(8) as usize].into()))
    }

    fn commands(&self) -> Nothing {
        Nothing(Rc::clone(&self.last))
    }

    fn is_past(&self, Fence(number): Fence) -> bool {
        number <= self.last.get()
    }

    fn look(&self) {}

    fn wait(&self, _fence: Fence, _wait_max: Duration) {}
}

impl Commands<Checker> for Nothing {
    fn dispatch(&mut self, (): &(), (): &(), _params: Params<'_>, [x, y, _]: [u32; 3]) {
        assert!(x > 0 && y > 0, "an empty dispatch");
    }

    fn copy(&mut self, from: BufferOffset<'_, u64>, to: BufferOffset<'_, u64>, bytes: u64) {
        assert!(from.offset + bytes <= *from.buffer && to.offset + bytes <= *to.buffer);
    }

    fn clear(&mut self, target: BufferOffset<'_, u64>, bytes: u64) {
        assert!(target.offset + bytes <= *target.buffer);
    }

    fn upload(&mut self, from: BufferOffset<'_, Memory>, to: BufferOffset<'_, u64>, bytes: u64) {
        assert!(from.offset + bytes <= from.buffer.len_bytes() && to.offset + bytes <= *to.buffer);
    }

    fn download(&mut self, from: BufferOffset<'_, u64>, to: BufferOffset<'_, Memory>, bytes: u64) {
        assert!(from.offset + bytes <= *from.buffer && to.offset + bytes <= to.buffer.len_bytes());
    }

    fn start_timing(&mut self) -> bool {
        false
    }

    fn end_timing(&mut self, _to: &Memory) -> Option<usize> {
        None
    }

    fn stamp_nanoseconds(&self) -> f64 {
        1.0
    }

    fn submit(&mut self, _params: Option<(BufferOffset<'_, Memory>, u64)>) -> Fence {
        self.0.set(self.0.get() + 1);
        Fence(self.0.get())
    }

    fn discard(&mut self) {}
}

impl Staging for Memory {
    fn len_bytes(&self) -> u64 {
        8 * self.0.len() as u64
    }

    fn start(&self) -> Result<NonNull<u8>> {
        Ok(NonNull::from(&*self.0).cast())
    }

    fn is_kept(&self) -> bool {
        false
    }

    fn hand_over(&self) {}

    fn call_back(&self) {}

    fn is_back(&self) -> bool {
        true
    }
}

/// Translates WGSL to SPIR-V and to Metal's language. The error says why that fails.
fn check(source: &str) -> Result<Option<String>, String> {
    let told = |error: &dyn std::fmt::Display| format!("{error}\n{source}");
    let module = naga::front::wgsl::parse_str(source).map_err(|error| told(&error.emit_to_string(source)))?;
    let flags = naga::valid::ValidationFlags::all();
    let mut validator = naga::valid::Validator::new(flags, naga::valid::Capabilities::all());
    let info = validator.validate(&module).map_err(|error| told(&error.emit_to_string(source)))?;
    let options = naga::back::spv::Options { lang_version: (1, 6), ..Default::default() };
    let words = naga::back::spv::write_vec(&module, &info, &options, None).map_err(|error| told(&error))?;
    if words.is_empty() {
        return Err(told(&"no SPIR-V"));
    }
    metal::translate(&module, &info).map_err(|reason| told(&reason))
}

/// All kinds of devices: software, with subgroups of several sizes and without, with matrix units,
/// with parameters in the dispatch and in a buffer, with few buffers, and with small buffers.
fn profiles() -> Vec<Profile> {
    let id = DeviceId { api: Api::WGPU, index: 0 };
    let plain = Profile {
        id,
        name: "Checker".to_owned(),
        driver: "naga".to_owned(),
        binding_bytes_max: 1 << 27,
        buffer_bytes_max: 1 << 30,
        workgroup_bytes_max: 49_152,
        buffers_max: 16,
        immediate_words_max: 0,
        params_step_bytes: 256,
        is_software: true,
        subgroup_lanes: None,
        matrix_units: false,
        wide_matrices: WideMatrices::default(),
        quirks: &[],
    };
    let hardware =
        |lanes| Profile { is_software: false, subgroup_lanes: lanes, immediate_words_max: 64, ..plain.clone() };
    vec![
        Profile { matrix_units: true, ..hardware(Some(32)) },
        Profile { wide_matrices: WideMatrices { f16: true, bf16: true }, ..hardware(Some(32)) },
        Profile { binding_bytes_max: 1 << 16, buffers_max: 4, ..hardware(Some(8)) },
        Profile { workgroup_bytes_max: 16_384, ..hardware(Some(64)) },
        plain,
    ]
}

/// The op with its inputs on the device.
fn resident(engine: &mut GpuEngine<Checker>, op: &Op) -> Op {
    let mut op = op.clone();
    let device = engine.info().id;
    op.for_each_tensor_mut(&mut |tensor: &mut Tensor| {
        let moved = run(engine, Transfer::to_device(tensor, device).into_op().unwrap()).unwrap();
        *tensor = moved;
    });
    op
}

/// Runs an op and returns its first output, whose values are not computed.
fn run(engine: &mut GpuEngine<Checker>, op: Op) -> Result<Tensor> {
    let mut finished = Vec::new();
    engine.submit(&mut vec![Item { token: 1, op }]);
    while engine.poll(&mut finished, Duration::from_secs(1)) > 0 {}
    let value = finished.pop().unwrap().result?;
    Ok(value.tensors().next().unwrap().clone())
}

#[test]
fn every_kernel_of_the_suite_is_valid_and_becomes_spirv() {
    let checked = CheckedTexts::default();
    for profile in profiles() {
        let driver =
            Checker { faults: Arc::new(Faults::new(profile.id)), checked: Rc::clone(&checked), last: Rc::default() };
        let info = DeviceInfo::new(profile.id, "Checker".to_owned(), DeviceKind::SoftwareGpu);
        let (warm, cache, memory) = (Arc::<GrowingSet>::default(), None, MemoryLimits::default());
        let mut engine = GpuEngine::new(driver, Opening { info, profile, warm, cache, memory });
        // Tiles are not measured here, as they are on hardware.
        *engine.context().tuning() = crate::tuning::Tuning::fixed(0);
        let mut ran = 0;
        for case in cases() {
            if ops::support(&engine.context().profile, &case.op).is_err() {
                continue;
            }
            let name = case.name;
            let op = resident(&mut engine, &case.op);
            // Resident inputs run twice: maps that ran before take another way.
            for op in [case.op, op.clone(), op] {
                if let Err(error) = run(&mut engine, op) {
                    // Some cases are wrong on purpose.
                    assert_eq!(error.kind(), ErrorKind::Caller, "{name}: {error}");
                }
            }
            ran += 1;
        }
        assert!(ran > 1000, "{ran} cases ran");
    }
    let checked = checked.borrow();
    let for_metal = checked.values().filter(|told| matches!(told, Ok(Some(_)))).count();
    println!("{} kernels, {for_metal} of them in Metal's language too", checked.len());
    assert!(checked.values().all(Result::is_ok) && for_metal > 500, "{} kernels, {for_metal}", checked.len());
    if let Some(folder) = std::env::var_os("PANOPLY_KERNELS_OUT") {
        write_out(&checked, folder.as_ref());
    }
}

/// Kernel forms that the suite's sizes do not reach.
fn forms() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let four_bytes = [DType::F32, DType::I32, DType::U32];
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::I8, DType::U8];
    for reduction in
        [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min, Reduction::ArgMax, Reduction::ArgMin]
    {
        for (from_partial, to_partial) in [(false, false), (false, true), (true, false), (true, true)] {
            let kernel = |dtype, form| ReduceKernel { dtype, reduction, form, from_partial, to_partial };
            for dtype in dtypes {
                kernels.extend(
                    [ReduceForm::Serial, ReduceForm::Cooperative].map(|form| kernel(dtype, form)).map(Kernel::Reduce),
                );
            }
            if !from_partial {
                kernels.extend(four_bytes.map(|dtype| Kernel::Reduce(kernel(dtype, ReduceForm::Vector))));
            }
        }
    }
    for kind in [ScanKind::Sum, ScanKind::Product, ScanKind::Max, ScanKind::Min] {
        for form in [ScanForm::Serial, ScanForm::Chunks, ScanForm::Total, ScanForm::Carries] {
            for (carried, vector) in [(false, false), (true, false), (false, true), (true, true)] {
                let vector = vector && form != ScanForm::Serial;
                let by_subgroup = matches!(kind, ScanKind::Sum | ScanKind::Product) && form != ScanForm::Serial;
                for lanes in [None, Some(8), Some(32)].into_iter().take(if by_subgroup { 3 } else { 1 }) {
                    let kernel = |dtype| Kernel::Scan(ScanKernel { dtype, kind, form, carried, vector, lanes });
                    if vector { kernels.extend(four_bytes.map(kernel)) } else { kernels.extend(dtypes.map(kernel)) }
                }
            }
        }
    }
    kernels.extend(forms_of_searches());
    kernels.extend(forms_of_rows());
    kernels.extend(forms_of_matrix_units());
    for lanes in [8, 16, 32] {
        for step in [RadixStep::Count, RadixStep::Scatter { positions: true, first: false }] {
            kernels.push(Kernel::Radix(RadixKernel { lanes, step }));
        }
    }
    kernels
}

fn forms_of_searches() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for metric in [Metric::Dot, Metric::Euclidean, Metric::Cosine] {
        for (filtered, load) in [(false, Load::Single), (true, Load::AlongInner), (false, Load::AlongOuter)] {
            for tile in LARGE_TILES {
                kernels.push(Kernel::List(ListKernel { load_a: load, load_b: load, metric, filtered, tile }));
            }
        }
        for (dtype, aligned_to) in [(DType::F32, 4), (DType::F16, 8), (DType::BF16, 4), (DType::I8, 4), (DType::F16, 1)]
        {
            for (filtered, norms_given, last) in [(true, false, false), (false, true, true)] {
                for listed in [false, true] {
                    let mut kernel = SearchKernel::new(dtype, metric, filtered, norms_given, aligned_to, last);
                    kernel.listed = listed;
                    kernels.push(Kernel::Search(kernel));
                }
            }
        }
    }
    kernels
}

/// Every tile that is tried on matrix units, with operands and targets of each kind.
fn forms_of_matrix_units() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let sums = WideTarget::Sums { epilogue: Epilogue::none(DType::F16), packed: true };
    let lists = WideTarget::Lists { metric: Metric::Cosine, filtered: true };
    for tile in WIDE_TILES {
        let kernel = |load_a, b, target, whole| WideKernel { dtype: DType::F16, load_a, b, target, whole, tile };
        for (load_a, load_b, whole) in [
            (Load::AlongInner, Load::AlongOuter, true),
            (Load::AlongOuter, Load::AlongInner, false),
            (Load::AlongInner, Load::AlongInner, false),
        ] {
            kernels.push(Kernel::Wide(kernel(load_a, WideSource::Matrix(load_b), sums, whole)));
        }
        kernels.push(Kernel::Wide(kernel(Load::AlongInner, WideSource::Windows, sums, false)));
        kernels.push(Kernel::Wide(kernel(Load::AlongInner, WideSource::Matrix(Load::AlongInner), lists, true)));
    }
    kernels
}

fn forms_of_rows() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let rows =
        [RowOp::Softmax { log: false }, RowOp::Softmax { log: true }].into_iter().chain(
            [(false, true, true), (true, true, false), (false, false, false)]
                .map(|(rms, weight, bias)| RowOp::LayerNorm { rms, weight, bias }),
        );
    for op in rows {
        for form in [
            RowForm::Serial,
            RowForm::Cooperative,
            RowForm::Cached { chunks: 8 },
            RowForm::Subgroup { chunks: 3, lanes: 32 },
        ] {
            kernels.push(Kernel::Rows(RowKernel { dtype: DType::F32, op, form }));
        }
    }
    kernels
}

#[test]
fn forms_that_the_suite_does_not_reach_are_valid_too() {
    let forms = forms();
    assert!(forms.len() > 400, "{}", forms.len());
    for kernel in forms {
        let source = kernel.source();
        let source = with_immediates(&source, 64).map_or(source.clone(), |(source, _)| source);
        assert_eq!(check(&source).err(), None, "{kernel:?}");
    }
}

/// Writes the texts to files, for reading and comparing.
fn write_out(checked: &HashMap<String, Result<Option<String>, String>>, folder: &std::path::Path) {
    let mut texts: Vec<_> = checked.iter().collect();
    texts.sort();
    for (number, (text, translated)) in texts.into_iter().enumerate() {
        std::fs::write(folder.join(format!("{number:05}.wgsl")), text).unwrap();
        if let Ok(Some(translated)) = translated {
            std::fs::write(folder.join(format!("{number:05}.metal")), translated).unwrap();
        }
    }
}
