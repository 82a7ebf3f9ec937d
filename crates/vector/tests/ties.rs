//! Hits of equal score come oldest first, and pages neither repeat nor omit a hit, for every
//! storage layout.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_vector::{Collection, Filter, IndexOptions, Metric, Options, Schema, SearchOptions, Storage};
use serde_json::{Value, json};

/// Points whose distances from the origin are nearly the same: many distances are equal in `f32`,
/// though their squares are not.
fn ring(count: usize) -> Vec<f32> {
    const RADIUS: u64 = 3500;
    let mut random = Random(11);
    let mut points = Vec::new();
    for _ in 0..count {
        let x = random.below(RADIUS);
        let y = ((RADIUS * RADIUS - x * x) as f64).sqrt() as u64 + random.below(2);
        points.extend([x as f32, y as f32]);
    }
    points
}

fn all_pages(collection: &Collection, query: &[f32], options: &SearchOptions, pages: usize) -> Vec<(String, f32)> {
    let page = |page: usize| {
        let found = collection.search(query, &options.clone().offset(page * options.k)).unwrap();
        found.hits.into_iter().map(|hit| (hit.id, hit.score))
    };
    (0..pages).flat_map(page).collect()
}

/// The insertion index of an id such as `v12`.
fn age(id: &str) -> usize {
    id[1..].parse().unwrap()
}

fn check_order(collection: &Collection, query: &[f32], options: &SearchOptions, label: &str) {
    let pages = 40;
    let paged = all_pages(collection, query, options, pages);
    let whole = collection.search(query, &SearchOptions { k: options.k * pages, ..options.clone() }).unwrap();
    let whole: Vec<(String, f32)> = whole.hits.into_iter().map(|hit| (hit.id, hit.score)).collect();
    assert_eq!(paged, whole, "{label}");
    let tied = |pair: &&[(String, f32)]| pair[0].1 == pair[1].1;
    let out_of_order = whole.windows(2).filter(tied).find(|pair| age(&pair[0].0) > age(&pair[1].0));
    assert_eq!(out_of_order, None, "{label}");
    assert!(whole.windows(2).filter(tied).count() > 20, "{label}: there is nothing to be ordered");
}

/// Regression: an index sorts rows by list. Exact searches and searches of lists returned equal
/// hits in list order, pages of list searches repeated hits whose squared distances differ and
/// whose distances do not, and a listing was not oldest first.
#[test]
fn equal_hits_come_oldest_first_also_with_an_index() {
    let folder = TempFolder::new("ties");
    let schema = Schema::new("ring", 2, Metric::Euclidean);
    let collection = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    let metadata: Vec<Value> = (0..3000).map(|n| json!({"odd": n % 2})).collect();
    collection.insert_many(&ids(0..3000), &ring(3000), &metadata).unwrap();
    let (query, odd) = ([0.0, 0.0], Filter::parse("odd = 1").unwrap());
    let plain = SearchOptions::new(7);
    check_order(&collection, &query, &plain, "without an index");
    collection.build_index(&IndexOptions { lists: Some(16), ..IndexOptions::default() }).unwrap();
    let check_all = |collection: &Collection, label: &str| {
        check_order(collection, &query, &plain, label);
        check_order(collection, &query, &plain.clone().filter(odd.clone()), label);
        check_order(collection, &query, &plain.clone().nprobe(16), label);
        check_order(collection, &query, &plain.clone().nprobe(16).filter(odd.clone()), label);
        let listed: Vec<usize> = collection.iter().map(|entry| age(&entry.id)).collect();
        assert!(listed.is_sorted(), "{label}: a listing is oldest first");
        // Several queries are searched by ops, list by list.
        let many = collection.search_many(&[0.0; 4], &SearchOptions::new(300).nprobe(16)).unwrap();
        let alone = collection.search(&query, &SearchOptions::new(300)).unwrap();
        assert_eq!(many.hits, vec![alone.hits.clone(), alone.hits], "{label}");
    };
    check_all(&collection, "with an index");
    collection.remove_many(&ids(100..200)).unwrap();
    collection.compact().unwrap();
    check_all(&collection, "compacted");
    drop(collection);
    let again = Collection::open(runtime(), &folder.0, Options::default()).unwrap();
    check_all(&again, "opened again");
    again.build_index(&IndexOptions { lists: Some(5), ..IndexOptions::default() }).unwrap();
    let copy = TempFolder::new("ties-copy");
    again.snapshot(&copy.0).unwrap();
    check_all(&Collection::open_read_only(runtime(), &copy.0, Options::default()).unwrap(), "a copy");
}

