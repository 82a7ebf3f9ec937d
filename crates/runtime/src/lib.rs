//! Placeholder while the workspace is laid out.
pub mod partition;
pub mod placement;
