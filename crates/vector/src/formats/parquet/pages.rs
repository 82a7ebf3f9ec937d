//! Guards between a file and the Parquet library: the size of pages is bounded, and a panic inside
//! the library becomes an error.
//!
//! A few bytes of run-length encoding can expand to billions of values. Therefore the values that
//! the pages of one column claim are counted before decoding, and the count is compared with the
//! most that a batch can need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// Maximum number of values of one column that are decoded for one batch. A batch has a few
/// million; the rest of a page begun earlier may add some.
const VALUES_PER_BATCH_MAX: u64 = 1 << 26;

/// Counts the values decoded for the current batch. Clones share the count.
#[derive(Clone, Default)]
pub struct Budget(Arc<AtomicU64>);

impl Budget {
    /// Resets the count at the start of a column of a batch.
    pub fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn spend(&self, values: u64) -> Result<()> {
        let spent = self.0.fetch_add(values, Ordering::Relaxed).saturating_add(values);
        if spent > VALUES_PER_BATCH_MAX {
            let message = format!("pages of {spent} values at once; at most {VALUES_PER_BATCH_MAX} are read");
            return Err(ParquetError::General(message));
        }
        Ok(())
    }
}

/// The pages of a column, whose values are counted before they are decoded.
pub struct BoundedPages {
    pages: Box<dyn PageReader>,
    budget: Budget,
}

impl BoundedPages {
    pub fn new(pages: Box<dyn PageReader>, budget: Budget) -> BoundedPages {
        BoundedPages { pages, budget }
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.budget.spend(u64::from(page.num_values()))?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

/// Runs a library call and turns a panic into an error. The library is not written for hostile
/// files, so a panic counts as a fault of the file. Nothing that the library left half done is used
/// afterwards.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(ParquetError::General("the file contradicts itself".to_owned())))
}
