//! Drivers that misbehave.
