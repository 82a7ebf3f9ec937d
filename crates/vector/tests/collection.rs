//! Tests of a collection's guarantees: writes, reads, searches, errors.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use crate::support::{Random, TempFolder, ids, runtime, score, tolerance};
use panoply_vector::{Collection, Error, Filter, IndexOptions, Metric, Options, Schema, SearchOptions, Storage};
use serde_json::{Value, json};

fn in_memory(dimension: usize, metric: Metric) -> Collection {
    Collection::in_memory(runtime(), Schema::new("test", dimension, metric), Options::default()).unwrap()
}

fn equals(field: &str, value: Value) -> Filter {
    Filter::from_json(&json!({ field: value })).unwrap()
}

#[test]
fn every_metric_and_storage_type_finds_what_plain_loops_find() {
    let (count, dimension) = (700, 24);
    for metric in Metric::ALL {
        for storage in Storage::ALL {
            let mut random = Random(3);
            let schema = Schema::new("test", dimension, metric).storage(storage);
            // Small segments, so that several are searched and merged.
            let options = Options { segment_bytes_max: 200 * dimension * storage.size_bytes(), ..Options::default() };
            let collection = Collection::in_memory(runtime(), schema, options).unwrap();
            let vectors = random.vectors(count, dimension);
            for first in (0..count).step_by(50) {
                let part = &vectors[first * dimension..][..50 * dimension];
                collection.insert_many(&ids(first..first + 50), part, &[]).unwrap();
            }
            assert!(collection.stats().segments >= 4);
            let queries = random.vectors(5, dimension);
            let found = collection.search_many(&queries, &SearchOptions::new(10)).unwrap();
            for (query, hits) in queries.chunks(dimension).zip(&found.hits) {
                let stored = |id: &str| collection.get(id).unwrap().unwrap().vector;
                let mut truth: Vec<f64> = ids(0..count).iter().map(|id| score(metric, query, &stored(id))).collect();
                truth.sort_by(|a, b| if metric == Metric::Euclidean { a.total_cmp(b) } else { b.total_cmp(a) });
                assert_eq!(hits.len(), 10);
                for (hit, truth) in hits.iter().zip(&truth) {
                    let expected = score(metric, query, &stored(&hit.id));
                    assert!((f64::from(hit.score) - truth).abs() < 2.0e-4, "{metric:?} {storage}: {hit:?} {truth}");
                    assert!((f64::from(hit.score) - expected).abs() < 2.0e-4, "{metric:?} {storage}");
                }
            }
            for (id, vector) in ids(0..count).iter().zip(vectors.chunks(dimension)) {
                let back = collection.get(id).unwrap().unwrap().vector;
                let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (back, value) in back.iter().zip(vector) {
                    let error = f64::from((back - value).abs());
                    assert!(error <= tolerance(storage) * f64::from(largest) * 2.0, "{storage} {back} {value}");
                }
            }
        }
    }
}

