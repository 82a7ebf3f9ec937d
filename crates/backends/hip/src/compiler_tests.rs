//! Tests with hiprtc, where it is installed: its messages about faulty source, and the
//! architectures that it is never asked to compile for.

use panoply_kernels::c::Kernel;

use super::*;

/// hiprtc for an architecture that every version supports. Prints the reason if hiprtc is missing.
fn hiprtc() -> Option<Hiprtc> {
    Hiprtc::for_architecture("gfx90a", 64).inspect_err(|absence| println!("skipped: {absence}")).ok()
}

#[test]
fn a_wrong_text_is_told_with_its_place() {
    let Some(hiprtc) = hiprtc() else { return };
    let broken = Kernel::generated("broken", "KERNEL broken(void) { this is not C; }".into(), "broken");
    let told = hiprtc.compile(&broken.source(hiprtc.target())).unwrap_err();
    assert!(told.contains("error:") && told.contains("this"), "{told}");
    assert!(hiprtc.compile("a zero \0 in it").is_err());
}

#[test]
fn a_kernel_becomes_a_code_object() {
    let Some(hiprtc) = hiprtc() else { return };
    let text = "KERNEL twice(GLOBAL f32 *x) { x[thread_x()] += shuffle_xor_f32(x[thread_x()], 1); }";
    let kernel = Kernel::generated("twice", text.into(), "twice");
    let code = hiprtc.compile(&kernel.source(hiprtc.target())).unwrap();
    assert!(code.windows(5).any(|word| word == b"twice") && code.windows(4).any(|word| word == b"\x7fELF"));
    assert!(hiprtc.identity().contains("gfx90a 64"));
}

#[test]
fn an_architecture_that_it_does_not_know_is_refused() {
    let (version, lanes) = ((502, "HIP 5.2.0".to_owned()), 32);
    let hiprtc = Hiprtc::new(&["libNoSuchCompiler.so.9".to_owned()], "gfx1100".to_owned(), lanes, version.clone());
    assert!(hiprtc.compile("").unwrap_err().contains("does not know gfx1100"));
    let missing = Hiprtc::new(&["libNoSuchCompiler.so.9".to_owned()], "gfx1030".to_owned(), lanes, version);
    assert!(missing.compile("").unwrap_err().contains("libNoSuchCompiler.so.9"));
}
