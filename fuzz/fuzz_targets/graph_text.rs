//! Graphs as text: a graph that can be parsed is written and parsed again, and must stay the same.
#![no_main]

use panoply_graph::text::{parse, write};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(graph) = parse(text)
        && let Ok(written) = write(&graph)
    {
        let again = parse(&written).expect("what was written is read");
        assert_eq!(again.hash(), graph.hash());
    }
});