/// Every row has the same score, in every list, so all rows are candidates.
#[test]
fn rows_that_are_all_level_come_oldest_first() {
    let schema = Schema::new("level", 3, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    let mut random = Random(5);
    let vectors: Vec<f32> = (0..2000).flat_map(|_| [random.normal(), random.normal(), 0.0]).collect();
    collection.insert_many(&ids(0..2000), &vectors, &[]).unwrap();
    collection.build_index(&IndexOptions { lists: Some(9), ..IndexOptions::default() }).unwrap();
    for options in [SearchOptions::new(5), SearchOptions::new(5).nprobe(9)] {
        let found = collection.search(&[0.0, 0.0, 1.0], &options).unwrap();
        let found: Vec<String> = found.hits.into_iter().map(|hit| hit.id).collect();
        assert_eq!(found, ids(0..5));
    }
}

/// Under dot, scores of eight-bit rows are multiplied by the query's length, which makes some of
/// them equal.
#[test]
fn pages_of_eight_bit_rows_repeat_nothing() {
    for metric in Metric::ALL {
        let options = Options { segment_bytes_max: 4096, ..Options::default() };
        let schema = Schema::new("pages", 2, metric).storage(Storage::I8);
        let collection = Collection::in_memory(runtime(), schema, options).unwrap();
        for (first, points) in (0..).step_by(500).zip(ring(3000).chunks(1000)) {
            collection.insert_many(&ids(first..first + 500), points, &[]).unwrap();
        }
        let query = [0.3, 0.7];
        let paged = all_pages(&collection, &query, &SearchOptions::new(3), 200);
        let whole = collection.search(&query, &SearchOptions::new(600)).unwrap();
        let whole: Vec<(String, f32)> = whole.hits.into_iter().map(|hit| (hit.id, hit.score)).collect();
        assert_eq!(paged, whole, "{metric:?}");
    }
}

/// Regression: each page was ranked among other candidates than the page before, so on a ring most
/// hits appeared twice.
#[test]
fn ranked_pages_repeat_nothing() {
    let schema = Schema::new("ranked", 2, Metric::Euclidean);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..3000), &ring(3000), &[]).unwrap();
    for indexed in [false, true] {
        for (k, times) in [(1, 4), (7, 4), (10, 1), (50, 3)] {
            let options = SearchOptions::new(k).rerank(times);
            let pages = 3000 / k + 1;
            let mut found: Vec<String> =
                all_pages(&collection, &[0.0, 0.0], &options, pages.min(500)).into_iter().map(|(id, _)| id).collect();
            let count = found.len();
            assert_eq!(count, 3000.min(500 * k));
            found.sort();
            found.dedup();
            assert_eq!(found.len(), count, "k {k} times {times} indexed {indexed}");
        }
        let far = collection.search(&[0.0, 0.0], &SearchOptions::new(10).rerank(4).within(1.0)).unwrap();
        assert!(far.hits.is_empty());
        collection.build_index(&IndexOptions { lists: Some(8), ..IndexOptions::default() }).unwrap();
    }
}

/// Regression: the search of copies ignored the query's length, and the search of rows added later
/// did not. With a short query no such row became a candidate.
#[test]
fn rows_that_came_after_the_copies_are_candidates_too() {
    let schema = Schema::new("late", 4, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    let mut random = Random(3);
    collection.insert_many(&ids(0..1000), &random.vectors(1000, 4), &[]).unwrap();
    for length in [1.0e-3_f32, 1.0, 1.0e3] {
        let query = [length, 0.0, 0.0, 0.0];
        let options = SearchOptions::new(1).rerank(4);
        collection.search(&query, &options).unwrap();
        collection.upsert("late", &[100.0, 0.0, 0.0, 0.0], Value::Null).unwrap();
        assert_eq!(collection.search(&query, &options).unwrap().hits[0].id, "late", "{length}");
        collection.upsert("low", &[-100.0, 0.0, 0.0, 0.0], Value::Null).unwrap();
        let worst = collection.search(&query, &SearchOptions::new(1002).rerank(1)).unwrap();
        assert_eq!(worst.hits.last().unwrap().id, "low", "{length}");
        collection.remove_many(&["late", "low"]).unwrap();
    }
}

/// Regression: the squares of such queries underflow in `f32`, and their scores were a millionth of
/// the true ones.
#[test]
fn short_queries_have_their_scores_under_dot() {
    for storage in Storage::ALL {
        let schema = Schema::new("short", 2, Metric::Dot).storage(storage);
        let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
        collection.insert_many(&["small", "large"], &[1.0, 0.0, 60_000.0, 0.0], &[]).unwrap();
        for length in [1.0e-44_f32, 1.0e-40, 1.0e-30, 1.0e-20, 1.0e-10, 0.0] {
            for options in [SearchOptions::new(2), SearchOptions::new(2).rerank(2)] {
                let found = collection.search(&[length, 0.0], &options).unwrap().hits;
                let scores: Vec<(&str, f32)> = found.iter().map(|hit| (hit.id.as_str(), hit.score)).collect();
                let large = collection.get("large").unwrap().unwrap().vector[0];
                let wanted = if length == 0.0 { ["small", "large"] } else { ["large", "small"] };
                assert_eq!([scores[0].0, scores[1].0], wanted, "{storage} {length}");
                let of = |id: &str| scores.iter().find(|(other, _)| *other == id).unwrap().1;
                assert!(
                    (of("large") - large * length).abs() <= large * length * 1.0e-4,
                    "{storage} {length} {scores:?}"
                );
            }
        }
    }
}
