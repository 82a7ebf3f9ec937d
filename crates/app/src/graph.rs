//! `panoply graph`: shows a graph before and after fusion, as text and as a picture, with the cost
//! of each kernel.

use std::io::Read;

use anyhow::{Context, anyhow};
use panoply::graph::listing::{KernelRow, Listing};
use panoply::graph::svg::{bytes_text, count_text, svg, time_text};
use panoply::graph::{DeviceTarget, Graph, Peak, SYMBOLS_MAX, SymbolSizes, gpu_target, processor_target, text};
use panoply::models::{Dimension, Model};
use serde::Serialize;

use crate::configuration::{Format, GraphOptions};
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::{Screen, padded, shortened, visible};
use crate::vectors::counted;

/// Reads the graph and shows the compiled result.
pub fn show(options: &GraphOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.file.extension().is_some_and(|end| end == "onnx") {
        return show_model(options, screen);
    }
    let graph = read(options)?;
    let sizes = sizes(&graph, options)?;
    show_graph(&graph, &sizes, options, screen)
}

/// Runs a model once on zeros, and shows the graphs that it was compiled to.
fn show_model(options: &GraphOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.svg.is_some() {
        return Err(Failure::Usage(
            "--svg: expected a graph as text, got a model, which may be many graphs".to_owned(),
        ));
    }
    let runtime = crate::vectors::start()?;
    let model = Model::load(&runtime, &options.file).map_err(anyhow::Error::new)?;
    warm_up(&model, &options.sizes)?;
    let sizes = SymbolSizes([1; SYMBOLS_MAX]);
    if options.format == Format::Json {
        let graphs = model.graphs();
        let graphs = graphs.iter().map(|graph| Ok(document(graph, &listing(graph, &sizes, options)?)));
        let graphs = graphs.collect::<Result<Vec<_>, Failure>>()?;
        return screen.json(&ModelDocument { graphs, steps: model.steps() });
    }
    for graph in model.graphs() {
        show_graph(&graph, &sizes, options, screen)?;
    }
    screen.line(model.steps())
}

/// Runs a model once on zeros. Refuses sizes of dimensions that it does not have. If the model does
/// not run, the error names the open dimensions that were taken as 1.
fn warm_up(model: &Model, sizes: &[(String, usize)]) -> Result<(), Failure> {
    let dims = model.inputs().iter().flat_map(|port| port.dims.iter().flatten());
    let (mut open, mut has_nameless): (Vec<&str>, bool) = (Vec::new(), false);
    for dim in dims {
        match dim {
            Dimension::Named(name) if name.is_empty() => has_nameless = true,
            Dimension::Named(name) if !open.contains(&name.as_str()) => open.push(name),
            Dimension::Named(_) | Dimension::Fixed(_) => {}
        }
    }
    if let Some((name, size)) = sizes.iter().find(|(name, _)| !open.contains(&name.as_str())) {
        let expected = match (open.is_empty(), has_nameless) {
            (true, true) => "the model's open dimensions have no names, so their sizes cannot be given".to_owned(),
            (true, false) => "the model has no open dimensions".to_owned(),
            (false, _) => format!("expected one of the model's open dimensions ({}), got {name}", open.join(", ")),
        };
        return Err(Failure::Usage(format!("--size {name}={size}: {expected}")));
    }
    let sizes: Vec<(&str, usize)> = sizes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    open.retain(|name| sizes.iter().all(|(given, _)| given != name));
    let ran = model.warm_up(&sizes).map_err(anyhow::Error::new);
    let ran = match open.is_empty() {
        true if has_nameless => ran.context(
            "the model does not run with a size of 1, and its open dimensions have no names to give others by",
        ),
        true => ran,
        false => {
            let given: Vec<String> = open.iter().map(|name| format!("--size '{name}=N'")).collect();
            ran.with_context(|| format!("the model does not run with a size of 1; give {}", given.join(" ")))
        }
    };
    Ok(ran?)
}

fn listing(graph: &Graph, sizes: &SymbolSizes, options: &GraphOptions) -> Result<Listing, Failure> {
    let target = if options.for_gpu { gpu_target() } else { processor_target() };
    let DeviceTarget { facts, rates } = target.map_err(anyhow::Error::new)?;
    Ok(Listing::new(graph, sizes, &facts, &rates).context("the graph cannot run with these sizes")?)
}

fn show_graph(graph: &Graph, sizes: &SymbolSizes, options: &GraphOptions, screen: &mut Screen) -> Result<(), Failure> {
    let listing = listing(graph, sizes, options)?;
    if let Some(file) = &options.svg {
        let picture = svg(&title(graph, sizes), &listing);
        Partial::create(file, true)?.finish_with(picture.as_bytes())?;
    }
    match options.format {
        Format::Json => screen.json(&document(graph, &listing)),
        Format::Table => print(graph, sizes, &listing, screen),
    }
}

