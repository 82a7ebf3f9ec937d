//! Errors that only a kernel can find, such as an index out of range: each op that may have one gets a word of pinned host memory, which
//! its kernel writes and the host reads when the op has finished. Nothing is copied, and an op without an error costs nothing.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::{DeviceId, Error, Result};

use crate::driver::{Address, Driver};

/// What a kernel writes where it must say that all is well.
const APPROVED: u64 = u64::MAX;
/// Words of one page of pinned memory.
const PAGE_WORDS: usize = 512;

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE_WORDS]);

/// The error words of one engine.
pub(crate) struct Complaints {
    driver: Rc<dyn Driver>,
    device: DeviceId,
    pages: Vec<Box<Page>>,
    free: Vec<(usize, usize)>,
}

/// A word that an op under way may write, and what it means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Complaint {
    place: (usize, usize),
    /// Makes an error of a word that is not zero, and of `detail`.
    describe: fn(u64, u64) -> Error,
    detail: u64,
    /// Whether silence is an error too.
    is_approval: bool,
}

impl Complaint {
    /// A word that is an error unless a kernel says that all is well, with all ones.
    pub(crate) fn approval(self) -> Complaint {
        Complaint { is_approval: true, ..self }
    }
}

impl Complaints {
    pub(crate) fn new(driver: Rc<dyn Driver>, device: DeviceId) -> Complaints {
        Complaints { driver, device, pages: Vec::new(), free: Vec::new() }
    }

    /// A word that is zero, and where the device finds it.
    pub(crate) fn lend(&mut self, describe: fn(u64, u64) -> Error, detail: u64) -> Result<(Complaint, Address)> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let place = self.free.pop().unwrap_or((0, 0));
        let word = &self.pages[place.0].0[place.1];
        word.store(0, Ordering::Relaxed);
        let address = self.driver.pinned_address(word.as_ptr().cast_const().cast())?;
        Ok((Complaint { place, describe, detail, is_approval: false }, address))
    }

    /// The error that the op's kernels wrote, if any. The op must have finished.
    pub(crate) fn settle(&mut self, complaint: Complaint) -> Result<()> {
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
        // SAFETY: the page lives in this table, which unpins it before it goes.
        unsafe { self.driver.pin(NonNull::from(&*page).cast(), size_of::<Page>())? };
        self.free.extend((0..PAGE_WORDS).map(|word| (self.pages.len(), word)));
        self.pages.push(page);
        Ok(())
    }
}

impl Drop for Complaints {
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
        let mut complaints = Complaints::new(Rc::new(EmulatedDriver::new(device, "c++".into(), 32)), device);
        let describe = |word: u64, detail: u64| Error::invalid("a word", format!("{detail}"), word);
        let (silent, _) = complaints.lend(describe, 1).unwrap();
        let (loud, address) = complaints.lend(describe, 2).unwrap();
        // SAFETY: the word was just lent and lives in the table.
        unsafe { (address.0 as *mut u64).write_volatile(7) };
        assert_eq!(complaints.settle(silent), Ok(()));
        assert_eq!(complaints.settle(loud), Err(describe(7, 2)));
        // Where approval is asked for, silence is the device's fault.
        for (word, expected) in [(u64::MAX, Ok(())), (3, Err(describe(3, 4)))] {
            let (approval, address) = complaints.lend(describe, 4).unwrap();
            // SAFETY: as above.
            unsafe { (address.0 as *mut u64).write_volatile(word) };
            assert_eq!(complaints.settle(approval.approval()), expected);
        }
        let (silent, _) = complaints.lend(describe, 4).unwrap();
        assert!(matches!(complaints.settle(silent.approval()), Err(Error::DeviceFault { .. })));
        // A word that comes back is clean again, however many were lent.
        let lent: Vec<_> = (0..2 * PAGE_WORDS).map(|_| complaints.lend(describe, 0).unwrap().0).collect();
        assert!(lent.into_iter().all(|complaint| complaints.settle(complaint).is_ok()));
    }
}
