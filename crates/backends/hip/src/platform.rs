//! Discovers devices and queries their properties.

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;

use panoply_c_gpu::devices::cache_feature;
use panoply_c_gpu::driver::Properties;
use panoply_c_gpu::host_reads::HostReads;
use panoply_core::{Absence, Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, PciAddress};
use panoply_placement::locate;

use crate::backend::Names;
use crate::compiler::Hiprtc;
use crate::libraries;
use crate::quirks;
use crate::runtime::{HipError, Runtime};
use crate::sys;

/// Buffer size for a device's name.
const NAME_BYTES: usize = 256;

/// The GPUs that the runtime shows to this process, or why there are none.
pub(crate) fn discover(names: &Names) -> Result<Vec<DeviceInfo>, Absence> {
    let runtime = Runtime::load(&names.runtime)?;
    let features = features(names);
    let absent = |error: HipError| Absence::NoDevice { reason: error.to_string() };
    (0..runtime.count()?).map(|index| info(&runtime, index, &features, &names.system).map_err(absent)).collect()
}

fn info(runtime: &Runtime, index: c_int, features: &[String], system: &Path) -> Result<DeviceInfo, HipError> {
    let id = DeviceId { api: Api::ROCM, index: index as u32 };
    let mut info = DeviceInfo::new(id, name(runtime, index)?, DeviceKind::DiscreteGpu);
    let attribute = |which: c_int| attribute(runtime, index, which);
    if attribute(sys::ATTRIBUTE_INTEGRATED)? != 0 {
        info.kind = DeviceKind::IntegratedGpu;
    }
    let mut total = 0;
    // SAFETY: the call writes one number.
    runtime.check(unsafe { (runtime.functions.hipDeviceTotalMem)(&raw mut total, index) })?;
    info.memory_total_bytes = Some(total as u64);
    info.driver_version = Some(runtime.version().1);
    info.compute_capability = Some(architecture(runtime, index)?);
    let Properties { multiprocessors, shared_bytes_max, block_threads_max, .. } = properties(runtime, index)?;
    info.threads_per_block_max = Some(block_threads_max);
    info.shared_memory_bytes_max = Some(u64::from(shared_bytes_max));
    info.compute_units = Some(multiprocessors);
    let address = PciAddress {
        domain: attribute(sys::ATTRIBUTE_PCI_DOMAIN_ID)? as u32,
        bus: attribute(sys::ATTRIBUTE_PCI_BUS_ID)? as u8,
        device: attribute(sys::ATTRIBUTE_PCI_DEVICE_ID)? as u8,
        function: 0,
    };
    locate(&mut info, system, address);
    info.uuid = uuid(runtime, index);
    let domains = panoply_c_gpu::ops::DOMAINS.to_vec();
    info.capabilities = Capabilities { domains, features: features.to_vec() };
    Ok(info)
}

/// Lists the vendor's libraries that are installed. For a missing one, names what replaces it.
fn features(names: &Names) -> Vec<String> {
    let told = |name: &str, found: bool, instead: &str| {
        if found { name.to_owned() } else { format!("no-{name} ({instead})") }
    };
    vec![
        told("hiprtc", Hiprtc::is_present(&names.compiler), "no kernel can be compiled"),
        told("hipblaslt", libraries::is_present(&names.light_products), "products by rocBLAS"),
        told("rocblas", libraries::is_present(&names.products), "products by our own kernel"),
        told("miopen", libraries::is_present(&names.convolutions), "convolutions by our own kernel"),
        told("hipfft", libraries::is_present(&names.transforms), "transforms by our own kernel"),
        cache_feature(),
    ]
}

