//! A stream with its memory between two pieces.
//!
//! A session changes its memory at the very end of a piece, when nothing can fail any more. After
//! an error or a panic the memory is unchanged.

use panoply_core::{Error, Result, Tensor, Threads, Value};

use super::output::TakeMemory;

/// A stream of one or several signals, with its memory between two pieces.
pub(super) trait Session: Send {
    /// Processes the next piece, `[samples]` or `[lines, samples]`: contiguous, with the stream's
    /// element type and number of lines. After an error the memory is unchanged.
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        threads: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value>;
}

/// Refuses a desired signal for filters that do not learn from it.
pub(super) fn unwanted(desired: Option<&Tensor>) -> Result<()> {
    match desired {
        Some(_) => {
            Err(Error::invalid("stream_filter: desired signal", "none: the filter does not learn from one", "one"))
        }
        None => Ok(()),
    }
}
