//! Compares this crate's declarations of AMD's libraries with the libraries' own headers, where
//! those are installed: in `/opt/rocm/include`, in `/usr/include`, or in the folder that
//! `PANOPLY_ROCM_HEADERS` names. A function must have as many arguments as in the header, each of
//! the same size and sign. A constant must have the header's value.

use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use super::{amd_smi, hipblaslt, hipfft, miopen, rocblas, rocm_smi};
use crate::sys;

/// A table of functions, constants by their names, and the headers that declare them.
struct DeclarationTable {
    functions: &'static [(&'static str, &'static [&'static str], bool)],
    numbers: &'static [(&'static str, c_int)],
    headers: &'static [&'static str],
}

const LIBRARIES: [DeclarationTable; 8] = [
    DeclarationTable { functions: sys::Functions::DECLARED, numbers: &[], headers: &["hip/hip_runtime_api.h"] },
    DeclarationTable { functions: sys::CompilerFunctions::DECLARED, numbers: &[], headers: &["hip/hiprtc.h"] },
    DeclarationTable {
        functions: rocblas::Functions::DECLARED,
        numbers: rocblas::ENUMERATORS,
        headers: &[
            "rocblas/internal/rocblas-auxiliary.h",
            "rocblas/internal/rocblas-functions.h",
            "rocblas/internal/rocblas-types.h",
        ],
    },
    DeclarationTable {
        functions: hipblaslt::Functions::DECLARED,
        numbers: hipblaslt::ENUMERATORS,
        headers: &["hipblaslt/hipblaslt.h", "hipblas-common/hipblas-common.h", "hip/library_types.h"],
    },
    DeclarationTable {
        functions: miopen::Functions::DECLARED,
        numbers: miopen::ENUMERATORS,
        headers: &["miopen/miopen.h"],
    },
    DeclarationTable {
        functions: hipfft::Functions::DECLARED,
        numbers: hipfft::ENUMERATORS,
        headers: &["hipfft/hipfft.h"],
    },
    DeclarationTable {
        functions: amd_smi::Functions::DECLARED,
        numbers: amd_smi::ENUMERATORS,
        headers: &["amd_smi/amdsmi.h"],
    },
    DeclarationTable {
        functions: rocm_smi::Functions::DECLARED,
        numbers: rocm_smi::ENUMERATORS,
        headers: &["rocm_smi/rocm_smi.h"],
    },
];

/// How an argument is passed to a C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentClass {
    Pointer,
    Bits32,
    Unsigned32,
    Bits64,
    Unsigned64,
}

/// The header's type names that are passed as pointers (handles), and below those that are 32-bit
/// enumerations.
const POINTERS: [&str; 19] = [
    "hipStream_t",
    "hipEvent_t",
    "hipModule_t",
    "hipFunction_t",
    "hipGraph_t",
    "hipGraphExec_t",
    "hipDeviceptr_t",
    "hiprtcProgram",
    "rocblas_handle",
    "hipblasLtHandle_t",
    "hipblasLtMatrixLayout_t",
    "hipblasLtMatmulDesc_t",
    "hipblasLtMatmulPreference_t",
    "hipfftHandle",
    "miopenHandle_t",
    "miopenAcceleratorQueue_t",
    "miopenTensorDescriptor_t",
    "miopenConvolutionDescriptor_t",
    "amdsmi_processor_handle",
];
const ENUMERATIONS: [&str; 19] = [
    "hipError_t",
    "hipDeviceAttribute_t",
    "hipDevice_t",
    "hipStreamCaptureMode",
    "hiprtcResult",
    "rocblas_operation",
    "rocblas_datatype",
    "rocblas_gemm_algo",
    "hipDataType",
    "hipblasComputeType_t",
    "hipblasLtMatrixLayoutAttribute_t",
    "hipblasLtMatmulDescAttributes_t",
    "hipblasLtMatmulPreferenceAttributes_t",
    "hipfftType",
    "miopenDataType_t",
    "miopenConvolutionMode_t",
    "rsmi_temperature_metric_t",
    "amdsmi_temperature_metric_t",
    "amdsmi_temperature_type_t",
];

/// Parses an argument in C: its type and its optional name.
fn passed_in_c(argument: &str) -> Option<ArgumentClass> {
    if argument.contains(['*', '[']) {
        return Some(ArgumentClass::Pointer);
    }
    let is_type = |word: &&str| !["const", "enum", "struct"].contains(word) && !word.starts_with("__dparm");
    // In C++ an argument may have a default value, which is not part of its type.
    let argument = argument.split_once('=').map_or(argument, |(before, _)| before);
    let words: Vec<&str> = argument.split_whitespace().filter(is_type).collect();
    let known = |name: &str| match name {
        "int" | "int32_t" | "rocblas_int" => Some(ArgumentClass::Bits32),
        "uint32_t" | "unsigned int" | "unsigned" => Some(ArgumentClass::Unsigned32),
        "int64_t" | "rocblas_stride" | "long long int" | "long long" => Some(ArgumentClass::Bits64),
        // The last two are an enumeration with 64-bit values and a union of 64 bits.
        "size_t" | "uint64_t" | "rsmi_gpu_block_t" | "amdsmi_bdf_t" => Some(ArgumentClass::Unsigned64),
        name if POINTERS.contains(&name) => Some(ArgumentClass::Pointer),
        name if ENUMERATIONS.contains(&name) => Some(ArgumentClass::Bits32),
        _ => None,
    };
    // The longest prefix that is a type. The one word that may remain is the argument's name.
    let most = words.len();
    (most.saturating_sub(1)..=most).rev().find_map(|count| known(&words[..count].join(" ")))
}

