//! Loads Vulkan's library at run time and makes an instance.

use std::ffi::{CStr, OsString, c_char};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use ash::vk;
use libloading::Library;
use panoply_core::Absence;

use crate::validation::{Listener, Messages};

/// Names of the library for the system's linker.
#[cfg(windows)]
const LIBRARIES: &[&str] = &["vulkan-1.dll"];
/// Names of the library for the system's linker.
#[cfg(target_vendor = "apple")]
const LIBRARIES: &[&str] = &["libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"];
/// Names of the library for the system's linker.
#[cfg(not(any(windows, target_vendor = "apple")))]
const LIBRARIES: &[&str] = &["libvulkan.so.1", "libvulkan.so"];

/// The validation layer that Khronos publishes.
const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Which library is loaded, and with which checks.
#[derive(Clone, Default)]
pub(crate) struct LoaderOptions {
    /// A library instead of the system's.
    pub(crate) library: Option<OsString>,
    /// Receives the findings of the validation layer. `None` runs without the layer.
    pub(crate) messages: Option<Arc<Messages>>,
}

/// Vulkan's library and instance.
pub(crate) struct Loader {
    pub(crate) entry: ash::Entry,
    pub(crate) instance: ash::Instance,
    /// The Vulkan version that the instance was made for.
    pub(crate) version: u32,
    /// Receives errors for as long as the instance lives.
    listener: Option<Listener>,
    /// Is never unloaded: threads that drivers have started may still be in it.
    _library: ManuallyDrop<Library>,
}

impl Loader {
    /// Loads the library and makes an instance, or returns what is missing.
    pub(crate) fn open(wish: &LoaderOptions) -> Result<Loader, Absence> {
        let (library, entry) = load(wish)?;
        // SAFETY: the function belongs to the loader and only reads its version.
        let version = unsafe { entry.try_enumerate_instance_version() }.ok().flatten().unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_2 {
            return Err(none(format!("the loader knows Vulkan {}; 1.2 is needed", version_text(version))));
        }
        let version = vk::API_VERSION_1_3.min(version);
        let application =
            vk::ApplicationInfo::default().application_name(c"panoply").engine_name(c"panoply").api_version(version);
        let available = extensions(&entry);
        let mut names: Vec<*const c_char> = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if available.contains(&ash::khr::portability_enumeration::NAME.to_owned()) {
            names.push(ash::khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let mut layers = Vec::new();
        if wish.messages.is_some() {
            if !has_layer(&entry, VALIDATION_LAYER) {
                return Err(none("the validation layers are not installed".to_owned()));
            }
            layers.push(VALIDATION_LAYER.as_ptr());
            names.extend([ash::ext::debug_utils::NAME.as_ptr(), ash::ext::validation_features::NAME.as_ptr()]);
        }
        let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut validation = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
        let mut info = vk::InstanceCreateInfo::default()
            .flags(flags)
            .application_info(&application)
            .enabled_extension_names(&names)
            .enabled_layer_names(&layers);
        if wish.messages.is_some() {
            info = info.push_next(&mut validation);
        }
        // SAFETY: everything that `info` points to is alive.
        let instance = unsafe { entry.create_instance(&info, None) }.map_err(|error| match error {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => none("the Vulkan loader found no driver".to_owned()),
            other => none(format!("Vulkan did not start: {other}")),
        })?;
        let listener = wish.messages.as_ref().map(|messages| Listener::new(&entry, &instance, messages));
        Ok(Loader { entry, instance, version, listener, _library: ManuallyDrop::new(library) })
    }

    /// All devices of all drivers.
    pub(crate) fn devices(&self) -> Result<Vec<vk::PhysicalDevice>, Absence> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.instance.enumerate_physical_devices() };
        devices.map_err(|error| none(format!("Vulkan lists no devices: {error}")))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        drop(self.listener.take());
        // SAFETY: all objects that were made from the instance hold this loader, so they are gone.
        unsafe { self.instance.destroy_instance(None) };
    }
}

/// The library, which must outlive every call through the entry.
fn load(wish: &LoaderOptions) -> Result<(Library, ash::Entry), Absence> {
    let named: Vec<OsString> = match &wish.library {
        Some(library) => vec![library.clone()],
        None => LIBRARIES.iter().map(OsString::from).collect(),
    };
    for library in &named {
        // SAFETY: loading a library runs its initialisers; this is Vulkan's loader, which the user
        // has installed.
        let Ok(loaded) = (unsafe { Library::new(library) }) else { continue };
        // SAFETY: every version of Vulkan's loader exports this function with this type.
        let function = unsafe { loaded.get::<vk::PFN_vkGetInstanceProcAddr>(b"vkGetInstanceProcAddr\0") };
        let Ok(get_instance_proc_addr) = function.map(|symbol| *symbol) else { continue };
        // SAFETY: the function is Vulkan's, and the caller keeps the library with the entry.
        let entry = unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) };
        return Ok((loaded, entry));
    }
    Err(Absence::LibraryMissing { tried: named.iter().map(|name| name.to_string_lossy().into_owned()).collect() })
}

fn extensions(entry: &ash::Entry) -> Vec<std::ffi::CString> {
    // SAFETY: the call only reads the loader's properties.
    let listed = unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default();
    listed.iter().filter_map(|one| one.extension_name_as_c_str().ok().map(CStr::to_owned)).collect()
}

fn has_layer(entry: &ash::Entry, name: &CStr) -> bool {
    // SAFETY: the call only reads the loader's properties.
    let listed = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    listed.iter().any(|layer| layer.layer_name_as_c_str() == Ok(name))
}

/// A version as `major.minor`.
pub(crate) fn version_text(version: u32) -> String {
    format!("{}.{}", vk::api_version_major(version), vk::api_version_minor(version))
}

fn none(reason: String) -> Absence {
    Absence::NoDevice { reason }
}
