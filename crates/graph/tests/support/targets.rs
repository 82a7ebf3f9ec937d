//! Facts of two kinds of devices, which differ in every fusion.

use panoply_graph::Facts;

/// Long rows, and no fusion that GPUs alone have.
pub const PROCESSOR: Facts = Facts {
    map_inputs_max: 12,
    map_nodes_max: 128,
    row_len_max: 1 << 16,
    row_inputs_max: 12,
    attention_elements_max: usize::MAX,
    channels_last: false,
    channels_last_f32: true,
    adds_scaled: false,
    activates_any_shape: true,
    joins_heads: false,
    joins_sums: false,
    last_elements_max: 0,
    takes_tails: true,
};

/// Shorter rows, and the fusions of GPUs.
pub const GPU: Facts = Facts {
    map_inputs_max: 12,
    map_nodes_max: 64,
    row_len_max: 1 << 14,
    row_inputs_max: 12,
    attention_elements_max: u32::MAX as usize,
    channels_last: false,
    channels_last_f32: false,
    adds_scaled: true,
    activates_any_shape: false,
    joins_heads: true,
    joins_sums: true,
    last_elements_max: 1 << 20,
    takes_tails: false,
};
