//! Searches in a collection in memory: from query vectors to hits with their ids.

use panoply::DType;
use panoply::prelude::Metric;
use panoply::vector::{Collection, Options, Schema, SearchOptions, Storage};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};
use crate::bench::random::Normals;
use crate::vectors::residency_on;

/// Searches of each caller in one run.
const SEARCHES_PER_CALLER: usize = 50;
/// Rows in one insert.
const ROWS_PER_INSERT: usize = 100_000;

/// All cases of collections.
pub const CASES: &[&dyn Case] = &[
    &CollectionCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    &CollectionCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    &CallersCase { rows: 1_000_000, dims: 128, callers: 1, k: 10 },
    &CallersCase { rows: 1_000_000, dims: 128, callers: 64, k: 10 },
    &CollectionCase { dtype: DType::F16, rows: 10_000_000, dims: 128, queries: 1, k: 10 },
];

/// Many queries in one call.
#[derive(Clone, Copy)]
struct CollectionCase {
    dtype: DType,
    rows: usize,
    dims: usize,
    queries: usize,
    k: usize,
}

impl Case for CollectionCase {
    fn name(&self) -> String {
        let CollectionCase { dtype, rows, dims, queries, k } = self;
        format!("collection/dot/{dtype}/{rows}x{dims}/q{queries}k{k}")
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.queries as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Huge
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (CollectionCase { dtype, rows, dims, queries, k }, mut normals) = (*self, place.normals());
        let collection = collection(place, dtype, rows, dims, &mut normals)?;
        let (query, options) = (normals.values(queries * dims), SearchOptions::new(k));
        Ok(Box::new(move || {
            let found = match queries {
                1 => collection.search(&query, &options).map(drop),
                _ => collection.search_many(&query, &options).map(drop),
            };
            found.map(|()| None).map_err(outside)
        }))
    }
}

/// Threads that each search for one query repeatedly. One run is `SEARCHES_PER_CALLER` searches
/// per thread.
#[derive(Clone, Copy)]
struct CallersCase {
    rows: usize,
    dims: usize,
    callers: usize,
    k: usize,
}

impl Case for CallersCase {
    fn name(&self) -> String {
        let CallersCase { rows, dims, callers, k } = self;
        format!("collection/callers/{rows}x{dims}/c{callers}k{k}")
    }

    fn amount(&self) -> Amount {
        Amount::Queries((self.callers * SEARCHES_PER_CALLER) as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Huge
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (CallersCase { rows, dims, callers, k }, mut normals) = (*self, place.normals());
        let collection = collection(place, DType::F32, rows, dims, &mut normals)?;
        let (queries, options) = (normals.values(callers * dims), SearchOptions::new(k));
        Ok(Box::new(move || search_side_by_side(&collection, &queries, dims, &options).map(|()| None)))
    }
}

/// Searches for every query repeatedly, each in its own thread.
fn search_side_by_side(
    collection: &Collection,
    queries: &[f32],
    dims: usize,
    options: &SearchOptions,
) -> panoply::Result<()> {
    std::thread::scope(|scope| {
        let search = |query| (0..SEARCHES_PER_CALLER).try_for_each(|_| collection.search(query, options).map(drop));
        let callers: Vec<_> = queries.chunks(dims).map(|query| scope.spawn(move || search(query))).collect();
        for caller in callers {
            let searched = caller.join().map_err(|_| panoply::Error::invalid("a caller", "an end", "a panic"))?;
            searched.map_err(outside)?;
        }
        Ok(())
    })
}

/// Makes a collection. If the device has its own memory, the rows are resident there.
fn collection(
    place: &BenchDevice,
    dtype: DType,
    rows: usize,
    dims: usize,
    normals: &mut Normals,
) -> panoply::Result<Collection> {
    let storage = if dtype == DType::F16 { Storage::F16 } else { Storage::F32 };
    let schema = Schema::new("bench", dims, Metric::Dot).storage(storage);
    // One segment holds all rows, so that a search is one op.
    let segment_bytes_max = 2 * rows * dims * dtype.size_bytes();
    let options = Options { residency: residency_on(&place.device), segment_bytes_max, ..Options::default() };
    let collection = Collection::in_memory(&*place.runtime, schema, options).map_err(outside)?;
    for first in (0..rows).step_by(ROWS_PER_INSERT) {
        let count = ROWS_PER_INSERT.min(rows - first);
        let ids: Vec<String> = (first..first + count).map(|row| row.to_string()).collect();
        collection.insert_many(&ids, &normals.values(count * dims), &[]).map_err(outside)?;
    }
    collection.compact().map_err(outside)?;
    collection.make_resident().map_err(outside)?;
    Ok(collection)
}

/// Converts an error of the collection to an error of the runtime.
fn outside(error: panoply::vector::Error) -> panoply::Error {
    panoply::Error::invalid("the collection", "an answer", error)
}
