//! The k largest or smallest elements of each lane.
pub(crate) mod keep;
pub(crate) mod order;
