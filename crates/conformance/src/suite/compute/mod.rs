//! The compute domain: arithmetic on tensors.

use crate::suite::case::Case;

mod attention;
mod color_convert;
mod conv2d;
mod gather;
mod kernel;
mod layernorm;
mod map;
mod matmul;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod row_map;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(attention::cases());
    cases.extend(color_convert::cases());
    cases.extend(conv2d::cases());
    cases.extend(gather::cases());
    cases.extend(kernel::cases());
    cases.extend(layernorm::cases());
    cases.extend(map::cases());
    cases.extend(matmul::cases());
    cases.extend(normalize::cases());
    cases.extend(pool2d::cases());
    cases.extend(reduce::cases());
    cases.extend(resize::cases());
    cases.extend(row_map::cases());
    cases.extend(scan::cases());
    cases.extend(search::cases());
    cases.extend(softmax::cases());
    cases.extend(sort::cases());
    cases.extend(topk::cases());
    cases.extend(transfer::cases());
    cases.extend(transpose::cases());
    cases
}
