//! Differences between architectures and versions, as data.

/// Prefixes of architecture names, each with the first version of HIP whose compiler supports it
/// (505 is 5.5).
const KNOWN_SINCE: &[(&str, u32)] = &[("gfx11", 505), ("gfx94", 600), ("gfx95", 700), ("gfx12", 604)];

/// Returns why a compiler of this version must not compile for `architecture`. hiprtc of HIP 5.2
/// would end the process: it frees memory that it does not own.
pub(crate) fn refusal(architecture: &str, version: u32) -> Option<String> {
    let is_newer = |(name, since): &&(&str, u32)| architecture.starts_with(name) && version < *since;
    let (_, since) = KNOWN_SINCE.iter().find(is_newer)?;
    let told = |version: u32| format!("{}.{}", version / 100, version % 100);
    Some(format!("hiprtc of HIP {} does not know {architecture}; {} does", told(version), told(*since)))
}

/// Architectures whose matrix instructions the kernels use through `hip.h`: MFMA with full-rate
/// bf16, and WMMA of gfx11.
const TILES_OF_16: &[&str] =
    &["gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1102", "gfx1103"];

/// Whether warps of this architecture multiply tiles of 16 × 16 × 16.
pub(crate) fn tiles_of_16(architecture: &str) -> bool {
    let name = architecture.split(':').next().unwrap_or_default();
    TILES_OF_16.contains(&name)
}

/// Whether there are kernels for warps of `lanes` lanes.
pub(crate) const fn has_warps_of(lanes: u32) -> bool {
    lanes == 32 || lanes == 64
}

/// Exclusive limit of a grid's threads along each axis. The hardware counts threads, not blocks.
pub(crate) const GRID_THREADS_MAX: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_not_asked_about_what_came_after_it() {
        assert_eq!(refusal("gfx90a:sramecc+:xnack-", 502), None);
        assert_eq!(refusal("gfx1030", 502), None);
        assert_eq!(refusal("gfx1100", 502).unwrap(), "hiprtc of HIP 5.2 does not know gfx1100; 5.5 does");
        assert_eq!(refusal("gfx942", 600), None);
        assert!(refusal("gfx942", 507).is_some());
    }

    #[test]
    fn matrix_units_are_known_by_name() {
        assert!(tiles_of_16("gfx90a:sramecc+:xnack-") && tiles_of_16("gfx1100"));
        // Architectures without matrix units, and with different ones.
        assert!(!tiles_of_16("gfx1030") && !tiles_of_16("gfx906") && !tiles_of_16("gfx1200") && !tiles_of_16(""));
    }
}
