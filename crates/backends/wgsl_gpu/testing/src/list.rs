//! The list of all tests, and the macro that makes a test of each.

/// Makes a `#[test]` of every test of this crate, in modules with the names of its files. The
/// argument is a function that returns the backend.
#[macro_export]
macro_rules! driver_tests {
    ($backend:path) => {
        $crate::one_test_each! { $backend;
            caches {
                many_constants_are_one_kernel,
                constants_that_no_text_could_hold_are_right,
            }
            fault {
                what_does_not_fit_small_limits_is_refused_and_the_rest_runs,
                a_kernel_that_does_not_compile_is_a_fault_of_the_device_and_no_panic,
                a_lost_device_answers_everything_and_a_new_engine_works,
                one_bad_item_does_not_fail_its_neighbours,
                many_batches_are_in_flight_and_land_in_order,
                views_in_the_middle_of_a_word_come_back_whole,
                an_allocation_moves_the_memory_in_use,
            }
            form {
                tiles_as_hardware_runs_them,
                convolutions_as_hardware_runs_them,
                convolutions_as_matrix_units_run_them,
                rows_by_subgroups_and_in_registers,
                long_lines_by_vectors_of_four,
                many_candidates_are_merged_in_steps,
                expressions_too_long_for_one_kernel,
                a_k_beyond_what_a_select_keeps,
                more_inputs_than_an_adapter_binds,
                long_lines_are_sorted_with_subgroups_and_without,
                maps_that_ran_before_run_again_on_other_tensors,
                matrix_units_multiply_halves,
                what_was_warmed_up_is_compiled_and_nothing_was_run,
                searches_of_many_queries_list_candidates,
            }
            joined {
                many_maps_are_few_dispatches,
                a_map_that_needs_the_one_before_finds_it_done,
                other_ops_and_submissions_find_those_that_wait_done,
                memory_that_is_given_back_early_is_written_in_order,
                different_maps_in_turn_and_what_comes_between,
                a_full_arena_is_no_error,
                other_ops_read_views_of_what_lies_in_the_arena,
                a_rehearsal_leaves_those_that_wait_and_compiles_what_joins_them,
                maps_that_wait_when_the_device_is_lost_are_answered,
                large_tensors_and_small_pools_stay_out_of_the_arena,
            }
            piece {
                maps_are_cut,
                reductions_are_cut,
                searches_are_cut,
                rows_are_gathered_from_windows,
                large_tensors_travel_and_their_parts_are_used,
                lines_are_cut,
                long_lines_are_scanned_in_pieces,
                lines_beside_each_other_are_turned,
                the_best_of_many_lines_are_found_in_parts,
                axes_change_places_in_pieces,
                many_lines_are_sorted_in_parts,
                lines_longer_than_kernels_see_are_sorted,
                products_are_cut,
            }
            piece_claim {
                what_is_claimed_around_the_limit_runs,
            }
            piece_image {
                images_are_normalized_in_pieces,
                colours_are_converted_in_pieces,
                images_are_resized_in_pieces,
                images_are_pooled_in_pieces,
                batches_are_convolved_in_pieces,
                gradients_of_batches_are_made_in_pieces,
            }
            transfer {
                what_comes_back_is_what_went_there,
                a_ring_that_goes_round_loses_nothing,
                results_outlive_their_engine_and_its_device,
                memory_of_results_is_used_again_only_when_they_are_gone,
            }
        }

        #[test]
        fn every_test_is_listed() {
            assert_eq!($crate::unlisted(), [""; 0]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! one_test_each {
    ($backend:path; $($module:ident { $($test:ident,)* })*) => {
        $(
            mod $module {
                $(
                    #[test]
                    fn $test() {
                        $crate::$module::$test(&$backend());
                    }
                )*
            }
        )*
    };
}

/// Sources of the modules with tests.
const SOURCES: [&str; 8] = [
    include_str!("caches.rs"),
    include_str!("fault.rs"),
    include_str!("form.rs"),
    include_str!("joined.rs"),
    include_str!("piece.rs"),
    include_str!("piece_claim.rs"),
    include_str!("piece_image.rs"),
    include_str!("transfer.rs"),
];

/// Returns the tests that are missing in the list above, which no backend would run.
pub fn unlisted() -> Vec<&'static str> {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    let tests = lines.filter_map(|line| line.strip_prefix("pub fn ")?.strip_suffix("(backend: &dyn TestBackend) {"));
    tests.filter(|test| !include_str!("list.rs").contains(&format!(" {test},\n"))).collect()
}
