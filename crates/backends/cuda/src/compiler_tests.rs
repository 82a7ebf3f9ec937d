//! Compiles kernels of every unit for a GPU, if NVRTC is installed.

use panoply_core::DType;
use panoply_kernels::c::{
    ATTENTION, ATTENTION_GROUPS, ATTENTION_SPLIT, ATTENTION_TILES, COLOR, CONV, FFT, FFT_TILES, GATHER, INTERPRET,
    Kernel, LAYERNORM, MATMUL, MATMUL_THIN, MATMUL_TILES, MATMUL_UNITS, NORMALIZE, POOL, REDUCE, RESIZE, SCAN,
    SEARCH_MANY, SEARCH_PACK, SOFTMAX, SORT, STRIDED, UNITS,
};

use super::*;

/// One kernel of each unit, with the parameters of a typical launch.
fn representatives() -> Vec<Kernel> {
    let f32_rows = |unit, entry, mode| {
        let kernel = Kernel::new(unit, entry).dtype("T", DType::F32).integer("GROUP", 32).integer("ITEMS", 8);
        kernel.integer("VECTOR", 4).integer("VECTOR_BYTES", 16).flag(mode, true)
    };
    let f32 = |unit, entry| Kernel::new(unit, entry).dtype("T", DType::F32);
    vec![
        f32(MATMUL, "matmul")
            .dtype("R", DType::F32)
            .dtype("S", DType::F32)
            .integer("BIAS", 0)
            .integer("ACTIVATION", 0)
            .flag("HAS_C", false),
        f32(MATMUL_TILES, "matmul_tiles")
            .dtype("R", DType::F32)
            .integer("TILE_M", 64)
            .flag("A_DEEP", true)
            .flag("B_DEEP", false)
            .integer("BIAS", 1)
            .integer("ACTIVATION", 1)
            .flag("HAS_C", true),
        f32(MATMUL_THIN, "matmul_thin")
            .dtype("R", DType::F32)
            .integer("ROWS", 4)
            .integer("COLS", 1)
            .flag("SWAPPED", false)
            .flag("TALL", true)
            .flag("DEEP", true)
            .integer("BIAS", 1)
            .integer("ACTIVATION", 1)
            .flag("HAS_C", true),
        Kernel::new(STRIDED, "copy_view").word("T", "u32x4").flag("COPY_VIEW", true),
        Kernel::new(STRIDED, "transpose_tiles").word("T", "u16").integer("TILE", 64),
        Kernel::new(STRIDED, "copy_many").flag("COPY_MANY", true),
        Kernel::new(INTERPRET, "interpret"),
        f32(REDUCE, "rows")
            .dtype("R", DType::U32)
            .integer("OPERATION", 4)
            .integer("VECTOR", 4)
            .integer("VECTOR_BYTES", 16)
            .flag("ROWS", true)
            .flag("FLAT", true)
            .flag("BLOCKS", true),
        f32(SCAN, "scan_long")
            .integer("KIND", 0)
            .integer("THREADS", 256)
            .integer("ITEMS", 11)
            .integer("VECTOR", 4)
            .integer("VECTOR_BYTES", 16)
            .flag("REVERSED", false)
            .flag("EXCLUSIVE", false)
            .flag("LONG", true),
        f32_rows(SOFTMAX, "softmax_rows", "ROWS").flag("IS_LOG", false),
        f32_rows(LAYERNORM, "layernorm_rows", "ROWS"),
        Kernel::new(FFT, "butterfly").integer("RADIX", 4),
        Kernel::new(GATHER, "gather").word("T", "u64").dtype("I", DType::I32),
        Kernel::new(NORMALIZE, "normalize")
            .dtype("T", DType::U8)
            .dtype("R", DType::F16)
            .integer("VECTOR", 4)
            .integer("T_VECTOR_BYTES", 4)
            .integer("R_VECTOR_BYTES", 8),
    ]
}

/// The same for images, convolutions, sorts and searches.
fn further_representatives() -> Vec<Kernel> {
    let f32 = |unit, entry| Kernel::new(unit, entry).dtype("T", DType::F32);
    vec![
        Kernel::new(COLOR, "convert").dtype("T", DType::U8).integer("SIDE", 2).word("INDEX", "u32"),
        f32(CONV, "convolve")
            .word("POS", "i32")
            .word("INDEX", "u32")
            .flag("DIVIDES", false)
            .integer("ACTIVATION", 0)
            .flag("BIAS", true)
            .flag("PARTS", false),
        Kernel::new(FFT, "butterfly").integer("RADIX", 8),
        Kernel::new(FFT_TILES, "fft_tiles")
            .integer("LEN", 2048)
            .integer("LINES", 8)
            .flag("INVERSE", true)
            .flag("FIRST", true)
            .integer("BLOCKS", 1),
        f32(POOL, "pool").word("INDEX", "u32").flag("MAX", true).flag("COUNT_PADDING", false).integer("LANES", 1),
        f32(RESIZE, "resize").flag("MODE_NEAREST", true).integer("ROWS", 4).word("INDEX", "u32"),
        f32(SORT, "sort_lines")
            .flag("DESCENDING", false)
            .integer("V_BYTES", 0)
            .flag("POSITIONS", false)
            .flag("KEYS_OUT", true)
            .flag("SHORT", true),
        Kernel::new(MATMUL_UNITS, "matmul_units")
            .dtype("T", DType::F16)
            .dtype("R", DType::F16)
            .integer("BIAS", 0)
            .integer("ACTIVATION", 0)
            .flag("HAS_C", false)
            .integer("TILE", 64)
            .flag("A_DEEP", true)
            .flag("B_DEEP", false),
        Kernel::new(SEARCH_PACK, "pack_rows").word("T", "u32").integer("THREADS", 256),
    ]
}

