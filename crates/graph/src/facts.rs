//! The compiler's knowledge about a kind of device. The values are constants of the backends.

use crate::cost::Rates;

/// A kind of device, as the compiler and the estimate of costs see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTarget {
    /// Properties that fusion depends on.
    pub facts: Facts,
    /// Rates that the estimated time of a step depends on.
    pub rates: Rates,
}

/// The properties of a device that fusion depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The most inputs of one map.
    pub map_inputs_max: usize,
    /// The most nodes of one map's expression.
    pub map_nodes_max: usize,
    /// The longest row kept between the parts of a fused row function. 0 disables this fusion.
    pub row_len_max: usize,
    /// The most inputs of a fused row function.
    pub row_inputs_max: usize,
    /// The most elements of an operand or of the result of fused attention. 0 disables this fusion.
    pub attention_elements_max: usize,
    /// Whether convolutions of 16-bit numbers read and write channels-last images, and products
    /// take residuals and activations.
    pub channels_last: bool,
    /// Whether ops of f32 read and write channels-last images.
    pub channels_last_f32: bool,
    /// Whether products and convolutions add a tensor times a factor while they store their sums.
    pub adds_scaled: bool,
    /// Whether products take an activation that was recorded on another shape of their result.
    pub activates_any_shape: bool,
    /// Whether attention writes the heads of a row next to each other, and products of one tensor
    /// with several constants are joined.
    pub joins_heads: bool,
    /// Whether sums of sums are joined: reductions share a long sum among many threads in any
    /// layout.
    pub joins_sums: bool,
    /// Maps of at most this many elements that only the graph's outputs wait for run last. 0 keeps
    /// the order of steps.
    pub last_elements_max: usize,
    /// Whether convolutions of f32 can apply any map to their sums.
    pub takes_tails: bool,
}

impl Facts {
    /// No fusion: ops run as they were recorded.
    pub const UNFUSED: Facts = Facts {
        map_inputs_max: 0,
        map_nodes_max: 0,
        row_len_max: 0,
        row_inputs_max: 0,
        attention_elements_max: 0,
        channels_last: false,
        channels_last_f32: false,
        adds_scaled: false,
        activates_any_shape: false,
        joins_heads: false,
        joins_sums: false,
        last_elements_max: 0,
        takes_tails: false,
    };

    /// A hash of the facts.
    pub(crate) fn sort(&self) -> u64 {
        let Facts { map_inputs_max, map_nodes_max, row_len_max, row_inputs_max, attention_elements_max, .. } = *self;
        let flags = [
            self.channels_last,
            self.channels_last_f32,
            self.adds_scaled,
            self.activates_any_shape,
            self.joins_heads,
            self.joins_sums,
            self.takes_tails,
        ];
        let flags = flags.into_iter().fold(self.last_elements_max, |flags, flag| flags << 1 | usize::from(flag));
        let words = [map_inputs_max, map_nodes_max, row_len_max, row_inputs_max, attention_elements_max, flags];
        words
            .into_iter()
            .fold(7, |hash: u64, word| (hash ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
    }
}