fn read(options: &GraphOptions) -> Result<Graph, Failure> {
    let file = options.file.display();
    let unread = || format!("{file} could not be read");
    let opened = std::fs::File::open(&options.file).with_context(unread)?;
    // A device or a pipe reports no length and may have no end.
    let mut bytes = Vec::new();
    opened.take(text::TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(unread)?;
    if bytes.len() > text::TEXT_BYTES_MAX {
        return Err(anyhow!("{file}: expected at most {} bytes, got more", text::TEXT_BYTES_MAX).into());
    }
    let words = String::from_utf8(bytes).with_context(|| format!("{file} could not be read as text"))?;
    Ok(text::parse(&words).map_err(|error| anyhow!("{file}: {}", visible(&error.to_string())))?)
}

fn sizes(graph: &Graph, options: &GraphOptions) -> Result<SymbolSizes, Failure> {
    let mut sizes = [1; SYMBOLS_MAX];
    for (name, size) in &options.sizes {
        let symbol = graph.symbols().iter().position(|symbol| symbol == name).ok_or_else(|| {
            let known = graph.symbols().join(", ");
            Failure::Usage(format!("--size: expected one of the graph's symbols ({known}), got {name}"))
        })?;
        sizes[symbol] = *size;
    }
    Ok(SymbolSizes(sizes))
}

fn title(graph: &Graph, sizes: &SymbolSizes) -> String {
    let sizes: Vec<String> =
        graph.symbols().iter().zip(sizes.0).map(|(symbol, size)| format!("{symbol} = {size}")).collect();
    if sizes.is_empty() { graph.name().to_owned() } else { format!("{} with {}", graph.name(), sizes.join(", ")) }
}

fn print(graph: &Graph, sizes: &SymbolSizes, listing: &Listing, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(screen.strong(&title(graph, sizes)))?;
    for (what, rows) in [("as recorded", &listing.before), ("as it runs", &listing.after)] {
        let (total, time_ns) = Listing::total(rows);
        let kernels = rows.iter().filter(|row| !row.is_once).count();
        let sum = format!(
            "{}, {}, {} flops, {}",
            counted(kernels as u64, "kernel"),
            bytes_text(total.bytes),
            count_text(total.flops),
            time_text(time_ns)
        );
        screen.line("")?;
        screen.line(format!("{}: {sum}", screen.strong(what)))?;
        print_rows(rows, screen)?;
    }
    screen.line("")?;
    for line in memory(listing) {
        screen.line(screen.faint(&line))?;
    }
    Ok(())
}

/// Formats the plan's memory, and the number of kernels that only copy elements to another layout.
fn memory(listing: &Listing) -> [String; 2] {
    let Peak { input_bytes, constant_bytes, kept_bytes, output_bytes, .. } = listing.peak;
    let (copies, copied_bytes) = listing.layout_copies;
    [
        format!(
            "memory at its peak: {} (inputs {}, constants {}, values computed once {}, outputs {}, between kernels {}, of which {} are in use at once)",
            bytes_text(listing.peak.bytes(false)),
            bytes_text(input_bytes),
            bytes_text(constant_bytes),
            bytes_text(kept_bytes),
            bytes_text(output_bytes),
            bytes_text(listing.arena_bytes as u64),
            bytes_text(listing.live_bytes_max as u64),
        ),
        format!("copies that only change the layout: {copies}, {}", bytes_text(copied_bytes)),
    ]
}

fn print_rows(rows: &[KernelRow], screen: &mut Screen) -> Result<(), Failure> {
    const FIGURES: usize = 44;
    let names = rows.iter().map(|row| row.node.chars().count()).max().unwrap_or(0).min(24);
    let left = screen.width().saturating_sub(names + FIGURES + 6).clamp(20, 72);
    for row in rows {
        let op = if row.is_once { format!("{} (once)", row.op) } else { row.op.clone() };
        let name = padded(&shortened(&row.node, names.max(4)), names.max(4));
        let figures = format!(
            "{:>9} {:>9} flops {:>8}",
            bytes_text(row.cost.bytes),
            count_text(row.cost.flops),
            time_text(row.time_ns)
        );
        let output = shortened(&row.output, 24);
        screen.line(format!(
            "  {name}  {} {figures}  {}",
            padded(&shortened(&op, left), left),
            screen.faint(&output)
        ))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Document {
    graph: String,
    before: Vec<RowDocument>,
    after: Vec<RowDocument>,
    live_bytes_max: usize,
    arena_bytes: usize,
    kept_bytes: u64,
    peak_bytes: u64,
    layout_copies: usize,
    layout_copied_bytes: u64,
}

#[derive(Serialize)]
struct RowDocument {
    node: String,
    op: String,
    output: String,
    reads: Vec<usize>,
    bytes: u64,
    flops: u64,
    time_ns: f64,
    once: bool,
}

/// A model's graphs, and in words the steps that run outside them.
#[derive(Serialize)]
struct ModelDocument {
    graphs: Vec<Document>,
    steps: String,
}

fn document(graph: &Graph, listing: &Listing) -> Document {
    let rows = |rows: &[KernelRow]| rows.iter().map(row_document).collect();
    Document {
        graph: graph.name().to_owned(),
        before: rows(&listing.before),
        after: rows(&listing.after),
        live_bytes_max: listing.live_bytes_max,
        arena_bytes: listing.arena_bytes,
        kept_bytes: listing.peak.constant_bytes + listing.peak.kept_bytes,
        peak_bytes: listing.peak.bytes(false),
        layout_copies: listing.layout_copies.0,
        layout_copied_bytes: listing.layout_copies.1,
    }
}

fn row_document(row: &KernelRow) -> RowDocument {
    RowDocument {
        node: row.node.clone(),
        op: row.op.clone(),
        output: row.output.clone(),
        reads: row.reads.clone(),
        bytes: row.cost.bytes,
        flops: row.cost.flops,
        time_ns: row.time_ns,
        once: row.is_once,
    }
}
