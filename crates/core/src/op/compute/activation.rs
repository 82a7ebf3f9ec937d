//! Activations: the functions that matrix products and convolutions apply to their sums before storing them.

/// A function of one number, applied to every element of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// The number itself.
    #[default]
    None,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}
