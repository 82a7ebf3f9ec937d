//! The arguments of one launch.

use std::ffi::c_void;

use panoply_core::{Error, Result};

use crate::driver::Address;
use crate::layout::Layout;

/// Bytes available for the arguments of one launch.
pub const ARGUMENT_BYTES_MAX: usize = 1792;
/// Maximum number of arguments of a kernel.
pub const ARGUMENTS_MAX: usize = 72;

/// The arguments of one launch, in the order of the kernel's parameters. They are stored on the
/// stack, so building them allocates nothing.
#[derive(Clone)]
pub struct Arguments {
    storage: [u64; ARGUMENT_BYTES_MAX / 8],
    used: usize,
    offsets: [u16; ARGUMENTS_MAX],
    pointers: [*mut c_void; ARGUMENTS_MAX],
    count: usize,
    /// One bit per argument, set if the argument is an address.
    addresses: u128,
    /// A size that exceeds the kernel's 32 bits, if there was one.
    too_large: Option<usize>,
    /// The memory that a caller's own kernel may access; empty for this project's kernels.
    bounds: Vec<Bounds>,
}

/// A memory range passed to a kernel, for drivers that check its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bounds {
    /// The first byte.
    pub start: Address,
    /// Number of bytes.
    pub bytes: u64,
    /// Whether the kernel may write to the range.
    pub writable: bool,
}

/// One argument, for drivers that take arguments individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// An address in device memory.
    Address(Address),
    /// A number or a structure, in whole words; a number narrower than a word is in the word's low
    /// bytes.
    Value(&'a [u64]),
}

impl Arguments {
    /// An empty list of arguments.
    #[allow(clippy::new_without_default)] // Built explicitly for each launch, never by default.
    pub fn new() -> Arguments {
        Arguments {
            storage: [0; ARGUMENT_BYTES_MAX / 8],
            used: 0,
            offsets: [0; ARGUMENTS_MAX],
            pointers: [std::ptr::null_mut(); ARGUMENTS_MAX],
            count: 0,
            addresses: 0,
            too_large: None,
            bounds: Vec::new(),
        }
    }

    /// A pointer into device memory.
    pub fn address(mut self, address: Address) -> Arguments {
        self.addresses |= 1 << self.count;
        self.push(&[address.0])
    }

    /// A pointer to `bytes` bytes of device memory, the only bytes that the kernel may access
    /// there.
    pub fn memory(mut self, start: Address, bytes: usize, writable: bool) -> Arguments {
        self.bounds.push(Bounds { start, bytes: bytes as u64, writable });
        self.address(start)
    }

    /// The memory that the kernel may access; empty if accesses are not checked.
    pub fn bounds(&self) -> &[Bounds] {
        &self.bounds
    }

    /// A 32-bit number.
    pub fn u32(self, value: u32) -> Arguments {
        self.push(&[u64::from(value)])
    }

    /// A count that is a 32-bit number in the kernel. A larger count is refused at launch.
    pub fn size(mut self, value: usize) -> Arguments {
        self.note(value);
        self.push(&[value as u64])
    }

    /// A 64-bit number.
    pub fn u64(self, value: u64) -> Arguments {
        self.push(&[value])
    }

    /// A signed 64-bit number.
    pub fn i64(self, value: i64) -> Arguments {
        self.push(&[value as u64])
    }

    /// A 32-bit float.
    pub fn f32(self, value: f32) -> Arguments {
        self.push(&[u64::from(value.to_bits())])
    }

    /// A 64-bit float.
    pub fn f64(self, value: f64) -> Arguments {
        self.push(&[value.to_bits()])
    }

    /// A `layout` structure of the kernels' prelude.
    pub fn layout(mut self, layout: &Layout) -> Arguments {
        layout.axes().for_each(|(size, _)| self.note(size));
        self.push(&layout.words())
    }

    /// A structure of pairs of counts, each a 32-bit number in the kernel.
    pub fn sizes(mut self, pairs: &[[usize; 2]]) -> Arguments {
        let begin = self.used;
        for [low, high] in pairs {
            self.note(*low);
            self.note(*high);
            self.storage[self.used] = *low as u64 & 0xffff_ffff | (*high as u64) << 32;
            self.used += 1;
        }
        self.offsets[self.count] = begin as u16;
        self.count += 1;
        self
    }