#[test]
fn records_come_and_go() {
    let collection = in_memory(2, Metric::Euclidean);
    assert!(collection.is_empty());
    collection.insert("a", &[0.0, 0.0], json!({ "n": 1 })).unwrap();
    collection.insert("b", &[1.0, 0.0], Value::Null).unwrap();
    assert!(matches!(collection.insert("a", &[5.0, 5.0], Value::Null), Err(Error::IdExists { id }) if id == "a"));
    collection.upsert("a", &[3.0, 4.0], json!({ "n": 2 })).unwrap();
    assert_eq!(collection.len(), 2);
    let a = collection.get("a").unwrap().unwrap();
    assert_eq!((a.vector, a.metadata), (vec![3.0, 4.0], json!({ "n": 2 })));
    collection.update("b", None, Some(json!({ "n": 3 }))).unwrap();
    assert_eq!(collection.get("b").unwrap().unwrap().vector, [1.0, 0.0]);
    collection.update("b", Some(&[2.0, 0.0]), None).unwrap();
    let b = collection.get("b").unwrap().unwrap();
    assert_eq!((b.vector, b.metadata), (vec![2.0, 0.0], json!({ "n": 3 })));
    assert!(matches!(collection.update("c", None, None), Err(Error::NoSuchId { .. })));
    assert!(collection.remove("a").unwrap() && !collection.remove("a").unwrap());
    assert_eq!(collection.get("a").unwrap(), None);
    let hits = collection.search(&[3.0, 4.0], &SearchOptions::new(5)).unwrap().hits;
    assert_eq!(hits.iter().map(|hit| hit.id.as_str()).collect::<Vec<_>>(), ["b"]);
    collection.insert("a", &[9.0, 9.0], Value::Null).unwrap();
    assert_eq!(collection.search(&[9.0, 9.0], &SearchOptions::new(1)).unwrap().hits[0].id, "a");
    let mut seen: Vec<String> = collection.iter().map(|entry| entry.id).collect();
    seen.sort();
    assert_eq!(seen, ["a", "b"]);
    assert_eq!(collection.remove_many(&["a", "x", "a"]).unwrap(), 1);
    collection.clear().unwrap();
    assert!(collection.is_empty() && collection.iter().next().is_none());
    assert!(collection.search(&[0.0, 0.0], &SearchOptions::new(3)).unwrap().hits.is_empty());
    collection.insert("a", &[1.0, 1.0], Value::Null).unwrap();
    assert_eq!(collection.len(), 1);
}

