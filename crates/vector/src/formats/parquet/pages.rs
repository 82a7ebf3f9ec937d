//! Guards between a file and the Parquet library: no page is larger than its reader expects, and a panic inside the library
//! is an error like any other.
//!
//! A few bytes of a run-length encoding can stand for billions of values. So the values that the pages of one column claim are
//! counted before they are decoded, and the count is compared with what a batch can need at most.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// The most values of one column that are decoded for one batch. A batch has a few million; a page begun before may add some.
const VALUES_PER_BATCH_MAX: u64 = 1 << 26;

/// Values that were decoded for the batch so far. Its clones share the count.
#[derive(Clone, Default)]
pub struct Budget(Arc<AtomicU64>);

impl Budget {
    /// Begins a column of a batch.
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

/// The pages of a column, counted before they are decoded.
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

/// What the library answers. It was not written for hostile files, so that a panic is taken for an error of the file; nothing
/// that it left half done is used afterwards.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(ParquetError::General("the file contradicts itself".to_owned())))
}
