//! `panoply vectors tune`: builds the index, and measures the recall of searches in a few of its
//! lists.

use std::time::Instant;

use panoply::vector::{Collection, IndexOptions, IndexReport, Options, RecallRow, SearchOptions};
use serde_json::json;

use super::{counted, grouped, key_of, queries_of, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::TuneOptions;
use crate::failure::Failure;
use crate::screen::{Screen, spinner};
use crate::store::commit::Step;

/// The most records of the collection that serve as queries if none are given.
const QUERIES_OWN_MAX: usize = 256;
/// The full width of the table, in columns; on a narrower screen the table is narrower.
const TABLE_WIDTH: usize = 49;
/// The recall that a recommended setting must reach.
const RECALL_AIM: f64 = 0.95;

/// Builds the index, measures and prints.
pub fn run(options: &TuneOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection =
        Collection::open(&runtime, &options.path, Options { key: key_of(&options.path, key)?, ..Options::default() })?;
    if collection.is_empty() {
        return Err(Failure::Run(anyhow::anyhow!("the collection is empty; there is nothing to tune")));
    }
    let waiting = spinner("building the index");
    let start = Instant::now();
    let (index, built) = index(&collection, options)?;
    let seconds = start.elapsed().as_secs_f64();
    waiting.set_message("measuring");
    let queries = match &options.queries {
        Some(path) => queries_of(path, collection.schema().dimension)?,
        None => own_queries(&collection),
    };
    let nprobes = nprobes(&options.nprobes, index.lists);
    let rows = collection.measure_recall(&queries, &SearchOptions::new(options.k), &nprobes)?;
    waiting.finish_and_clear();
    match options.format {
        Format::Json => screen.json(&json!({
            "lists": index.lists,
            "indexed_rows": index.indexed_rows,
            "built": built,
            "build_seconds": if built { Some(seconds) } else { None },
            "queries": queries.len() / collection.schema().dimension,
            "k": options.k,
            "exact_queries_per_s": rows.first().map(|row| row.exact_queries_per_s),
            "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
            "recommended_nprobe": recommended(&rows),
        })),
        Format::Table => {
            let how = if built { format!("built in {seconds:.2} s") } else { "already there".to_owned() };
            let (lists, records) = (counted(index.lists as u64, "list"), counted(index.indexed_rows, "row"));
            screen.prose(&format!("The index has {lists} of {records}, {how}."))?;
            screen.line("")?;
            print(&rows, options.k, screen)
        }
    }
}

/// Returns the existing index, or builds one if there is none or another number of lists is
/// requested. The flag is true if it was built.
fn index(collection: &Collection, options: &TuneOptions) -> Result<(IndexReport, bool), Failure> {
    let there = collection.stats().index;
    match there {
        Some(index) if options.lists.is_none_or(|lists| lists == index.lists) => Ok((index, false)),
        _ => {
            let before = "no record is changed; whether the new index is in use, `panoply vectors info` tells";
            let building = Step::announced(before, "no record is changed, and the new index is in use");
            let index = collection.build_index(&IndexOptions { lists: options.lists, ..IndexOptions::default() })?;
            building.end();
            Ok((index, true))
        }
    }
}

/// Returns vectors of the collection's own records, spread evenly.
fn own_queries(collection: &Collection) -> Vec<f32> {
    let step = collection.len().div_ceil(QUERIES_OWN_MAX).max(1);
    collection.iter().step_by(step).flat_map(|entry| entry.vector).collect()
}

/// Returns the requested values, else powers of two up to half of the lists.
fn nprobes(asked: &[usize], lists: usize) -> Vec<usize> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let powers = (0..usize::BITS).map(|power| 1_usize << power);
    let mut nprobes: Vec<usize> = powers.take_while(|nprobe| *nprobe <= lists.div_ceil(2)).collect();
    if nprobes.is_empty() {
        nprobes.push(1);
    }
    nprobes
}

fn recommended(rows: &[RecallRow]) -> Option<usize> {
    rows.iter().find(|row| row.recall >= RECALL_AIM).map(|row| row.nprobe)
}

fn row_json(row: &RecallRow) -> serde_json::Value {
    json!({
        "nprobe": row.nprobe,
        "recall": row.recall,
        "scanned_share": row.scanned_share,
        "queries_per_s": row.queries_per_s,
    })
}

fn print(rows: &[RecallRow], k: usize, screen: &mut Screen) -> Result<(), Failure> {
    let narrow = screen.width() < TABLE_WIDTH;
    let ([first, second, third, fourth], looked_at) =
        if narrow { ([6, 10, 12, 11], "LOOKED AT") } else { ([7, 12, 17, 13], "ROWS LOOKED AT") };
    let line = |nprobe: &str, recall: &str, scanned: &str, rate: &str| {
        format!("{nprobe:>first$}{recall:>second$}{scanned:>third$}{rate:>fourth$}")
    };
    let recall = format!("RECALL@{k}");
    screen.line(screen.strong(&line("NPROBE", &recall, looked_at, "QUERIES/S")))?;
    let figures = |nprobe: &str, recall: f64, share: f64, rate: f64| {
        line(nprobe, &format!("{recall:.3}"), &format!("{:.1} %", share * 100.0), &grouped(rate as u64))
    };
    for row in rows {
        screen.line(figures(&row.nprobe.to_string(), row.recall, row.scanned_share, row.queries_per_s))?;
    }
    let exact = rows.first().map_or(0.0, |row| row.exact_queries_per_s);
    screen.line(figures("exact", 1.0, 1.0, exact))?;
    screen.line("")?;
    screen.prose(&match rows.iter().find(|row| row.recall >= RECALL_AIM) {
        Some(row) if row.queries_per_s < row.exact_queries_per_s => {
            format!(
                "--nprobe {} finds {RECALL_AIM} of the true neighbours or more, but exact search is quicker.",
                row.nprobe
            )
        }
        Some(row) => format!("--nprobe {} finds {RECALL_AIM} of the true neighbours or more.", row.nprobe),
        None => format!("None of these finds {RECALL_AIM} of the true neighbours; try a larger --nprobe."),
    })
}
