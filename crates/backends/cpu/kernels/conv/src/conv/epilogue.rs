//! Epilogues of convolutions: applied to the sums before they are stored.

use super::real::StoredElement;

/// A function that is applied to finished sums in runs. Arguments: the index of the first sum in
/// the whole output, and the sums.
pub type Activate<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// The fused epilogue of a forward convolution, applied before the sums are stored.
pub struct Epilogue<'a, S: StoredElement> {
    /// One number for each filter, added first.
    pub bias: Option<&'a [S]>,
    /// Applied to the sums, in the type that they are computed in.
    pub activate: Option<Activate<'a, S::Real>>,
}

impl<S: StoredElement> Epilogue<'_, S> {
    /// Neither bias nor activation.
    pub fn none() -> Self {
        Epilogue { bias: None, activate: None }
    }
}