#[test]
fn bad_input_is_a_typed_error_and_changes_nothing() {
    let collection = in_memory(3, Metric::Cosine);
    collection.insert("a", &[1.0, 0.0, 0.0], json!({ "color": "red" })).unwrap();
    let before = collection.iter().collect::<Vec<_>>();
    let options = SearchOptions::new(1);
    assert!(matches!(
        collection.insert("b", &[1.0], Value::Null),
        Err(Error::DimensionMismatch { expected: 3, got: 1 })
    ));
    let infinite = collection.insert("b", &[1.0, f32::INFINITY, 0.0], Value::Null);
    assert!(matches!(infinite, Err(Error::NotFinite { index: 1, .. })));
    assert!(matches!(collection.insert("b", &[0.0; 3], Value::Null), Err(Error::ZeroVector { .. })));
    let twice = collection.insert_many(&["b", "c", "b"], &[1.0; 9], &[]);
    assert!(matches!(twice, Err(Error::DuplicateId { id }) if id == "b"));
    let partly = collection.insert_many(&["b", "a"], &[1.0; 6], &[]);
    assert!(matches!(partly, Err(Error::IdExists { id }) if id == "a"));
    assert!(matches!(collection.insert("", &[1.0; 3], Value::Null), Err(Error::InvalidArgument { what: "id", .. })));
    assert!(matches!(collection.insert("b", &[1.0; 3], json!([1])), Err(Error::InvalidArgument { .. })));
    assert!(matches!(collection.insert_many(&["b", "c"], &[1.0; 3], &[]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(collection.update("a", Some(&[f32::NAN; 3]), None), Err(Error::NotFinite { .. })));
    assert!(matches!(collection.search(&[1.0; 6], &options), Err(Error::DimensionMismatch { .. })));
    assert!(matches!(collection.search(&[f32::NAN; 3], &options), Err(Error::NotFinite { .. })));
    assert!(matches!(collection.search(&[0.0; 3], &options), Err(Error::ZeroVector { .. })));
    assert!(matches!(collection.search_many(&[1.0; 4], &options), Err(Error::DimensionMismatch { .. })));
    let unknown = collection.search(&[1.0; 3], &options.clone().filter(equals("size", json!(1))));
    assert!(matches!(unknown, Err(Error::UnknownField { field, known }) if field == "size" && known == "color"));
    assert_eq!(collection.iter().collect::<Vec<_>>(), before);
    for (name, dimension) in [("", 3), ("a", 0), ("a", usize::MAX)] {
        let schema = Schema::new(name, dimension, Metric::Dot);
        assert!(Collection::in_memory(runtime(), schema, Options::default()).is_err());
    }
    assert!(collection.search(&[1.0; 3], &SearchOptions::new(0)).unwrap().hits.is_empty());
    assert_eq!(collection.search(&[1.0; 3], &SearchOptions::new(usize::MAX)).unwrap().hits.len(), 1);
}

#[test]
fn filters_are_applied_before_scoring_and_follow_changes() {
    let collection = in_memory(4, Metric::Dot);
    let mut random = Random(8);
    let count = 20_000;
    let metadata: Vec<Value> =
        (0..count).map(|index| json!({ "group": index % 100, "even": index % 2 == 0 })).collect();
    collection.insert_many(&ids(0..count), &random.vectors(count, 4), &metadata).unwrap();
    let options = SearchOptions::new(500).filter(equals("group", json!(7)));
    let hits = collection.search(&[1.0; 4], &options).unwrap().hits;
    assert_eq!(hits.len(), count / 100);
    assert!(hits.iter().all(|hit| hit.metadata["group"] == 7));
    assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
    collection.remove(&hits[0].id).unwrap();
    collection.update(&hits[1].id, None, Some(json!({ "group": 8 }))).unwrap();
    collection.insert("new", &[100.0; 4], json!({ "group": 7 })).unwrap();
    let after = collection.search(&[1.0; 4], &options).unwrap().hits;
    assert_eq!(after.len(), count / 100 - 1);
    assert_eq!(after[0].id, "new");
    assert!(after.iter().all(|hit| hit.id != hits[0].id && hit.id != hits[1].id));
    let none = SearchOptions::new(5).filter(equals("group", json!(700)));
    assert!(collection.search(&[1.0; 4], &none).unwrap().hits.is_empty());
    // No group is a text, so this is a mistake.
    let wrong = SearchOptions::new(5).filter(equals("group", json!("seven")));
    assert!(matches!(collection.search(&[1.0; 4], &wrong), Err(Error::FieldType { .. })));
}

#[test]
fn compaction_gives_space_back_and_loses_nothing() {
    let folder = TempFolder::new("compact");
    let schema = Schema::new("test", 8, Metric::Cosine).storage(Storage::I8);
    let options = Options { segment_bytes_max: 8 * 500, compact_dead_percent: 101, ..Options::default() };
    let collection = Collection::create(runtime(), &folder.0, schema, options.clone()).unwrap();
    let vectors = Random(4).vectors(2000, 8);
    for first in (0..2000).step_by(250) {
        let metadata: Vec<Value> = (first..first + 250).map(|index| json!({ "n": index })).collect();
        collection.insert_many(&ids(first..first + 250), &vectors[first * 8..][..250 * 8], &metadata).unwrap();
    }
    let removed: Vec<String> = ids(0..2000).into_iter().filter(|id| !id.ends_with('3')).collect();
    assert_eq!(collection.remove_many(&removed).unwrap(), 1800);
    let before: Vec<_> = collection.iter().collect();
    let queries = Random(9).vectors(4, 8);
    let hits = collection.search_many(&queries, &SearchOptions::new(20)).unwrap().hits;
    let stored = collection.stats().stored_bytes;
    let done = collection.compact().unwrap();
    assert_eq!(done.rows_reclaimed, 1800);
    let after = collection.stats();
    assert!(after.dead_rows == 0 && after.stored_bytes < stored / 4, "{after:?}");
    assert_eq!(collection.iter().collect::<Vec<_>>(), before);
    assert_eq!(collection.search_many(&queries, &SearchOptions::new(20)).unwrap().hits, hits);
    collection.remove("v3").unwrap();
    collection.insert("v0", &[1.0; 8], Value::Null).unwrap();
    collection.verify().unwrap();
    drop(collection);
    let again = Collection::open(runtime(), &folder.0, options).unwrap();
    assert_eq!(again.len(), 200);
    assert!(again.get("v3").unwrap().is_none() && again.get("v0").unwrap().is_some());
    assert_eq!(again.get("v13").unwrap().unwrap().metadata, json!({ "n": 13 }));
    assert_eq!(again.fields(), ["n"]);
    again.verify().unwrap();
}

#[test]
fn the_background_compacts_by_itself() {
    let schema = Schema::new("test", 4, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..5000), &Random(1).vectors(5000, 4), &[]).unwrap();
    collection.remove_many(&ids(0..4000)).unwrap();
    let start = std::time::Instant::now();
    while collection.stats().dead_rows > 0 {
        assert!(start.elapsed().as_secs() < 20, "{:?}", collection.stats());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(collection.len(), 1000);
    assert!(collection.get("v4999").unwrap().is_some() && collection.get("v0").unwrap().is_none());
}

#[test]
fn awaited_forms_need_no_executor() {
    let collection = in_memory(2, Metric::Dot);
    let inserts: Vec<_> =
        (0..50).map(|index| collection.insert_async(&format!("v{index}"), &[index as f32, 1.0], Value::Null)).collect();
    inserts.into_iter().for_each(|insert| insert.wait().unwrap());
    let options = SearchOptions::new(1);
    let searches: Vec<_> = (0..50).map(|_| collection.search_async(&[1.0, 0.0], &options)).collect();
    for search in searches {
        assert_eq!(search.wait().unwrap().hits[0].id, "v49");
    }
    assert_eq!(collection.remove_many_async(&["v49"]).wait().unwrap(), 1);
    assert_eq!(collection.search_many_async(&[1.0, 0.0, 0.0, 1.0], &options).wait().unwrap().hits[0][0].id, "v48");
    collection.update_async("v0", Some(&[99.0, 0.0]), None).wait().unwrap();
    assert_eq!(collection.get_async("v0").wait().unwrap().unwrap().vector, [99.0, 0.0]);
    collection.flush_async().wait().unwrap();
    assert_eq!(collection.compact_async().wait().unwrap().rows_reclaimed, 2);
    assert!(matches!(collection.search_async(&[1.0], &options).wait(), Err(Error::DimensionMismatch { .. })));
    collection.clear_async().wait().unwrap();
    assert!(collection.is_empty());
}

#[test]
fn a_search_sees_every_write_that_returned_before_it_began() {
    let collection = in_memory(2, Metric::Euclidean);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let collection = &collection;
            scope.spawn(move || {
                for round in 0..200 {
                    let id = format!("{thread}-{round}");
                    let place = [thread as f32 * 1000.0, round as f32];
                    collection.insert(&id, &place, Value::Null).unwrap();
                    let hit = &collection.search(&place, &SearchOptions::new(1)).unwrap().hits[0];
                    assert_eq!((hit.id.as_str(), hit.score), (id.as_str(), 0.0));
                    if round % 3 == 0 {
                        assert!(collection.remove(&id).unwrap());
                        let hits = collection.search(&place, &SearchOptions::new(1)).unwrap().hits;
                        assert!(hits.iter().all(|hit| hit.id != id));
                    }
                }
            });
        }
    });
    assert_eq!(collection.len(), 4 * (200 - 67));
}

