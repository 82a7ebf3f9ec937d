//! A case that can be measured: its name, its amount of work, the scale of device it is meant for,
//! and a way to run it. The helpers name cases, and derive amounts and scales from numbers of
//! elements.

use crate::bench::place::{BenchDevice, Runner};

/// 1024 · 1024 elements.
pub const MI: usize = 1 << 20;

/// One op with its sizes. Elements are f32 unless the case says otherwise; inputs are seeded random
/// normals.
pub trait Case {
    /// The name, on which results are joined.
    fn name(&self) -> String;

    /// The amount of work in one run.
    fn amount(&self) -> Amount;

    /// The smallest kind of device that the case is meant for.
    fn scale(&self) -> Scale;

    /// Makes the inputs, in the device's own memory if it has any.
    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner>;
}

/// The amount of work in one run, in the unit of the case's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Floating-point additions and multiplications.
    Flops(f64),
    /// The fewest bytes that must be read and written.
    Bytes(f64),
    /// Queries answered.
    Queries(f64),
    /// No meaningful rate; only the time counts.
    TimeOnly,
}

/// The smallest kind of device that a case is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    /// A graphics API that runs on the CPU.
    Small,
    /// A few cores.
    Medium,
    /// A device with its own memory.
    Large,
    /// A device with its own memory, for inputs that take longer to make than to measure.
    Huge,
}

/// The amount of a case that must read and write this many f32 elements.
pub fn f32s(elements: usize) -> Amount {
    Amount::Bytes(4.0 * elements as f64)
}

/// Formats a number of elements, in multiples of 1024 · 1024 if it is one.
pub fn count_name(elements: usize) -> String {
    if elements > 0 && elements.is_multiple_of(MI) { format!("{}Mi", elements / MI) } else { elements.to_string() }
}

/// The scale of a case with this many elements.
pub fn scale_of(elements: usize) -> Scale {
    match elements {
        0..=MI => Scale::Small,
        _ if elements <= 16 * MI => Scale::Medium,
        _ => Scale::Large,
    }
}