/// Units of the crypto and signal domains. Their kernels need long descriptions;
/// `tests/conformance.rs` compiles the ones that the suite needs.
const OF_OTHER_DOMAINS: [&str; 28] = [
    "aes_expand",
    "aes_counter",
    "aes_chain",
    "gcm",
    "chacha",
    "poly1305",
    "sha",
    "ed25519",
    "ed25519_sign",
    "ed25519_tables",
    "ecdsa",
    "ecdsa_sign",
    "ecdsa_tables",
    "rsa",
    "lz4",
    "inflate",
    "fir",
    "fir_spectra",
    "frames",
    "dct",
    "convolve",
    "peaks",
    "iir",
    "modem",
    "crc",
    "galois",
    "viterbi",
    "ldpc",
];

#[test]
fn every_unit_of_the_compute_domain_compiles_for_cuda() {
    let kernels = [representatives(), further_representatives()].concat();
    for unit in UNITS.iter().filter(|unit| !OF_OTHER_DOMAINS.contains(&unit.name)) {
        let start = format!("{}/", unit.name);
        assert!(kernels.iter().any(|kernel| kernel.name().starts_with(&start)), "no kernel of {} here", unit.name);
    }
    assert_compile(kernels);
}

/// The emulated device does not run these kernels, so compiling is the only check on a machine
/// without a GPU.
#[test]
fn kernels_of_warp_groups_compile() {
    let mut kernels = Vec::new();
    for (dtype, piece, exact, [queries, rows]) in [
        (DType::F32, 4, false, [64, 256]),
        (DType::F16, 8, true, [256, 128]),
        (DType::BF16, 8, true, [64, 256]),
        (DType::I8, 16, true, [128, 256]),
    ] {
        let kernel = Kernel::new(SEARCH_MANY, "search_many")
            .integer("BLOCK_QUERIES", queries)
            .integer("BLOCK_ROWS", rows)
            .integer("WARP_QUERIES", 16)
            .integer("WARP_ROWS", 128)
            .integer("STAGES", 2)
            .integer("STAGE_CHUNKS", 1)
            .integer("COPIERS", 4)
            .integer("BLOCKS", 1)
            .flag("RESIDENT", true)
            .flag("GROUPED", true)
            .dtype("T", dtype)
            .dtype("Q", dtype)
            .integer("METRIC", 0)
            .integer("PIECE", piece)
            .integer("LANES", 4)
            .flag("EXACT", exact)
            .integer("SHARED_BY", 4);
        kernels.extend((0..3).map(|pass| kernel.clone().integer("PASS", pass)));
    }
    assert_compile(kernels);
}

/// Every kernel of attention, including those of warp groups.
#[test]
fn kernels_of_attention_compile() {
    let kernel = |unit, entry, dtype, is_masked: bool, dim: i64| {
        let kernel = Kernel::new(unit, entry).dtype("T", dtype).dtype("M", DType::F32).flag("MASKED", is_masked);
        kernel.flag("SCALED_FIRST", is_masked).integer("D", dim).integer("DV", dim).integer("ROW_TILES", 1)
    };
    let mut kernels = Vec::new();
    for is_masked in [false, true] {
        for (dtype, dim, groups) in [(DType::F16, 64, 3), (DType::BF16, 128, 2), (DType::F16, 128, 1)] {
            let kernel = kernel(ATTENTION_GROUPS, "attention_groups", dtype, is_masked, dim).integer("KEYS", 128);
            kernels.push(kernel.integer("GROUPS", groups).integer("STAGES", 2).flag("TURNS", groups > 1));
        }
        for groups in [1, 2] {
            let kernel = kernel(ATTENTION_SPLIT, "attention_split", DType::F32, is_masked, 64).integer("KEYS", 64);
            kernels.push(kernel.integer("GROUPS", groups).integer("STAGES", 2));
        }
        for (dtype, dim) in [(DType::F32, 48), (DType::F16, 128), (DType::BF16, 256)] {
            let kernel = kernel(ATTENTION_TILES, "attention_tiles", dtype, is_masked, dim).integer("KEYS", 32);
            kernels.push(kernel.integer("WARPS", 4).integer("BLOCKS", 1).flag("WIDE", is_masked));
            kernels.push(
                Kernel::new(ATTENTION, "attention")
                    .dtype("T", dtype)
                    .dtype("M", dtype)
                    .flag("MASKED", is_masked)
                    .flag("SCALED_FIRST", is_masked),
            );
        }
    }
    assert_compile(kernels);
}

fn assert_compile(kernels: Vec<Kernel>) {
    let Some(nvrtc) = Nvrtc::for_capability(90) else {
        return println!("skipped: NVRTC is not installed, so that no kernel can be compiled for CUDA");
    };
    for kernel in kernels {
        let compiled = nvrtc.compile(&kernel.source(nvrtc.target()));
        assert!(
            compiled.as_ref().is_ok_and(|image| !image.is_empty()),
            "{} does not compile: {compiled:?}",
            kernel.name()
        );
    }
}
