//! Matrix products one output at a time, in `complex_product.wgsl`, for complex numbers, which have
//! no vectors of four. Parameters as in [`super::gemm`], with alpha and beta as f32.

use super::gemm::Addend;
use super::template::Template;

/// A matrix product of complex64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NaiveGemmKernel {
    /// Whether to add `beta · C`.
    pub with_c: bool,
    /// The bias.
    pub bias: Addend,
}

impl NaiveGemmKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("complex_product.wgsl")).flag("WITH_C", self.with_c);
        template.set("BIAS", format!("{:?}", self.bias)).text()
    }
}
