//! Error codes of OpenCL calls.

use std::fmt;

use crate::sys::Status;

/// The error code of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) Status);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(code, _)| *code == self.0) {
            Some((code, name)) => write!(f, "CL_{name} ({code})"),
            None => write!(f, "OpenCL error {}", self.0),
        }
    }
}

/// Names of common errors; other errors are shown as numbers.
const NAMES: &[(Status, &str)] = &[
    (-1, "DEVICE_NOT_FOUND"),
    (-2, "DEVICE_NOT_AVAILABLE"),
    (-3, "COMPILER_NOT_AVAILABLE"),
    (-4, "MEM_OBJECT_ALLOCATION_FAILURE"),
    (-5, "OUT_OF_RESOURCES"),
    (-6, "OUT_OF_HOST_MEMORY"),
    (-7, "PROFILING_INFO_NOT_AVAILABLE"),
    (-11, "BUILD_PROGRAM_FAILURE"),
    (-14, "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"),
    (-30, "INVALID_VALUE"),
    (-33, "INVALID_DEVICE"),
    (-34, "INVALID_CONTEXT"),
    (-36, "INVALID_COMMAND_QUEUE"),
    (-38, "INVALID_MEM_OBJECT"),
    (-42, "INVALID_BINARY"),
    (-44, "INVALID_PROGRAM"),
    (-45, "INVALID_PROGRAM_EXECUTABLE"),
    (-46, "INVALID_KERNEL_NAME"),
    (-49, "INVALID_ARG_INDEX"),
    (-50, "INVALID_ARG_VALUE"),
    (-51, "INVALID_ARG_SIZE"),
    (-52, "INVALID_KERNEL_ARGS"),
    (-54, "INVALID_WORK_GROUP_SIZE"),
    (-55, "INVALID_WORK_ITEM_SIZE"),
    (-61, "INVALID_BUFFER_SIZE"),
    (-1001, "PLATFORM_NOT_FOUND_KHR"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_names() {
        assert_eq!(Code(-5).to_string(), "CL_OUT_OF_RESOURCES (-5)");
        assert_eq!(Code(-9999).to_string(), "OpenCL error -9999");
    }
}
