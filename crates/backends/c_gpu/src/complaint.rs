//! Errors that only a kernel can detect, such as an index out of range. Each op that may have such
//! an error gets a word of pinned host memory. The kernel writes the word, and the host reads it
//! when the op has finished. Nothing is copied, and an op without an error costs nothing.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::{DeviceId, Error, Result};

use crate::driver::{Address, Driver};

/// The value by which a kernel confirms success, for ops that need a confirmation.
const APPROVED: u64 = u64::MAX;
/// Number of words in one page of pinned memory.
const PAGE_WORDS: usize = 512;

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE_WORDS]);

/// The error words of one engine.
pub(crate) struct DeviceErrors {
    driver: Rc<dyn Driver>,
    device: DeviceId,
    pages: Vec<Box<Page>>,
    free: Vec<(usize, usize)>,
}

/// A word that an op in flight may write, with its meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceError {
    place: (usize, usize),
    /// Makes an error from a non-zero word and `detail`.
    describe: fn(u64, u64) -> Error,
    detail: u64,
    /// Whether an unwritten word is an error too.
    is_approval: bool,
}

impl DeviceError {
    /// Turns this into a word that is an error unless a kernel confirms success by writing all
    /// ones.
    pub(crate) fn approval(self) -> DeviceError {
        DeviceError { is_approval: true, ..self }
    }
}

impl DeviceErrors {
    pub(crate) fn new(driver: Rc<dyn Driver>, device: DeviceId) -> DeviceErrors {
        DeviceErrors { driver, device, pages: Vec::new(), free: Vec::new() }
    }

    /// Lends a zeroed word, with its device address.
    pub(crate) fn lend(&mut self, describe: fn(u64, u64) -> Error, detail: u64) -> Result<(DeviceError, Address)> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let place = self.free.pop().unwrap_or((0, 0));
        let word = &self.pages[place.0].0[place.1];
        word.store(0, Ordering::Relaxed);
        let address = self.driver.pinned_address(word.as_ptr().cast_const().cast())?;
        Ok((DeviceError { place, describe, detail, is_approval: false }, address))
    }

    /// Returns the word, with the error that the op's kernels wrote, if any. The op must have
    /// finished.
    pub(crate) fn settle(&mut self, complaint: DeviceError) -> Result<()> {
        self.free.push(complaint.place);
        let word = self.pages[complaint.place.0].0[complaint.place.1].load(Ordering::Acquire);
        match (word, complaint.is_approval) {
            (0, false) | (APPROVED, true) => Ok(()),
            (0, true) => {
                let reason = "a kernel that has to verify the input did not run".to_owned();
                Err(Error::DeviceFault { device: self.device, reason })
            }
            (word, _) => Err((complaint.describe)(word, complaint.detail)),
        }
    }

    fn grow(&mut self) -> Result<()> {
        let page = Box::new(Page([const { AtomicU64::new(0) }; PAGE_WORDS]));
        // SAFETY: the page is owned by this table, which unpins the page before dropping it.
        unsafe { self.driver.pin(NonNull::from(&*page).cast(), size_of::<Page>())? };
        self.free.extend((0..PAGE_WORDS).map(|word| (self.pages.len(), word)));
        self.pages.push(page);
        Ok(())
    }
}

impl Drop for DeviceErrors {
    fn drop(&mut self) {
        for page in &self.pages {
            self.driver.unpin(NonNull::from(&**page).cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::{Api, DeviceId};

    use super::*;
    use crate::emulated::EmulatedDriver;

    #[test]
    fn a_word_that_was_written_becomes_an_error() {
        let device = DeviceId { api: Api::CUDA, index: 0 };
        let mut complaints = DeviceErrors::new(Rc::new(EmulatedDriver::new(device, "c++".into(), 32)), device);
        let describe = |word: u64, detail: u64| Error::invalid("a word", format!("{detail}"), word);
        let (silent, _) = complaints.lend(describe, 1).unwrap();
        let (loud, address) = complaints.lend(describe, 2).unwrap();
        // SAFETY: the word was just lent and is owned by the table.
        unsafe { (address.0 as *mut u64).write_volatile(7) };
        assert_eq!(complaints.settle(silent), Ok(()));
        assert_eq!(complaints.settle(loud), Err(describe(7, 2)));
        // If a confirmation is required, an unwritten word is a device fault.
        for (word, expected) in [(u64::MAX, Ok(())), (3, Err(describe(3, 4)))] {
            let (approval, address) = complaints.lend(describe, 4).unwrap();
            // SAFETY: as above.
            unsafe { (address.0 as *mut u64).write_volatile(word) };
            assert_eq!(complaints.settle(approval.approval()), expected);
        }
        let (silent, _) = complaints.lend(describe, 4).unwrap();
        assert!(matches!(complaints.settle(silent.approval()), Err(Error::DeviceFault { .. })));
        // A returned word is zeroed when it is lent again, for any number of words.
        let lent: Vec<_> = (0..2 * PAGE_WORDS).map(|_| complaints.lend(describe, 0).unwrap().0).collect();
        assert!(lent.into_iter().all(|complaint| complaints.settle(complaint).is_ok()));
    }
}
