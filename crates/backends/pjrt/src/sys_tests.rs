//! Compares the declarations with the header in a plugin's package, and tests invalid tables.

use std::ffi::c_int;

use crate::plugin::{PjrtError, Plugin};
use crate::sys::{self, Api, PaddedArgs, Version};

/// A table that contains only its version.
fn table(struct_size: usize, major: c_int, minor: c_int) -> &'static Api {
    let version = Version { struct_size: size_of::<Version>(), extension_start: std::ptr::null_mut(), major, minor };
    Box::leak(Box::new(Api { struct_size, extension_start: std::ptr::null_mut(), version }))
}

#[test]
fn other_versions_and_short_tables_are_refused() {
    let size = size_of::<Api>();
    for api in [table(size, 1, 80), table(size, 0, 10), table(8, 0, 80)] {
        // SAFETY: the table belongs to this process and is never freed.
        let refused = unsafe { Plugin::over(api) };
        assert!(matches!(refused, Err(PjrtError::Version { .. })));
    }
    // SAFETY: as above.
    let plugin = unsafe { Plugin::over(table(size, sys::MAJOR, sys::MINOR_MIN)) }.unwrap();
    let missing = plugin.call(&mut PaddedArgs::<sys::PluginInitialize>::new());
    assert_eq!(missing, Err(PjrtError::Missing { function: "PJRT_Plugin_Initialize" }));
}

#[test]
fn structs_begin_with_their_size_and_end_with_zeros() {
    let args = PaddedArgs::<sys::ClientCompile>::new();
    assert_eq!(args.args.struct_size, size_of::<PaddedArgs<sys::ClientCompile>>());
    // The sizes in PJRT's header of version 0.81.
    let sizes = [
        (size_of::<sys::ClientCreate>(), 88),
        (size_of::<sys::ClientCompile>(), 56),
        (size_of::<sys::BufferFromHost>(), 120),
        (size_of::<sys::DeviceMemoryStats>(), 192),
        (size_of::<sys::LoadedExecute>(), 80),
        (size_of::<sys::ExecuteOptions>(), 112),
        (size_of::<sys::NamedValue>(), 56),
        (size_of::<sys::MemoryLayout>(), 80),
        (size_of::<sys::Program>(), 48),
        (size_of::<sys::ExecutableSerialize>(), 56),
        (size_of::<sys::DeserializeAndLoad>(), 64),
        (size_of::<sys::BufferToHost>(), 56),
        (size_of::<sys::TopologyCreate>(), 56),
        (size_of::<sys::Compile>(), 64),
    ];
    for (ours, expected) in sizes {
        assert_eq!(ours, expected);
    }
}

#[test]
fn places_in_the_table_are_those_of_the_header() {
    let header = crate::find::plugins()
        .into_iter()
        .find_map(|plugin| std::fs::read_to_string(plugin.parent()?.join("include/pjrt_c_api.h")).ok());
    let Some(header) = header else {
        return println!("skipped: no plugin's package with include/pjrt_c_api.h is there");
    };
    let fields = header.lines().filter_map(|line| line.trim().strip_prefix("_PJRT_API_STRUCT_FIELD("));
    let names: Vec<&str> = fields.filter_map(|rest| rest.strip_suffix(");")).collect();
    assert!(names.len() > 100, "{names:?}");
    for (function, index) in sys::DECLARED {
        assert_eq!(names.get(*index), Some(function), "{index}");
    }
}
