//! The arguments of one launch.

use std::ffi::c_void;

use panoply_core::{Error, Result};

use crate::driver::Address;
use crate::layout::Layout;

/// Room for one launch's arguments.
pub const ARGUMENT_BYTES_MAX: usize = 1792;
/// The most arguments of a kernel.
pub const ARGUMENTS_MAX: usize = 72;

/// The arguments of one launch, in the order of the kernel's parameters. They live on the stack: building them touches no heap.
#[derive(Clone)]
pub struct Arguments {
    storage: [u64; ARGUMENT_BYTES_MAX / 8],
    used: usize,
    offsets: [u16; ARGUMENTS_MAX],
    pointers: [*mut c_void; ARGUMENTS_MAX],
    count: usize,
    /// A bit for each argument that is an address.
    addresses: u128,
    /// A size that the kernel cannot count to.
    too_large: Option<usize>,
    /// What a kernel of the caller's own may reach; empty for those of this project.
    bounds: Vec<Bounds>,
}

/// Memory that a kernel is given, for drivers that check its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bounds {
    /// Where it begins.
    pub start: Address,
    /// How many bytes there are.
    pub bytes: u64,
    /// Whether it may be written.
    pub writable: bool,
}

/// One argument, for drivers that are given them one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// A place in device memory.
    Address(Address),
    /// A number or a structure, in whole words; numbers narrower than a word lie in its low bytes.
    Value(&'a [u64]),
}

impl Arguments {
    /// No argument yet.
    #[allow(clippy::new_without_default)] // Built at one place for each launch, never by default.
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

    /// A pointer to so many bytes of device memory, which is all that the kernel may reach there.
    pub fn memory(mut self, start: Address, bytes: usize, writable: bool) -> Arguments {
        self.bounds.push(Bounds { start, bytes: bytes as u64, writable });
        self.address(start)
    }

    /// What the kernel may reach; empty where nobody has to check.
    pub fn bounds(&self) -> &[Bounds] {
        &self.bounds
    }

    /// A number of 32 bits.
    pub fn u32(self, value: u32) -> Arguments {
        self.push(&[u64::from(value)])
    }

    /// A count for which the kernel has 32 bits. One that is larger is refused when the kernel is launched.
    pub fn size(mut self, value: usize) -> Arguments {
        self.note(value);
        self.push(&[value as u64])
    }

    /// A number of 64 bits.
    pub fn u64(self, value: u64) -> Arguments {
        self.push(&[value])
    }

    /// A number of 64 bits with a sign.
    pub fn i64(self, value: i64) -> Arguments {
        self.push(&[value as u64])
    }

    /// A float.
    pub fn f32(self, value: f32) -> Arguments {
        self.push(&[u64::from(value.to_bits())])
    }

    /// A float of 64 bits.
    pub fn f64(self, value: f64) -> Arguments {
        self.push(&[value.to_bits()])
    }

    /// The prelude's `layout`.
    pub fn layout(mut self, layout: &Layout) -> Arguments {
        layout.axes().for_each(|(size, _)| self.note(size));
        self.push(&layout.words())
    }

    /// A structure of pairs of counts, for each of which the kernel has 32 bits.
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

    /// A structure of the kernel's own, as words in the target's layout.
    pub fn structure(self, words: &[u64]) -> Arguments {
        self.push(words)
    }

    /// With a structure's counts checked as [`Arguments::size`] does, which the caller has packed into words itself.
    pub fn counting(mut self, sizes: impl IntoIterator<Item = usize>) -> Arguments {
        sizes.into_iter().for_each(|size| self.note(size));
        self
    }

    /// Numbers narrower than a word lie in its low bytes, which come first on every machine that has these devices.
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

    /// Whether the kernel can count to all that it is given.
    pub(crate) fn check(&self) -> Result<()> {
        match self.too_large {
            None => Ok(()),
            Some(got) => Err(Error::OutOfBounds { what: "a kernel's sizes", limit: u32::MAX as usize, got }),
        }
    }

    /// Pointers to the values, made when they no longer move: what CUDA and HIP take.
    pub fn pointers(&mut self) -> &mut [*mut c_void] {
        for index in 0..self.count {
            self.pointers[index] = (&raw mut self.storage[usize::from(self.offsets[index])]).cast();
        }
        &mut self.pointers[..self.count]
    }

    /// Each argument: what OpenCL takes.
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
        // SAFETY: the second argument is a layout, stored by the builder: its rank, then the sizes, the last axis first.
        let stored = unsafe { pointers[1].cast::<[u32; 10]>().read() };
        assert_eq!(stored[..4], [3, 5, 3, 2]);
        // SAFETY: the strides follow on the next boundary of eight bytes.
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
