//! The cases that can be measured: one type for each kind of case, with its sizes as data.
//!
//! This file and the `mod.rs` of a domain are lists. A file of cases imports the trait [`Case`] and
//! helpers from the files that define them, never from a list that names it.
//!
//! [`compute`], [`crypto`], [`signal`] and [`graph`] have the ops of these domains. `collection`
//! has searches in a collection of vectors, `link` the copies between host and device, `pipeline`
//! the cost of stages and the gain of overlapping, `pool` what caching memory gains, and `nn`
//! training steps. Names are stable, so
//! that results of different versions, machines and libraries can be joined on them.

mod case;
mod collection;
#[cfg(test)]
mod complete;
mod compute;
mod crypto;
mod graph;
mod link;
mod nn;
mod pipeline;
mod pool;
mod signal;

use self::case::MI;
pub use self::case::{Amount, Case, Scale};
pub use self::pool::gains;

/// The load that keeps a GPU busy until it is measured.
pub const LOAD: &dyn Case = &compute::ScaleAddReluCase { elements: 16 * MI };

/// Returns every case, in the order of measurement.
pub fn all() -> impl Iterator<Item = &'static dyn Case> {
    macro_rules! of_each {
        ($($domain:ident in $module:ident;)*) => { [$($module::CASES),*] };
    }
    let ops = panoply::for_each_domain!(of_each);
    let others = [nn::CASES, collection::CASES, link::CASES, pipeline::CASES, pool::CASES];
    ops.into_iter().chain(others).flatten().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = all().map(Case::name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn names_stay_what_others_join_on() {
        let names: Vec<String> = all().map(Case::name).collect();
        let joined = [
            "matmul/f32/1024",
            "matmul/tf32/8192",
            "linear_relu/bf16/4096",
            "add/f32/1Mi",
            "adds/f32/64x10000",
            "map/relu(2x+y)/f32/16Mi",
            "reduce/sum/f32/16Mi",
            "scan/sum/f32/16Mi",
            "sort/f32/16Mi",
            "softmax/f32/65536x1024",
            "conv2d/f32/8x64x56x56k3",
            "resize/f32/64x3x1080x1920to224",
            "search/dot/f32/100000x128/q1k10",
            "search/dot/f32/100000x768/q64k10",
            "seal/aes-256-gcm/10000x1KiB",
            "encrypt/aes-256-cbc/1000x16KiB",
            "hash/sha512/1MiB",
            "verify/rsa-4096/16x32B",
            "sign/ecdsa-p256/64x32B",
            "decompress/zstd3/corpus/64KiB",
            "fft/c64/64x1048576",
            "fir/f32/4Mi/t101",
            "iir/f32/256x16384/order8",
            "correlate/c64/1Mi/t4096",
            "modulate/bpsk/1Mi",
            "demodulate/qam64/1Mi/soft",
            "crc/crc32/10000x1KiB",
            "rs_decode/255-223/512/e8",
            "erasure_encode/10+4/1MiB",
            "conv_encode/k7r2/256x2048",
            "viterbi/k7r2/256x2048",
            "ldpc/ccsds-tm2048/16",
            "ifft/c64/65536x1024",
            "fft/f32/65536x1024",
            "verify/ecdsa-p256/100000x32B",
            "decompress/lz4/16384x64KiB",
            "chain10/f32/64Mi",
            "nn/mlp/train/f32/b64",
            "add_layernorm_gelu/f32/65536x1024",
            "nn/mlp/infer/f16/b64",
            "collection/dot/f32/1000000x128/q1k10",
            "upload/ordinary/1GiB",
            "stream/overlapped/64x64MiB",
            "pipeline/stream/piped/64x64MiB",
        ];
        for name in joined {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn every_sort_of_device_has_cases() {
        for scale in [Scale::Small, Scale::Medium, Scale::Large, Scale::Huge] {
            assert!(all().any(|case| case.scale() == scale), "{scale:?}");
        }
    }
}