/// The properties that launches depend on.
pub(crate) fn properties(runtime: &Runtime, index: c_int) -> Result<Properties, HipError> {
    let number = |which: c_int| attribute(runtime, index, which).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(Properties {
        multiprocessors: number(sys::ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_max: number(sys::ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        block_threads_max: number(sys::ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        warp_lanes: number(sys::ATTRIBUTE_WARP_SIZE)?,
        pointers: true,
        matrix_tiles: false,
        tiles_of_16: quirks::tiles_of_16(&architecture(runtime, index)?),
        warp_groups: false,
    })
}

/// The host memory that kernels read in place. A runtime that does not know an attribute says no.
pub(crate) fn host_reads(runtime: &Runtime, index: c_int) -> HostReads {
    let is_so = |which: c_int| attribute(runtime, index, which).is_ok_and(|value| value != 0);
    HostReads::of(
        is_so(sys::ATTRIBUTE_INTEGRATED),
        is_so(sys::ATTRIBUTE_CAN_MAP_HOST_MEMORY),
        is_so(sys::ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
    )
}

/// The architecture with its features, such as `gfx90a:sramecc+:xnack-`, as the compiler expects
/// it. Empty if the runtime cannot report it.
pub(crate) fn architecture(runtime: &Runtime, index: c_int) -> Result<String, HipError> {
    let functions = &runtime.functions;
    let (ask, at) = match (functions.hipGetDevicePropertiesR0600, functions.hipGetDeviceProperties) {
        (Some(ask), _) => (ask, sys::ARCHITECTURE_AT_R0600),
        (None, Some(ask)) => (ask, sys::ARCHITECTURE_AT),
        (None, None) => return Ok(String::new()),
    };
    let mut bytes = [0_u64; sys::PROPERTIES_BYTES / 8];
    // SAFETY: the call writes a structure that is smaller than the buffer.
    runtime.check(unsafe { ask(bytes.as_mut_ptr().cast::<c_void>(), index) })?;
    // SAFETY: reads the same memory as bytes.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), sys::PROPERTIES_BYTES) };
    Ok(text(&bytes[at..at + sys::ARCHITECTURE_BYTES]))
}

/// Why no kernels exist for this device, or `None` if they do.
pub(crate) fn fault(architecture: &str, properties: &Properties) -> Option<String> {
    if architecture.is_empty() {
        return Some("the runtime does not tell the device's architecture".to_owned());
    }
    let lanes = properties.warp_lanes;
    (!quirks::has_warps_of(lanes))
        .then(|| format!("{architecture} has warps of {lanes} lanes, for which there are no kernels"))
}

fn attribute(runtime: &Runtime, index: c_int, which: c_int) -> Result<c_int, HipError> {
    let mut value = 0;
    // SAFETY: the call writes one number.
    runtime.check(unsafe { (runtime.functions.hipDeviceGetAttribute)(&raw mut value, which, index) })?;
    Ok(value)
}

fn name(runtime: &Runtime, index: c_int) -> Result<String, HipError> {
    let mut name = [0_u8; NAME_BYTES];
    let (room, bytes) = (name.as_mut_ptr().cast(), NAME_BYTES as c_int);
    // SAFETY: the call writes at most `bytes` bytes.
    runtime.check(unsafe { (runtime.functions.hipDeviceGetName)(room, bytes, index) })?;
    Ok(text(&name))
}

/// The device's UUID. `None` if the runtime returns only zeros.
fn uuid(runtime: &Runtime, index: c_int) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the call writes sixteen bytes.
    let told = unsafe { (runtime.functions.hipDeviceGetUuid?)(&raw mut bytes, index) };
    (told == sys::SUCCESS && bytes != [0; 16]).then_some(bytes)
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// For each GPU, a bit mask of the other GPUs whose memory it can read directly.
pub(crate) fn reach<const COUNT: usize>(names: &Names) -> [u64; COUNT] {
    let Ok(runtime) = Runtime::load(&names.runtime) else { return [0; COUNT] };
    let count = runtime.count().map_or(0, |count| usize::try_from(count).unwrap_or(0).min(COUNT));
    let reads = |reader: usize, owner: usize| {
        let mut can = 0;
        // SAFETY: the call writes one number.
        let asked =
            unsafe { (runtime.functions.hipDeviceCanAccessPeer)(&raw mut can, reader as c_int, owner as c_int) };
        asked == sys::SUCCESS && can != 0
    };
    let mask = |reader: usize| {
        let others = (0..count).filter(|owner| *owner != reader && reads(reader, *owner));
        others.fold(0, |mask, owner| mask | 1 << owner)
    };
    std::array::from_fn(|reader| if reader < count { mask(reader) } else { 0 })
}