/// The same for an argument in this crate's declarations.
fn passed_in_rust(argument: &str) -> ArgumentClass {
    match argument {
        "c_int" | "i32" | "Status" => ArgumentClass::Bits32,
        "c_uint" | "u32" => ArgumentClass::Unsigned32,
        "i64" | "c_longlong" => ArgumentClass::Bits64,
        "usize" | "u64" => ArgumentClass::Unsigned64,
        pointer => {
            assert!(pointer.starts_with('*') || pointer == "Handle", "{pointer} is not known");
            ArgumentClass::Pointer
        }
    }
}

/// The header's text without comments and preprocessor directives.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(at) = rest.find("/*") {
        kept.push_str(&rest[..at]);
        rest = rest[at..].split_once("*/").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    let lines = kept.lines().map(|line| line.split_once("//").map_or(line, |(before, _)| before));
    lines.filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// The arguments of function `name`, if `text` declares it.
fn arguments<'a>(text: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.match_indices(name).find_map(|(at, _)| {
        let (before, after) = (&text[..at], text[at + name.len()..].trim_start());
        if before.ends_with(is_word) || !after.starts_with('(') {
            return None;
        }
        // A declaration has its result type before the name and ends with a semicolon.
        let result = before.trim_end().rsplit([';', '}', '{']).next()?.trim();
        let (list, _) = after[1..].split_once(';')?;
        let list = list.trim_end().strip_suffix(')')?;
        let is_declared = !result.is_empty() && !result.contains(['=', '(']) || result.contains("EXPORT");
        is_declared.then(|| if matches!(list.trim(), "" | "void") { Vec::new() } else { list.split(',').collect() })
    })
}

/// The value that `text` gives to `name`.
fn number(text: &str, name: &str) -> Option<i64> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.match_indices(name).find_map(|(at, _)| {
        let after = text[at + name.len()..].trim_start();
        let value = after.strip_prefix('=').unwrap_or(if after.starts_with(['-', '1', '2']) { after } else { "" });
        if text[..at].ends_with(is_word) || value.is_empty() || text[at + name.len()..].starts_with(is_word) {
            return None;
        }
        let digits: String =
            value.trim_start().chars().take_while(|letter| is_word(*letter) || *letter == '-').collect();
        match digits.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        }
    })
}

fn folders() -> Vec<PathBuf> {
    match std::env::var_os("PANOPLY_ROCM_HEADERS") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => vec![PathBuf::from("/opt/rocm/include"), PathBuf::from("/usr/include")],
    }
}

/// All headers of a library in `folder`, joined: the plain text, and the text with directives,
/// which define numbers as well.
fn read(folder: &Path, headers: &[&str]) -> Option<[String; 2]> {
    let texts =
        headers.iter().map(|header| fs::read_to_string(folder.join(header)).ok()).collect::<Option<Vec<_>>>()?;
    let whole = texts.join("\n");
    Some([plain(&whole), whole])
}

#[test]
fn declarations_are_the_headers() {
    for library in LIBRARIES {
        let Some([text, whole]) = folders().iter().find_map(|folder| read(folder, library.headers)) else {
            println!("skipped: {} is not installed", library.headers[0]);
            continue;
        };
        for (name, own, may_be_missing) in library.functions {
            let Some(theirs) = arguments(&text, name) else {
                assert!(may_be_missing, "{} does not declare {name}", library.headers[0]);
                continue;
            };
            let theirs: Vec<_> = theirs.into_iter().map(|argument| (argument, passed_in_c(argument))).collect();
            let own: Vec<_> = own.iter().map(|argument| Some(passed_in_rust(argument))).collect();
            assert_eq!(theirs.iter().map(|(_, passed)| *passed).collect::<Vec<_>>(), own, "{name}: {theirs:?}");
        }
        for (name, own) in library.numbers {
            let theirs = number(&text, name).or_else(|| number(&whole, name));
            assert_eq!(theirs, Some(i64::from(*own)), "{name}");
        }
        println!("{}: {} functions, {} numbers", library.headers[0], library.functions.len(), library.numbers.len());
    }
}

/// Checks the parser itself: a deviating header is noticed.
#[test]
fn a_header_is_understood() {
    let text = plain(
        "/** f(int) */\n#define g(x) x\nEXPORT int f(handle_t* h, // one\n  const uint64_t n, unsigned int flags);\nenum { A = 0x29, AB=7 };\nint call(void);",
    );
    let passed: Vec<_> = arguments(&text, "f").unwrap().into_iter().map(passed_in_c).collect();
    assert_eq!(
        passed,
        [Some(ArgumentClass::Pointer), Some(ArgumentClass::Unsigned64), Some(ArgumentClass::Unsigned32)]
    );
    assert_eq!(arguments(&text, "call"), Some(Vec::new()));
    assert_eq!((arguments(&text, "g"), arguments(&text, "al")), (None, None));
    assert_eq!((number(&text, "A"), number(&text, "AB"), number(&text, "B")), (Some(0x29), Some(7), None));
    assert_eq!(passed_in_c("who_knows_t x"), None);
}
