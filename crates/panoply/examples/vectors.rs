//! A collection of vectors: insert, search, filter and remove; stored in a folder and opened again.
//!
//!     cargo run --release --example vectors

use std::error::Error;

use panoply::Runtime;
use panoply::vector::{Collection, Filter, Metric, Options, Schema, SearchOptions};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let folder = std::env::temp_dir().join(format!("panoply-example-vectors-{}", std::process::id()));

    // Three numbers describe how sweet, how sour and how large a fruit is.
    let fruit = Collection::create(&runtime, &folder, Schema::new("fruit", 3, Metric::Euclidean), Options::default())?;
    fruit.insert("apple", &[6.0, 3.0, 7.0], json!({ "colour": "red", "price": 2 }))?;
    fruit.insert_many(
        &["lemon", "cherry", "melon"],
        &[1.0, 9.0, 5.0, 8.0, 2.0, 1.0, 9.0, 0.0, 20.0],
        &[json!({ "colour": "yellow" }), json!({ "colour": "red", "price": 8 }), json!({ "colour": "green" })],
    )?;

    // When an insert returns, the record is on the disk, and every later search sees it.
    let found = fruit.search(&[7.0, 3.0, 5.0], &SearchOptions::new(2))?;
    for hit in &found.hits {
        println!("{:8} {:.2}  {}", hit.id, hit.score, hit.metadata);
    }
    println!("searched {} rows on {:?}", found.report.scanned_rows, found.report.devices);

    let cheap_and_red = Filter::parse("colour = red and price < 5")?;
    let found = fruit.search(&[8.0, 2.0, 1.0], &SearchOptions::new(3).filter(cheap_and_red))?;
    println!("cheap and red: {:?}", found.hits.iter().map(|hit| &hit.id).collect::<Vec<_>>());

    // A search can be awaited on any executor, or waited for.
    let task = fruit.search_async(&[1.0, 9.0, 4.0], &SearchOptions::new(1));
    fruit.remove("melon")?;
    println!("sourest: {}", task.wait()?.hits[0].id);

    drop(fruit);
    let again = Collection::open(&runtime, &folder, Options::default())?;
    println!("opened again with {} records: {:?}", again.len(), again.iter().map(|entry| entry.id).collect::<Vec<_>>());
    drop(again);
    Collection::destroy(&folder)?;
    Ok(())
}
