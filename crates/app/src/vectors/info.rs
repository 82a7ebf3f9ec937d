//! `panoply vectors info`.

use panoply::vector::{Collection, DevicePlacement, EmbeddingModel, PlacementVerdict, Residency, Stats};
use serde_json::{Value, json};

use super::{counted, grouped, open_to_read, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::InfoOptions;
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, shortened, wrapped};

/// The width of the column of names.
const NAME_WIDTH: usize = 12;

/// Shows the parts and settings of a collection.
pub fn run(options: &InfoOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    if options.verify {
        collection.verify()?;
    }
    let stats = collection.stats();
    let model = collection.embedding_model()?;
    // This command uploads nothing; a program that searches would.
    let devices = collection.preview_residency(&Residency::Auto)?;
    match options.format {
        Format::Json => screen.json(&document(&collection, &stats, &devices, model.as_ref(), options)),
        Format::Table => print(&collection, &stats, &devices, model.as_ref(), options, screen),
    }
}

/// Says whether a device would hold rows, and why not.
fn verdict_text(one: &DevicePlacement) -> String {
    match &one.verdict {
        PlacementVerdict::Holds(share) if *share > 0.9999 => "holds the rows".to_owned(),
        PlacementVerdict::Holds(share) => format!("holds {:.0} % of the rows", share * 100.0),
        PlacementVerdict::SameHardware(other) => format!("the same hardware as {other}, which is faster"),
        PlacementVerdict::SlowerThanHost => "slower than the host".to_owned(),
        PlacementVerdict::NoRoom => "no room in its memory".to_owned(),
        PlacementVerdict::NotReady(reason) => format!("not ready: {reason}"),
        PlacementVerdict::Unsupported(reason) => format!("cannot search these rows: {reason}"),
        _ => "not used".to_owned(),
    }
}

fn devices_text(devices: &[DevicePlacement], stats: &Stats) -> String {
    if devices.is_empty() {
        return match stats.row_bytes < Residency::AUTO_BYTES_MIN as u64 {
            true => format!("the host; devices from {} of rows on", bytes_text(Residency::AUTO_BYTES_MIN as u64)),
            false => "the host; there is no GPU or TPU".to_owned(),
        };
    }
    let texts: Vec<String> = devices.iter().map(|one| format!("{} {}", one.device, verdict_text(one))).collect();
    texts.join("; ")
}

fn document(
    collection: &Collection,
    stats: &Stats,
    devices: &[DevicePlacement],
    model: Option<&EmbeddingModel>,
    options: &InfoOptions,
) -> Value {
    let device = |one: &DevicePlacement| {
        let share = if let PlacementVerdict::Holds(share) = one.verdict { share } else { 0.0 };
        json!({
            "device": one.device.to_string(),
            "name": one.name,
            "share": share,
            "verdict": verdict_text(one),
            "sample_ms": one.sample_time.map(|time| time.as_secs_f64() * 1e3),
        })
    };
    let schema = collection.schema();
    let index = stats.index.as_ref();
    json!({
        "path": path_text(&options.path),
        "name": schema.name,
        "dimension": schema.dimension,
        "metric": schema.metric.name(),
        "storage": schema.storage.name(),
        "records": stats.records,
        "dead_rows": stats.dead_rows,
        "segments": stats.segments,
        "row_bytes": stats.row_bytes,
        "stored_bytes": stats.stored_bytes,
        "fields": collection.fields(),
        "model": model.map(|model| json!({"name": model.name, "sha256": model.sha256, "file": model.file})),
        "index": index.map(|index| json!({"lists": index.lists, "indexed_rows": index.indexed_rows})),
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "verified": options.verify,
    })
}

fn print(
    collection: &Collection,
    stats: &Stats,
    devices: &[DevicePlacement],
    model: Option<&EmbeddingModel>,
    options: &InfoOptions,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let schema = collection.schema();
    let mut rows = vec![
        ("name", schema.name.clone()),
        (
            "vectors",
            format!("{} {} components, {}", grouped(schema.dimension as u64), schema.storage, schema.metric.name()),
        ),
        ("records", grouped(stats.records)),
        ("rows", format!("{} in {}", bytes_text(stats.row_bytes), counted(stats.segments as u64, "segment"))),
        ("stored", bytes_text(stats.stored_bytes)),
    ];
    if stats.dead_rows > 0 {
        rows.push(("reclaimable", counted(stats.dead_rows, "row")));
    }
    let fields = collection.fields();
    rows.push(("fields", if fields.is_empty() { "none".to_owned() } else { fields.join(", ") }));
    rows.extend(model.map(|model| ("model", model.to_string())));
    rows.push(match &stats.index {
        None => ("index", "none; `panoply vectors tune` builds one".to_owned()),
        Some(index) => {
            ("index", format!("{} with {}", counted(index.lists as u64, "list"), counted(index.indexed_rows, "row")))
        }
    });
    rows.push(("searched on", devices_text(devices, stats)));
    if options.verify {
        rows.push(("verified", "every checksum fits".to_owned()));
    }
    for (name, value) in rows {
        let width = screen.width() - NAME_WIDTH;
        for (index, part) in wrapped(&value, width).into_iter().enumerate() {
            let (name, part) = (if index == 0 { name } else { "" }, shortened(&part, width));
            screen.line(format!("{}{part}", screen.faint(&format!("{name:<NAME_WIDTH$}"))))?;
        }
    }
    Ok(())
}
