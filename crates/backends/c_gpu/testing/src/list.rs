//! The lists of the tests in [`faults`](crate::faults), and the macros that make a test of each.

/// Makes a `#[test]` of every test of one device in [`faults`](crate::faults). The argument is a
/// function that calls the test that it is given for each device.
#[macro_export]
macro_rules! fault_tests {
    ($on_each_device:path) => {
        $crate::portable_fault_tests!($on_each_device);
        $crate::one_test_each! { $on_each_device;
            equal_ops_run_together,
            equal_maps_are_one_launch,
        }
    };
}

/// Like [`fault_tests!`], without the tests of kernels that read addresses from memory.
#[macro_export]
macro_rules! portable_fault_tests {
    ($on_each_device:path) => {
        $crate::one_test_each! { $on_each_device;
            out_of_memory_is_typed_and_passes,
            a_kernel_that_does_not_compile_says_where,
            a_tensor_of_an_engine_that_is_gone_is_refused,
            ops_come_back_once,
            a_bad_op_fails_alone,
            searches_with_other_lengths_stay_apart,
            engines_of_one_thread_do_not_mix,
            constants_share_a_kernel,
            sizes_beyond_a_kernel_are_refused,
            kernels_are_compiled_ahead,
            an_allocation_moves_the_memory_in_use,
        }

        #[test]
        fn every_fault_test_is_listed() {
            assert_eq!($crate::unlisted(), [""; 0]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! one_test_each {
    ($on_each_device:path; $($test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                $on_each_device($crate::faults::$test);
            }
        )*
    };
}

/// Returns the tests that are missing in the lists above, which no backend would run.
pub fn unlisted() -> Vec<&'static str> {
    let functions = include_str!("faults.rs").lines().filter_map(|line| line.strip_prefix("pub fn "));
    let tests = functions.filter_map(|line| line.strip_suffix("(backend: &dyn GpuBackend, info: &DeviceInfo) {"));
    tests.filter(|test| !include_str!("list.rs").contains(&format!(" {test},\n"))).collect()
}
