//! The metadata of SigMF recordings.

use std::io::Read;
use std::path::{Path, PathBuf};

use panoply_core::op::signal::SampleFormat;
use serde_json::{Value, json};

use super::{RecordingError, Result, SampleLayout, opened};

/// The largest size of metadata that is read, in bytes.
pub(super) const META_BYTES_MAX: u64 = 16 << 20;

/// The metadata of a recording.
pub(super) struct Meta {
    pub(super) layout: SampleLayout,
    /// The path of the file with the samples.
    pub(super) data: PathBuf,
    /// Number of bytes before the first sample.
    pub(super) header_bytes: u64,
}

impl Meta {
    pub(super) fn read(path: &Path) -> Result<Meta> {
        let (mut text, about) = (Vec::new(), path.display().to_string());
        let read = opened(path)?.take(META_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|source| RecordingError::Io { what: about, source })?;
        if text.len() as u64 > META_BYTES_MAX {
            return Err(RecordingError::invalid("metadata", &format!("up to {META_BYTES_MAX} bytes"), "more"));
        }
        let value: Value =
            serde_json::from_slice(&text).map_err(|error| RecordingError::invalid("metadata", "JSON", error))?;
        Meta::of(&value, path)
    }

    fn of(value: &Value, path: &Path) -> Result<Meta> {
        let global = &value["global"];
        let name = global["core:datatype"].as_str().unwrap_or("nothing");
        let (format, complex) = datatype(name).ok_or_else(|| {
            let expected = "cf32_le, ci16_le, cu8 and their like, of at most 32 bits";
            RecordingError::invalid("core:datatype", expected, name)
        })?;
        let first = &value["captures"][0];
        let layout = SampleLayout {
            format,
            complex,
            channels: whole(&global["core:num_channels"], 1, "core:num_channels")? as usize,
            rate_hz: number(&global["core:sample_rate"], 1.0, "core:sample_rate")?,
            centre_hz: number(&first["core:frequency"], 0.0, "core:frequency")?,
        };
        let data = match &global["core:dataset"] {
            Value::Null => path.with_extension("sigmf-data"),
            named => path.with_file_name(plain_name(named)?),
        };
        let header_bytes = whole(&first["core:header_bytes"], 0, "core:header_bytes")?;
        Ok(Meta { layout: layout.check()?, data, header_bytes })
    }
}

/// A file name in the recording's own folder. Names that lead elsewhere are refused.
fn plain_name(value: &Value) -> Result<&str> {
    let name = value.as_str().unwrap_or_default();
    let is_plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..";
    is_plain
        .then_some(name)
        .ok_or_else(|| RecordingError::invalid("core:dataset", "a file's name without a folder", value))
}

fn number(value: &Value, default: f64, what: &'static str) -> Result<f64> {
    match value {
        Value::Null => Ok(default),
        other => other.as_f64().ok_or_else(|| RecordingError::invalid(what, "a number", other)),
    }
}

fn whole(value: &Value, default: u64, what: &'static str) -> Result<u64> {
    match value {
        Value::Null => Ok(default),
        other => other.as_u64().ok_or_else(|| RecordingError::invalid(what, "a whole number, 0 or more", other)),
    }
}

/// The format of a SigMF datatype, and whether its samples are complex.
fn datatype(name: &str) -> Option<(SampleFormat, bool)> {
    let complex = match name.as_bytes().first()? {
        b'c' => true,
        b'r' => false,
        _ => return None,
    };
    let format = match name.get(1..)? {
        "u8" | "u8_le" | "u8_be" => SampleFormat::U8,
        "i8" | "i8_le" | "i8_be" => SampleFormat::I8,
        "i16_le" => SampleFormat::I16,
        "i16_be" => SampleFormat::I16Be,
        "i32_le" => SampleFormat::I32,
        "f32_le" => SampleFormat::F32,
        _ => return None,
    };
    Some((format, complex))
}

/// The metadata of a recording with this layout. Fails if SigMF has no such format.
pub(super) fn written(layout: &SampleLayout, description: &str) -> Result<String> {
    let number = match layout.format {
        SampleFormat::U8 => "u8",
        SampleFormat::I8 => "i8",
        SampleFormat::I16 => "i16_le",
        SampleFormat::I16Be => "i16_be",
        SampleFormat::I32 => "i32_le",
        SampleFormat::F32 => "f32_le",
        SampleFormat::I24 => return Err(RecordingError::invalid("format", "one that SigMF has", "i24")),
    };
    let meta = json!({
        "global": {
            "core:datatype": format!("{}{number}", if layout.complex { "c" } else { "r" }),
            "core:sample_rate": layout.rate_hz,
            "core:version": "1.0.0",
            "core:num_channels": layout.channels,
            "core:description": description,
        },
        "captures": [{ "core:sample_start": 0, "core:frequency": layout.centre_hz }],
        "annotations": [],
    });
    Ok(format!("{meta:#}\n"))
}
