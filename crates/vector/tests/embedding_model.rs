//! The model of a collection's vectors: stored, kept by snapshots and repairs, and never mixed with
//! another one. Filters that compare a field with a value of another type.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use crate::support::{TempFolder, runtime};
use panoply_vector::{Collection, EmbeddingModel, Error, Filter, Metric, Options, Schema, SearchOptions};
use serde_json::json;

fn model(name: &str, digit: char) -> EmbeddingModel {
    let (sha256, file) = (digit.to_string().repeat(64), format!("/models/{name}.onnx"));
    EmbeddingModel { name: name.to_owned(), sha256, file, vocabulary: None }
}

#[test]
fn a_collection_remembers_its_model_and_refuses_another() {
    let (folder, copy) = (TempFolder::new("model"), TempFolder::new("model"));
    let schema = Schema::new("notes", 2, Metric::Cosine);
    let collection = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    assert_eq!(collection.embedding_model().unwrap(), None);
    // Without records no vectors can be mixed.
    collection.set_embedding_model(model("first", 'a')).unwrap();
    collection.set_embedding_model(model("small", 'b')).unwrap();
    collection.insert("one", &[1.0, 0.0], json!({})).unwrap();
    let refused = collection.set_embedding_model(model("large", 'c')).unwrap_err();
    assert!(matches!(&refused, Error::OtherModel { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("`small` (SHA-256 bbbbbbbbbbbb…)") && text.contains("`large`"), "{text}");
    // The same file elsewhere is the same model.
    let moved = EmbeddingModel { file: "/elsewhere/small.onnx".to_owned(), ..model("small", 'b') };
    collection.set_embedding_model(moved.clone()).unwrap();
    collection.insert("two", &[0.0, 1.0], json!({})).unwrap();
    collection.snapshot(&copy.0).unwrap();
    drop(collection);
    for path in [&folder.0, &copy.0] {
        let again = Collection::open_read_only(runtime(), path, Options::default()).unwrap();
        assert_eq!((again.embedding_model().unwrap(), again.len()), (Some(moved.clone()), 2));
        assert!(matches!(again.set_embedding_model(model("small", 'b')), Err(Error::ReadOnly { .. })));
        again.verify().unwrap();
    }
    Collection::repair(&folder.0, true).unwrap();
    let again = Collection::open(runtime(), &folder.0, Options::default()).unwrap();
    again.insert("three", &[1.0, 1.0], json!({})).unwrap();
    assert_eq!(again.embedding_model().unwrap(), Some(moved));
}

#[test]
fn a_field_is_compared_with_values_of_its_type() {
    let collection =
        Collection::in_memory(runtime(), Schema::new("types", 1, Metric::Dot), Options::default()).unwrap();
    for number in 0..5000 {
        let free = number % 2 == 0;
        let mixed = if number < 10 { json!("few") } else { json!(number) };
        let metadata =
            json!({ "size": number, "section": "games", "free": free, "mixed": mixed, "tags": ["a", 1], "none": null });
        collection.insert(&number.to_string(), &[1.0], metadata).unwrap();
    }
    let check = |text: &str| collection.check_filter_types(&Filter::parse(text).unwrap());
    for wrong in ["size < abc", "size = \"12\"", "section > 3", "not section = 3", "free = \"true\"", "size in (a, b)"]
    {
        assert!(matches!(check(wrong), Err(Error::FieldType { .. })), "{wrong}");
        assert!(check(&format!("free = true or {wrong}")).is_err(), "{wrong}");
    }
    let text = check("size < abc").unwrap_err().to_string();
    assert_eq!(text, "`size` is a number in the records, so it cannot be compared with a text");
    // A field with values of several types, a list's elements, and null compare with any of them.
    for right in
        ["size < 12", "mixed = few", "mixed > 12", "tags = a", "tags = 1", "none = 4", "section = null", "free = true"]
    {
        check(right).unwrap();
    }
    assert!(matches!(check("secton = games"), Err(Error::UnknownField { .. })));
    // Regression: everything but the commands took such a filter, and found nothing without a word.
    let filter = Filter::parse("size < abc").unwrap();
    let options = SearchOptions::new(1).filter(filter.clone());
    for refused in [
        collection.search(&[1.0], &options).map(drop),
        collection.search_many(&[1.0], &options).map(drop),
        collection.search_async(&[1.0], &options).wait().map(drop),
        collection.count_where(&filter).map(drop),
        collection.ids(None, 10, Some(&filter)).map(drop),
        collection.page(None, 10, Some(&filter)).map(drop),
        collection.remove_where(&filter).map(drop),
        collection.remove_where_async(&filter).wait().map(drop),
    ] {
        assert!(matches!(refused, Err(Error::FieldType { .. })), "{refused:?}");
    }
    assert_eq!(collection.len(), 5000);
    // Only live records count.
    collection.upsert("0", &[1.0], json!({ "size": "large" })).unwrap();
    assert_eq!(collection.count_where(&filter).unwrap(), 0);
    collection.remove("0").unwrap();
    assert!(matches!(collection.count_where(&filter), Err(Error::FieldType { .. })));
}
