//! Whether a condition of a filter can hold: whether its field has values of its type in any live
//! row.
//!
//! The answer is usually known after one row. Rows never change and never become live again, so the
//! search for such a row goes on where it ended before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::filter::{FieldType, Filter, Path};
use crate::segment::SegmentView;

/// Number of pairs of a field and a type that are remembered for each segment.
const PAIRS_KEPT_MAX: usize = 256;

/// For some fields and types, the first live row of a segment with such a value.
#[derive(Default)]
pub(crate) struct TypesCache {
    first: Mutex<HashMap<(Path, FieldType), FirstRow>>,
}

/// A row before which no live row has a value of the type.
#[derive(Clone, Copy, Default)]
struct FirstRow {
    row: u32,
    /// Whether that row has one.
    is_found: bool,
}

impl TypesCache {
    /// Whether the field has a value of this type in some live row of the segment.
    fn occurs(&self, segment: &SegmentView, path: &Path, kind: FieldType) -> bool {
        let mut all = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&(path.clone(), kind)).copied().unwrap_or_default();
        if known.is_found && segment.is_live(known.row) {
            return true;
        }
        let has = |row: &u32| {
            let metadata = segment.metadata(*row);
            path.find(&metadata).is_some_and(|value| kind.is_in(value))
        };
        let found = (known.row..segment.count).filter(|row| segment.is_live(*row)).find(has);
        if all.len() >= PAIRS_KEPT_MAX {
            all.clear();
        }
        let first = FirstRow { row: found.unwrap_or(segment.count).max(known.row), is_found: found.is_some() };
        all.insert((path.clone(), kind), first);
        found.is_some()
    }
}

/// Refuses a filter that compares a field with values of a type that the field has in no record,
/// though it has values of another type.
pub(crate) fn check_types(segments: &[Arc<SegmentView>], filter: &Filter) -> Result<()> {
    let occurs = |path: &Path, kind| segments.iter().any(|segment| segment.shared.types.occurs(segment, path, kind));
    for (path, got) in filter.typed_fields() {
        if occurs(path, got) {
            continue;
        }
        if let Some(expected) = FieldType::ALL.into_iter().find(|kind| *kind != got && occurs(path, *kind)) {
            return Err(Error::FieldType { field: path.to_string(), expected: expected.name(), got: got.name() });
        }
    }
    Ok(())
}
