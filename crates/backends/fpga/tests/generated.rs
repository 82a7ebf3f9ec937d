//! Checks that the files generated from `src/map.rs` are up to date. `PANOPLY_REGENERATE=1` writes
//! them.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::fmt::Write as _;
use std::path::Path;

use panoply_fpga::map::{self, Access, CoreKind, build};

#[test]
fn the_verilog_headers_are_up_to_date() {
    check("rtl/generated.vh", |_| header());
    check("rtl/twiddles.vh", |_| twiddles());
    check("rtl/crc32.vh", |_| crc_masks());
}

#[test]
fn the_tables_of_the_document_are_up_to_date() {
    check("../../../docs/fpga.md", |text| {
        let text = replaced(text, "registers", &register_table());
        replaced(&text, "cores", &core_table())
    });
}

#[test]
fn no_two_registers_share_a_place() {
    for (at, register) in map::REGISTERS.iter().enumerate() {
        assert_eq!(register.offset % 4, 0, "{}", register.name);
        assert!(map::REGISTERS[..at].iter().all(|other| other.offset < register.offset), "{}", register.name);
    }
}

/// Compares a file with its expected contents, which may depend on the current contents.
fn check(file: &str, make: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let found = std::fs::read_to_string(&path).unwrap();
    let expected = make(&found);
    if std::env::var_os("PANOPLY_REGENERATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert!(found == expected, "{file} is not what src/map.rs says; run this test with PANOPLY_REGENERATE=1");
    }
}

fn header() -> String {
    let mut text =
        "// Written from src/map.rs; do not edit.\n`ifndef PANOPLY_GENERATED\n`define PANOPLY_GENERATED\n".to_owned();
    for register in map::REGISTERS {
        writeln!(text, "`define REG_{} 12'h{:03x}", register.name, register.offset).unwrap();
    }
    for (name, value, bits, _) in map::VALUES {
        writeln!(text, "`define {} {bits}'h{value:x}", name.trim_end_matches("_VALUE")).unwrap();
    }
    for (name, value, _) in build::PARAMETERS {
        writeln!(text, "`define {name} {value}").unwrap();
    }
    for kind in CoreKind::ALL {
        writeln!(text, "`define CORE_{} {}", kind.name().to_uppercase(), kind as u8).unwrap();
    }
    text + "`endif\n"
}

fn twiddles() -> String {
    let mut text = "// Written from src/map.rs; do not edit. Included inside the stages of the transform.\n".to_owned();
    let size = build::FFT_SIZE as usize;
    for (name, part) in [("re", 0), ("im", 1)] {
        writeln!(text, "function signed [`TWIDDLE_WIDTH-1:0] twiddle_{name}(input [15:0] k);\n    case (k)").unwrap();
        for k in 0..size / 2 {
            let (re, im) = map::twiddle(k, size);
            let value = [re, im][part] & ((1 << map::TWIDDLE_WIDTH) - 1);
            writeln!(text, "        16'd{k}: twiddle_{name} = {}'h{value:07x};", map::TWIDDLE_WIDTH).unwrap();
        }
        writeln!(text, "        default: twiddle_{name} = {}'h0;\n    endcase\nendfunction", map::TWIDDLE_WIDTH)
            .unwrap();
    }
    text
}

/// For each bit of the next CRC sum, the mask of the input bits whose parity it is. Derived from
/// the effect of each input bit alone.
fn crc_masks() -> String {
    let mut text = "// Written from src/map.rs; do not edit. Included inside the core.\n".to_owned();
    text +=
        "function [31:0] crc32_next(input [31:0] sum, input [63:0] bytes, input [7:0] keep);\n    reg [95:0] all;\n";
    text += "    begin\n        all = {bytes, sum};\n        case (keep)\n";
    for count in 1..=8 {
        let ends: Vec<u32> = (0..96).map(|place| map::crc32_next(1_u128 << place, count)).collect();
        writeln!(text, "            8'h{:02x}: begin", (1_u32 << count) - 1).unwrap();
        for bit in 0..32 {
            let mask: u128 = ends.iter().enumerate().map(|(place, end)| u128::from(end >> bit & 1) << place).sum();
            writeln!(text, "                crc32_next[{bit}] = ^(all & 96'h{mask:024x});").unwrap();
        }
        text += "            end\n";
    }
    text + "            default: crc32_next = sum;\n        endcase\n    end\nendfunction\n"
}

fn register_table() -> String {
    let mut text = "| offset | register | access | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for register in map::REGISTERS {
        let access = match register.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "read, write",
        };
        writeln!(text, "| `0x{:02x}` | {} | {access} | {} |", register.offset, register.name, register.meaning)
            .unwrap();
    }
    text
}

fn core_table() -> String {
    let mut text = "| core | number | parameters | latency in clocks |\n| --- | --- | --- | --- |\n".to_owned();
    for kind in CoreKind::ALL {
        let prefix = format!("{}_", kind.name().to_uppercase());
        let own = build::PARAMETERS.iter().filter(|(name, ..)| name.starts_with(&prefix));
        let parameters: Vec<String> = own.map(|(name, value, _)| format!("{name} = {value}")).collect();
        let latency = kind.latency();
        let each = match latency.each {
            0 => String::new(),
            each => format!(", and {each} for each {}", latency.unit),
        };
        let name = kind.name();
        writeln!(text, "| {name} | {} | {} | {}{each} |", kind as u8, parameters.join(", "), latency.fixed).unwrap();
    }
    text
}

/// Replaces the text between the two marks of this name.
fn replaced(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) = text.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{begin}{table}{end}{after}")
}
