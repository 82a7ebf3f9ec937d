//! Loop controls for matrix products on matrix units.
//!
//! Naga writes no loop controls, and NVIDIA's compiler then unrolls the loop over the inner
//! dimension although that loop is long: this takes half as many instructions again, and a quarter
//! more time on an H200. This module sets `DontUnroll` on that loop, and `Unroll` on the loops
//! behind it, which write the sums in four turns each. Both are hints and do not change results.

use crate::matrices::{HEADER_WORDS, instructions};

const OP_FUNCTION_END: u32 = 56;
const OP_LOOP_MERGE: u32 = 246;
const OP_LABEL: u32 = 248;
const OP_COOPERATIVE_MATRIX_MUL_ADD: u32 = 4459;

/// Index of the loop control in the words of `OpLoopMerge`.
const CONTROL: usize = 3;
const CONTROL_NONE: u32 = 0;
const CONTROL_UNROLL: u32 = 1;
const CONTROL_DONT_UNROLL: u32 = 2;

/// A loop of a function.
struct Loop {
    /// Index of the word with its control.
    control: usize,
    /// The label after the loop.
    merge: u32,
    /// Number of loops around it.
    depth: usize,
    /// Whether the loop multiplies matrices.
    has_products: bool,
}

/// Sets the loop controls in the functions where one innermost loop multiplies matrices and all
/// other loops come after it. Other functions are left unchanged. Fails if the module is malformed.
pub(crate) fn control_product(words: &mut [u32]) -> Result<(), String> {
    let mut controls = Vec::new();
    let (mut loops, mut open): (Vec<Loop>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut at = HEADER_WORDS;
    for instruction in instructions(words)? {
        match (instruction[0] & 0xffff, instruction) {
            (OP_LOOP_MERGE, [_, merge, _, CONTROL_NONE]) => {
                open.push(loops.len());
                loops.push(Loop { control: at + CONTROL, merge: *merge, depth: open.len() - 1, has_products: false });
            }
            // Another tool has set a loop control already.
            (OP_LOOP_MERGE, _) => return Ok(()),
            // The blocks of a loop lie between its header and its merge block, in the order that
            // naga writes.
            (OP_LABEL, [_, label]) if open.last().is_some_and(|inner| loops[*inner].merge == *label) => {
                open.pop();
            }
            (OP_COOPERATIVE_MATRIX_MUL_ADD, _) => open.iter().for_each(|around| loops[*around].has_products = true),
            (OP_FUNCTION_END, _) => {
                if open.is_empty() {
                    controls.extend(product_controls(&loops));
                }
                (loops, open) = (Vec::new(), Vec::new());
            }
            _ => {}
        }
        at += instruction.len();
    }
    controls.into_iter().for_each(|(place, control)| words[place] = control);
    Ok(())
}

/// The indices of loop controls that change, with their new values; empty if the loops are not
/// those of a product.
fn product_controls(loops: &[Loop]) -> Vec<(usize, u32)> {
    match loops {
        [first, behind @ ..]
            if first.has_products && behind.iter().all(|other| other.depth == 0 && !other.has_products) =>
        {
            let behind = behind.iter().map(|other| (other.control, CONTROL_UNROLL));
            std::iter::once((first.control, CONTROL_DONT_UNROLL)).chain(behind).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::DType;
    use panoply_core::op::compute::{Activation, Metric};
    use panoply_kernels::wgsl::{Addend, Epilogue, Kernel, Load, WideKernel, WideSource, WideTarget, WideTile};
    use panoply_wgsl_gpu::driver::KernelText;
    use panoply_wgsl_gpu::internals::{SMALL_WIDE_TILE, WIDE_TILES};

    use super::*;
    use crate::compiler::Compiler;

    fn product(dtype: DType, tile: WideTile) -> WideKernel {
        let target = WideTarget::Sums { epilogue: Epilogue::none(dtype), packed: true };
        let b = WideSource::Matrix(Load::AlongOuter);
        WideKernel { dtype, load_a: Load::AlongInner, b, target, whole: true, tile }
    }

    /// The kernel in SPIR-V, as compiled for a device with matrix units.
    fn compiled(wide: &WideKernel) -> Vec<u32> {
        let source = Kernel::Wide(*wide).source();
        let (entry, shape) = ("main", (1, 4));
        let text = KernelText {
            source: &source,
            entry,
            checked: false,
            scalars: 0,
            shape,
            immediates: None,
            wide: Some(wide),
        };
        Compiler::for_matrix_units().compile(&text).unwrap()
    }

    /// The controls of all loops in the order of the module, with their indices.
    fn controls(words: &[u32]) -> Vec<(usize, u32)> {
        let mut at = HEADER_WORDS;
        let mut found = Vec::new();
        for instruction in instructions(words).unwrap() {
            if instruction[0] & 0xffff == OP_LOOP_MERGE {
                found.push((at + CONTROL, instruction[CONTROL]));
            }
            at += instruction.len();
        }
        found
    }

    /// The module without loop controls.
    fn plain(words: &[u32]) -> Vec<u32> {
        let mut plain = words.to_vec();
        controls(words).into_iter().for_each(|(place, _)| plain[place] = CONTROL_NONE);
        plain
    }

    fn check_product(wide: &WideKernel) {
        let words = compiled(wide);
        let found: Vec<u32> = controls(&words).into_iter().map(|(_, control)| control).collect();
        let behind = usize::from(wide.tile.rows) * usize::from(wide.tile.pairs);
        assert_eq!(found.len(), 1 + behind, "{wide:?}");
        assert_eq!(found[0], CONTROL_DONT_UNROLL, "{wide:?}");
        assert!(found[1..].iter().all(|control| *control == CONTROL_UNROLL), "{wide:?}");
        // Modules with controls stay unchanged; modules without controls get them again.
        let (mut again, mut anew) = (words.clone(), plain(&words));
        control_product(&mut again).unwrap();
        control_product(&mut anew).unwrap();
        assert!(again == words && anew == words, "{wide:?}");
    }

    #[test]
    fn the_loop_with_products_stays_one_and_those_behind_it_are_unrolled() {
        for tile in WIDE_TILES.iter().chain([&SMALL_WIDE_TILE]) {
            check_product(&product(DType::F16, *tile));
        }
        let tile = WIDE_TILES[0];
        check_product(&product(DType::BF16, tile));
        // Edges, operands with other layouts, and all epilogues.
        let loads = [Load::AlongInner, Load::AlongOuter];
        let pairs = loads.iter().flat_map(|a| loads.iter().map(move |b| (*a, *b)));
        for (load_a, load_b) in pairs {
            let b = WideSource::Matrix(load_b);
            check_product(&WideKernel { load_a, b, whole: false, ..product(DType::F16, tile) });
        }
        for activation in [Activation::Relu, Activation::Gelu, Activation::Silu] {
            for packed in [true, false] {
                let (bias, dtype) = (Addend::PerColumn, DType::BF16);
                let epilogue = Epilogue { scaled: true, with_c: true, bias, addend_dtype: dtype, activation };
                let target = WideTarget::Sums { epilogue, packed };
                check_product(&WideKernel { target, whole: false, ..product(dtype, tile) });
            }
        }
    }

    #[test]
    fn convolutions_and_searches_are_as_naga_writes_them() {
        let windows = WideKernel { b: WideSource::Windows, whole: false, ..product(DType::F16, WIDE_TILES[0]) };
        let lists = WideTarget::Lists { metric: Metric::Dot, filtered: false };
        let b = WideSource::Matrix(Load::AlongInner);
        let search = WideKernel { b, target: lists, whole: false, ..product(DType::F16, SMALL_WIDE_TILE) };
        for kernel in [&windows, &search] {
            let words = compiled(kernel);
            let found = controls(&words);
            assert!(!found.is_empty() && found.iter().all(|(_, control)| *control == CONTROL_NONE), "{kernel:?}");
        }
        // A convolution counts taps in loops of their own, before its products and between them.
        let mut words = compiled(&windows);
        let before = words.clone();
        control_product(&mut words).unwrap();
        assert!(words == before);
    }

    #[test]
    fn modules_without_such_loops_stay_as_they_are() {
        let loops = |body: &str| {
            let source = format!(
                "@group(1) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) lid: u32) {{ {body} }}"
            );
            let shape = (1, 0);
            let text = KernelText {
                source: &source,
                entry: "main",
                checked: false,
                scalars: 0,
                shape,
                immediates: None,
                wide: None,
            };
            Compiler::for_matrix_units().compile(&text).unwrap()
        };
        let one = "for (var i = 0u; i < 4u; i = i + 1u) { out[lid] = out[lid] + i; }";
        let nested =
            "for (var j = 0u; j < 4u; j = j + 1u) { for (var i = 0u; i < 4u; i = i + 1u) { out[lid] = i * j; } }";
        for (body, count) in [("out[lid] = 1u;", 0), (one, 1), (nested, 2)] {
            let before = loops(body);
            assert_eq!(controls(&before).len(), count);
            let mut words = before.clone();
            control_product(&mut words).unwrap();
            assert!(words == before, "{body}");
        }
        // A truncated module is malformed.
        let mut cut = loops(one);
        cut.truncate(cut.len() - 1);
        *cut.last_mut().unwrap() = 7 << 16;
        assert!(control_product(&mut cut).is_err());
        assert!(control_product(&mut [0; 3]).is_err());
    }
}
