//! Faults and peculiarities of drivers, as data: platform, device, correction and reason.

/// One correction.
pub(crate) struct Quirk {
    /// A part of the platform's name.
    platform: &'static str,
    /// A part of the device's name.
    device: &'static str,
    pub(crate) correction: Correction,
    /// The reason; the device's features repeat it.
    pub(crate) reason: &'static str,
}

/// The kind of correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// Programs are stored as text: the driver's own cache is faster than its binaries.
    TextOnly,
    /// A block has at most this much memory, even if the driver reports more.
    SharedBytesMax(u64),
    /// A block has at most this many threads.
    ThreadsMax(u64),
}

const QUIRKS: &[Quirk] = &[
    Quirk {
        platform: "Portable Computing Language",
        device: "",
        correction: Correction::TextOnly,
        reason: "a program's binary makes PoCL compile every kernel for blocks of any size first, which no launch here uses",
    },
    Quirk {
        platform: "Portable Computing Language",
        device: "",
        correction: Correction::SharedBytesMax(64 << 10),
        reason: "PoCL tells the processor's whole cache as block memory; what is kept small stays near the core",
    },
    Quirk {
        platform: "Portable Computing Language",
        device: "",
        correction: Correction::ThreadsMax(1024),
        reason: "PoCL takes blocks of 4096 threads, but every variable that lives across a barrier is kept for each of them",
    },
    Quirk {
        platform: "Apple",
        device: "CPU",
        correction: Correction::ThreadsMax(1),
        reason: "Apple's processors take one thread for each block of a kernel with barriers, and tell 1024",
    },
];

/// The corrections for a device.
pub(crate) fn of(platform: &str, device: &str) -> impl Iterator<Item = &'static Quirk> {
    let fits = move |quirk: &&Quirk| platform.contains(quirk.platform) && device.contains(quirk.device);
    QUIRKS.iter().filter(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quirk_fits_its_own_platform_alone() {
        let corrections = |platform: &'static str, device: &'static str| -> Vec<Correction> {
            of(platform, device).map(|quirk| quirk.correction).collect()
        };
        assert!(corrections("Portable Computing Language", "any processor").contains(&Correction::TextOnly));
        assert!(corrections("NVIDIA CUDA", "NVIDIA H200").is_empty());
        assert_eq!(corrections("Apple", "Some CPU"), [Correction::ThreadsMax(1)]);
        assert!(QUIRKS.iter().all(|quirk| !quirk.reason.is_empty()));
    }
}