#[test]
fn more_fields_than_are_remembered_do_no_harm() {
    let schema = Schema::new("fields", 2, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    let metadata = |range: std::ops::Range<usize>| {
        Value::Object(range.map(|index| (format!("f{index}"), Value::from(index))).collect())
    };
    let find = |filter: &str| {
        let options = SearchOptions::new(5).filter(Filter::parse(filter).unwrap());
        collection.search(&[1.0, 0.0], &options).map(|found| found.hits.len())
    };
    collection.insert("a", &[1.0, 0.0], metadata(0..30)).unwrap();
    let unknown = find("g = 1").unwrap_err();
    assert!(matches!(&unknown, Error::UnknownField { known, .. } if known.ends_with(" and 10 more")), "{unknown}");
    collection.insert("b", &[1.0, 0.0], metadata(0..70_000)).unwrap();
    assert_eq!(collection.fields().len(), 1 << 16);
    // From here on an unknown field and a field beyond the remembered ones cannot be distinguished.
    assert_eq!(find("f69999 = 69999").unwrap(), 1);
    assert_eq!(find("g = 1").unwrap(), 0);
}

/// Regression: one outlier gave all rows of its segment, and of every segment joined with it, a
/// scale that rounded them to zero.
#[test]
fn eight_bits_under_euclidean_are_never_rounded_again() {
    let folder = TempFolder::new("outlier");
    let schema = Schema::new("outlier", 8, Metric::Euclidean).storage(Storage::I8);
    let options = Options { segment_bytes_max: 8 * 150, ..Options::default() };
    let collection = Collection::create(runtime(), &folder.0, schema.clone(), options.clone()).unwrap();
    let mut vectors = Random(4).vectors(400, 8);
    // An outlier in a batch with others, one in its own batch, and one as small as the others are
    // large.
    vectors[50 * 8..51 * 8].fill(1.0e6);
    vectors[250 * 8..251 * 8].fill(-3.0e9);
    vectors[300 * 8..301 * 8].iter_mut().for_each(|value| *value *= 1.0e-7);
    for (first, count) in [(0, 100), (100, 100), (200, 50), (250, 1), (251, 149)] {
        collection.insert_many(&ids(first..first + count), &vectors[first * 8..][..count * 8], &[]).unwrap();
    }
    let stored = |collection: &Collection| -> std::collections::BTreeMap<String, Vec<f32>> {
        collection.iter().map(|entry| (entry.id, entry.vector)).collect()
    };
    let before = stored(&collection);
    for (index, vector) in vectors.chunks(8).enumerate() {
        let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (value, back) in vector.iter().zip(&before[&format!("v{index}")]) {
            assert!((value - back).abs() <= largest / 126.0, "v{index}: {value} came back as {back}");
        }
    }
    let check = |collection: &Collection, what: &str| {
        assert_eq!(stored(collection), before, "{what}");
        for index in [0, 50, 99, 150, 250, 300, 399] {
            let (id, query) = (format!("v{index}"), &before[&format!("v{index}")]);
            for options in [SearchOptions::new(3), SearchOptions::new(3).rerank(4)] {
                let hits = collection.search(query, &options).unwrap().hits;
                assert_eq!((hits[0].id.as_str(), hits[0].score), (id.as_str(), 0.0), "{what}");
                for hit in &hits {
                    let expected = score(Metric::Euclidean, query, &before[&hit.id]);
                    assert!((f64::from(hit.score) - expected).abs() <= expected * 1.0e-5, "{what}: {hit:?} {expected}");
                }
            }
        }
    };
    check(&collection, "inserted");
    collection.compact().unwrap();
    check(&collection, "compacted");
    for lists in [3, 5] {
        collection.build_index(&IndexOptions { lists: Some(lists), ..IndexOptions::default() }).unwrap();
        check(&collection, "indexed");
    }
    collection.update("v0", None, Some(json!({ "n": 1 }))).unwrap();
    drop(collection);
    check(&Collection::open(runtime(), &folder.0, options).unwrap(), "opened again");
    // Eight-bit copies of wider rows have individual scales too.
    let wide = Collection::in_memory(runtime(), Schema::new("wide", 8, Metric::Euclidean), Options::default()).unwrap();
    wide.insert_many(&ids(0..400), &vectors, &[]).unwrap();
    for index in [0, 50, 99, 250, 300, 399] {
        let hits = wide.search(&vectors[index * 8..][..8], &SearchOptions::new(1).rerank(4)).unwrap().hits;
        assert_eq!((hits[0].id.clone(), hits[0].score), (format!("v{index}"), 0.0));
    }
}

/// Regression: products and squares that left the range of f32 gave zeros, infinities and NaN.
#[test]
fn every_score_is_a_number() {
    for metric in Metric::ALL {
        for storage in [Storage::F32, Storage::Bf16, Storage::I8] {
            let schema = Schema::new("range", 3, metric).storage(storage);
            let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
            let mut accepted = Vec::new();
            for (index, size) in
                [1.0e-45, 1.0e-37, 1.0e-30, 1.0e-17, 1.0, 1.0e17, 1.0e30, 3.0e38].into_iter().enumerate()
            {
                let vector = [size, -size / 2.0, size / 3.0];
                match collection.insert(&index.to_string(), &vector, Value::Null) {
                    Ok(()) => accepted.push(index),
                    Err(error) => assert!(
                        matches!(
                            error,
                            Error::LengthOutOfRange { .. } | Error::ZeroVector { .. } | Error::NotFinite { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            assert!(accepted.contains(&4) && !accepted.contains(&7), "{metric:?} {storage}: {accepted:?}");
            for size in [1.0e-45, 1.0e-38, 1.0e-30, 1.0e-10, 1.0, 1.0e17, 1.0e30, 3.0e38] {
                let query = [size, -size / 2.0, size / 3.0];
                let found = match collection.search(&query, &SearchOptions::new(10)) {
                    Ok(found) => found.hits,
                    Err(Error::LengthOutOfRange { .. }) if metric != Metric::Cosine && size > 1.0e18 => continue,
                    Err(error) => panic!("{metric:?} {storage} {size}: {error}"),
                };
                assert_eq!(found.len(), accepted.len());
                for hit in found {
                    assert!(hit.score.is_finite(), "{metric:?} {storage} {size}: {hit:?}");
                    // All vectors have the same direction.
                    assert!(
                        metric != Metric::Cosine || size < 1.0e-40 || (hit.score - 1.0).abs() < 0.02,
                        "{storage} {size}: {hit:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn equal_scores_come_oldest_first() {
    for storage in [Storage::F32, Storage::I8] {
        for metric in Metric::ALL {
            let schema = Schema::new("ties", 4, metric).storage(storage);
            let options = Options { segment_bytes_max: 16 * storage.size_bytes() * 10, ..Options::default() };
            let collection = Collection::in_memory(runtime(), schema, options).unwrap();
            let twin = [1.0, 0.5, 0.25, 0.125];
            let mut order = Vec::new();
            for round in 0..40 {
                // Other rows of other sizes in between, so that there are several segments and
                // scales.
                let other = [(round + 2) as f32 * 1000.0, 0.0, (round % 3) as f32, 1.0];
                collection.insert(&format!("other-{round}"), &other, Value::Null).unwrap();
                let id = format!("twin-{}", (round * 7) % 40);
                collection.insert(&id, &twin, Value::Null).unwrap();
                order.push(id);
            }
            collection.remove_many(&["twin-7", "other-3", "other-4"]).unwrap();
            collection.upsert("twin-14", &twin, Value::Null).unwrap();
            order.retain(|id| id != "twin-7" && id != "twin-14");
            order.push("twin-14".to_owned());
            let check = |what: &str| {
                let hits = collection.search(&twin, &SearchOptions::new(200)).unwrap().hits;
                let found: Vec<&str> =
                    hits.iter().map(|hit| hit.id.as_str()).filter(|id| id.starts_with("twin")).collect();
                assert_eq!(found, order, "{storage} {metric:?} {what}");
                if metric != Metric::Dot {
                    let first = collection.search(&twin, &SearchOptions::new(5)).unwrap().hits;
                    assert!(first.iter().map(|hit| &hit.id).eq(&order[..5]), "{storage} {metric:?} {what}");
                }
            };
            check("inserted");
            collection.compact().unwrap();
            check("compacted");
            collection.build_index(&IndexOptions { lists: Some(4), ..IndexOptions::default() }).unwrap();
            check("indexed");
        }
    }
}

#[test]
fn records_are_counted_removed_and_listed_by_filter_and_id() {
    let collection = in_memory(2, Metric::Euclidean);
    collection.reserve(5000).unwrap();
    assert!(collection.reserve(usize::MAX).is_err());
    let metadata: Vec<Value> = (0..5000).map(|index| json!({ "group": index % 10 })).collect();
    let vectors: Vec<f32> = (0..5000).flat_map(|index| [index as f32, 0.0]).collect();
    collection.insert_many(&ids(0..5000), &vectors, &metadata).unwrap();
    let seven = equals("group", json!(7));
    assert_eq!(collection.count_where(&seven).unwrap(), 500);
    assert!(matches!(collection.count_where(&equals("size", json!(1))), Err(Error::UnknownField { .. })));
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = collection.page(after.as_deref(), 150, Some(&seven)).unwrap();
        assert_eq!(page.entries.first().map(|entry| entry.vector[0] as usize % 10), Some(7));
        seen.extend(page.entries.into_iter().map(|entry| entry.id));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
        // Insertions and removals meanwhile shift nothing.
        collection.insert("v0a", &[0.0, 1.0], json!({ "group": 7 })).unwrap();
        collection.remove("v0a").unwrap();
    }
    let mut wanted: Vec<String> = ids(0..5000).into_iter().filter(|id| id.ends_with('7')).collect();
    wanted.sort();
    assert_eq!(seen, wanted);
    assert_eq!(collection.ids(Some("v17"), 2, Some(&seven)).unwrap(), ["v1707", "v1717"]);
    assert_eq!(collection.ids(None, usize::MAX, None).unwrap().len(), 5000);
    assert_eq!(collection.remove_where(&seven).unwrap(), 500);
    assert_eq!(collection.remove_where(&seven).unwrap(), 0);
    assert_eq!(collection.remove_where_async(&equals("group", json!(6))).wait().unwrap(), 500);
    assert_eq!((collection.len(), collection.count_where(&seven).unwrap()), (4000, 0));
    assert!(collection.get("v7").unwrap().is_none());
    collection.insert("v7", &[7.0, 0.0], Value::Null).unwrap();
}

#[test]
fn hits_come_in_pages_and_within_a_score() {
    let collection = in_memory(1, Metric::Euclidean);
    let vectors: Vec<f32> = (0..3000).map(|index| index as f32).collect();
    collection.insert_many(&ids(0..3000), &vectors, &[]).unwrap();
    let found = |options: SearchOptions| -> Vec<String> {
        collection.search(&[0.0], &options).unwrap().hits.into_iter().map(|hit| hit.id).collect()
    };
    assert_eq!(found(SearchOptions::new(3).offset(5)), ids(5..8));
    assert_eq!(found(SearchOptions::new(10).offset(2995)), ids(2995..3000));
    assert!(found(SearchOptions::new(10).offset(usize::MAX)).is_empty());
    assert_eq!(found(SearchOptions::new(usize::MAX).within(1500.0)), ids(0..1501));
    assert_eq!(found(SearchOptions::new(10).within(1500.0)), ids(0..10));
    assert_eq!(found(SearchOptions::new(10).within(3.5)), ids(0..4));
    assert_eq!(found(SearchOptions::new(2).offset(3).within(3.5)), ids(3..4));
    assert!(found(SearchOptions::new(10).within(-1.0)).is_empty());
    let many = collection.search_many(&[0.0, 2999.0], &SearchOptions::new(usize::MAX).within(99.0)).unwrap().hits;
    assert_eq!((many[0].len(), many[1].len()), (100, 100));
    assert!(collection.search(&[0.0], &SearchOptions::new(1).within(f32::NAN)).is_err());
    let dot = in_memory(1, Metric::Dot);
    dot.insert_many(&ids(0..300), &vectors[..300], &[]).unwrap();
    assert_eq!(dot.search(&[2.0], &SearchOptions::new(usize::MAX).within(400.0)).unwrap().hits.len(), 100);
}

/// Regression: a waker that panicked ended the process.
#[test]
fn a_waker_that_panics_does_not_harm_others() {
    use std::future::Future;
    use std::task::{Context, Wake, Waker};
    struct Panics;
    impl Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("this waker always does");
        }
    }
    let collection = in_memory(2, Metric::Dot);
    collection.insert_many(&ids(0..2000), &Random(1).vectors(2000, 2), &[]).unwrap();
    let waker = Waker::from(std::sync::Arc::new(Panics));
    for _ in 0..50 {
        let mut searches: Vec<_> =
            (0..4).map(|_| collection.search_async(&[1.0, 0.0], &SearchOptions::new(1))).collect();
        let mut insert = collection.upsert_async("v0", &[1.0, 1.0], Value::Null);
        for search in &mut searches {
            let _ = std::pin::Pin::new(search).poll(&mut Context::from_waker(&waker)).map(|found| found.unwrap());
        }
        let _ = std::pin::Pin::new(&mut insert).poll(&mut Context::from_waker(&waker)).map(|done| done.unwrap());
    }
    assert_eq!(collection.search_async(&[1.0, 0.0], &SearchOptions::new(1)).wait().unwrap().hits.len(), 1);
    collection.insert("after", &[1.0, 1.0], Value::Null).unwrap();
}

/// Regression: metadata of 200,000 levels was refused, and dropping it then overflowed the stack.
#[test]
fn metadata_of_any_depth_is_refused_in_peace() {
    let collection = in_memory(2, Metric::Dot);
    collection.insert("a", &[1.0, 1.0], Value::Null).unwrap();
    let deep = || {
        let mut value = json!(1);
        for level in 0..200_000 {
            let object = level % 2 == 0;
            value = if object {
                Value::Object([("a".to_owned(), value)].into_iter().collect())
            } else {
                vec![value].into()
            };
        }
        Value::Object([("deep".to_owned(), value)].into_iter().collect())
    };
    let is_refused = |done: Result<(), Error>| matches!(done, Err(Error::InvalidArgument { what: "metadata", .. }));
    assert!(is_refused(collection.insert("b", &[1.0, 1.0], deep())));
    assert!(is_refused(collection.upsert_async("b", &[1.0, 1.0], deep()).wait()));
    assert!(is_refused(collection.update("a", None, Some(deep()))));
    assert_eq!(collection.len(), 1);
}

/// Fields are merged by the writer, so callers at the same time keep each other's.
#[test]
fn fields_are_set_without_the_vector_and_without_the_other_fields() {
    let folder = TempFolder::new("fields");
    let schema = Schema::new("fields", 2, Metric::Dot).storage(Storage::I8);
    let collection = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    collection.insert("a", &[0.3, 0.7], json!({ "kept": 1, "gone": 2 })).unwrap();
    let vector = collection.get("a").unwrap().unwrap().vector;
    let fields = |value: Value| value.as_object().unwrap().clone();
    collection.set_fields("a", fields(json!({ "gone": null, "new": [1, 2], "never": null }))).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (collection, fields) = (&collection, &fields);
            scope.spawn(move || {
                for round in 0..25 {
                    let field = format!("of{caller}");
                    collection.set_fields("a", fields(json!({ field: round }))).unwrap();
                }
            });
        }
    });
    let wanted = json!({ "kept": 1, "new": [1, 2], "of0": 24, "of1": 24, "of2": 24, "of3": 24 });
    drop(collection);
    let again = Collection::open(runtime(), &folder.0, Options::default()).unwrap();
    let record = again.get("a").unwrap().unwrap();
    assert_eq!((record.metadata, record.vector), (wanted, vector));
    assert_eq!(again.len(), 1);
    assert!(matches!(again.set_fields("b", fields(json!({ "x": 1 }))), Err(Error::NoSuchId { .. })));
    again.insert("none", &[1.0, 0.0], Value::Null).unwrap();
    again.set_fields_async("none", fields(json!({ "x": 1, "y": null }))).wait().unwrap();
    assert_eq!(again.get("none").unwrap().unwrap().metadata, json!({ "x": 1 }));
}
