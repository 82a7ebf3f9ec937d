//! A program's own workers: each owns its state, no state is shared, and a worker that fails is
//! replaced.
//!
//!     cargo run --release --example workers

use std::collections::HashMap;
use std::error::Error;
use std::thread;

use panoply::placement::{PlacementPlan, Role, Topology};
use panoply::worker::{BoxError, Envelope, HashBy, PoolOptions, Worker, WorkerPool};

/// A message to a shop's worker.
#[derive(Clone)]
struct Sale {
    article: String,
    pieces: i64,
}

/// The stock of the articles that this worker handles. No other thread sees the stock, so it needs
/// no lock.
#[derive(Default)]
struct Stock {
    pieces: HashMap<String, i64>,
}

impl Worker for Stock {
    type Message = Sale;
    type Reply = i64;

    fn init(&mut self) -> Result<(), BoxError> {
        println!("{} has started", thread::current().name().unwrap_or("a worker"));
        Ok(())
    }

    fn handle(&mut self, envelope: Envelope<Sale>) -> Result<i64, BoxError> {
        let Sale { article, pieces } = envelope.message;
        if article.is_empty() {
            return Err("a sale of nothing".into());
        }
        let left = self.pieces.entry(article).or_insert(1000);
        *left -= pieces;
        Ok(*left)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // One worker for each slot that the machine has for the program's own work, pinned to the
    // slot's CPUs.
    let plan = PlacementPlan::for_devices(&Topology::current())?;
    let cpus: Vec<_> = plan.role(Role::Application).map(|slot| slot.cpus.clone()).collect();
    let options = PoolOptions { workers: cpus.len().max(2), name: "stock".to_owned(), cpus, ..Default::default() };
    // Sales of the same article always reach the same worker.
    let by_article = HashBy::new(|sale: &Sale| sale.article.clone());
    let pool = WorkerPool::start_partitioned(options, by_article, |_| Stock::default())?;

    for article in ["bolts", "nuts", "washers"] {
        for _ in 0..100 {
            pool.send_partitioned(Sale { article: article.to_owned(), pieces: 3 })?;
        }
        let left = pool.request_partitioned(Sale { article: article.to_owned(), pieces: 0 })?.wait()?;
        println!("{left} {article} left");
        assert_eq!(left, 700);
    }

    // An error ends the worker: the caller gets the error, and a new worker replaces the old one.
    let nothing = Sale { article: String::new(), pieces: 1 };
    if let Err(error) = pool.request_partitioned(nothing)?.wait() {
        println!("refused: {error}");
    }
    for (index, health) in pool.stop().iter().enumerate() {
        println!("worker {index}: {} messages, {} restarts", health.handled, health.restarts);
    }
    Ok(())
}