    /// A structure of the kernel's own, as words in the target's memory layout.
    pub fn structure(self, words: &[u64]) -> Arguments {
        self.push(words)
    }

    /// Checks the counts in a structure that the caller has packed into words itself, as
    /// [`Arguments::size`] does.
    pub fn counting(mut self, sizes: impl IntoIterator<Item = usize>) -> Arguments {
        sizes.into_iter().for_each(|size| self.note(size));
        self
    }

    /// A number narrower than a word is in the word's low bytes, which come first on every
    /// (little-endian) host of these devices.
    fn push(mut self, words: &[u64]) -> Arguments {
        debug_assert!(self.used + words.len() <= self.storage.len() && self.count < ARGUMENTS_MAX);
        self.storage[self.used..self.used + words.len()].copy_from_slice(words);
        self.offsets[self.count] = self.used as u16;
        self.used += words.len();
        self.count += 1;
        self
    }

    fn note(&mut self, size: usize) {
        if size > u32::MAX as usize {
            self.too_large = Some(size);
        }
    }

    /// Checks that all counts fit the kernel's 32 bits.
    pub(crate) fn check(&self) -> Result<()> {
        match self.too_large {
            None => Ok(()),
            Some(got) => Err(Error::OutOfBounds { what: "a kernel's sizes", limit: u32::MAX as usize, got }),
        }
    }

    /// Pointers to the values, as CUDA and HIP take them. They are made last, because the values
    /// must not move afterwards.
    pub fn pointers(&mut self) -> &mut [*mut c_void] {
        for index in 0..self.count {
            self.pointers[index] = (&raw mut self.storage[usize::from(self.offsets[index])]).cast();
        }
        &mut self.pointers[..self.count]
    }

    /// Each argument individually, as OpenCL takes them.
    pub fn each(&self) -> impl Iterator<Item = Argument<'_>> {
        (0..self.count).map(|index| {
            let end = if index + 1 < self.count { self.offsets[index + 1].into() } else { self.used };
            let words = &self.storage[self.offsets[index].into()..end];
            if self.addresses >> index & 1 == 1 { Argument::Address(Address(words[0])) } else { Argument::Value(words) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_kernels_shape() {
        let layout = Layout::new(&[2, 3, 5], &[15, -5, 1]);
        let mut arguments = Arguments::new().u32(7).layout(&layout).address(Address(9));
        let pointers = arguments.pointers().to_vec();
        // SAFETY: the second argument is a layout, stored by the builder: its rank, then the sizes,
        // the last axis first.
        let stored = unsafe { pointers[1].cast::<[u32; 10]>().read() };
        assert_eq!(stored[..4], [3, 5, 3, 2]);
        // SAFETY: the strides follow at the next multiple of eight bytes.
        let strides = unsafe { pointers[1].cast::<i64>().add(5).cast::<[i64; 3]>().read() };
        assert_eq!(strides, [1, -5, 15]);
        // SAFETY: the third argument is one word.
        assert_eq!(unsafe { pointers[2].cast::<u64>().read() }, 9);
        let each: Vec<Argument<'_>> = arguments.each().collect();
        assert_eq!((each[0], each[2]), (Argument::Value(&[7]), Argument::Address(Address(9))));
        assert!(matches!(each[1], Argument::Value(words) if words.len() == 13));
    }

    #[test]
    fn what_a_kernel_cannot_count_to_is_refused() {
        let (most, over) = (u32::MAX as usize, u32::MAX as usize + 1);
        assert!(Arguments::new().size(most).sizes(&[[most, 0]]).counting([most]).check().is_ok());
        let refused = Err(Error::OutOfBounds { what: "a kernel's sizes", limit: most, got: over });
        assert_eq!(Arguments::new().size(over).check(), refused);
        assert_eq!(Arguments::new().sizes(&[[1, over]]).check(), refused);
        assert_eq!(Arguments::new().counting([3, over]).check(), refused);
        let long = Layout::new(&[2, over], &[1, 1]);
        assert_eq!(Arguments::new().layout(&long).check(), refused);
    }
}
