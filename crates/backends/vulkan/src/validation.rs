//! Collects the messages of Vulkan's validation layers.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

/// The most messages that are kept.
const MESSAGES_MAX: usize = 64;

/// Warnings and errors, in the order in which they came.
#[derive(Debug, Default)]
pub struct Messages(Mutex<Vec<String>>);

impl Messages {
    /// The messages so far.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, message: String) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MESSAGES_MAX {
            kept.push(message);
        }
    }
}

/// Receives messages until it is dropped.
pub(crate) struct Listener {
    functions: ash::ext::debug_utils::Instance,
    messenger: vk::DebugUtilsMessengerEXT,
    /// The target that `hear` writes to, for as long as the messenger lives.
    _messages: Arc<Messages>,
}

impl Listener {
    /// Listens to an instance that was made with the extension.
    pub(crate) fn new(entry: &ash::Entry, instance: &ash::Instance, messages: &Arc<Messages>) -> Listener {
        use vk::DebugUtilsMessageSeverityFlagsEXT as Severity;
        use vk::DebugUtilsMessageTypeFlagsEXT as Kind;
        let functions = ash::ext::debug_utils::Instance::new(entry, instance);
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(Severity::WARNING | Severity::ERROR)
            .message_type(Kind::GENERAL | Kind::VALIDATION | Kind::PERFORMANCE)
            .pfn_user_callback(Some(hear))
            .user_data(Arc::as_ptr(messages).cast_mut().cast());
        // SAFETY: the extension is enabled, and the user data of the callback outlives the
        // messenger. If this fails no messages arrive, and there is nothing to destroy.
        let messenger = unsafe { functions.create_debug_utils_messenger(&info, None) }.unwrap_or_default();
        Listener { functions, messenger, _messages: Arc::clone(messages) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: made from this instance, destroyed once, before the instance.
        unsafe { self.functions.destroy_debug_utils_messenger(self.messenger, None) };
    }
}

unsafe extern "system" fn hear(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: Vulkan gives the data for the length of this call; the text is null or ends in a
    // zero; the messages outlive the messenger.
    let (text, messages) = unsafe {
        let text = data.as_ref().map(|data| data.p_message).filter(|text| !text.is_null());
        (text.map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()), &*messages.cast::<Messages>())
    };
    messages.push(text.unwrap_or_default());
    vk::FALSE
}
