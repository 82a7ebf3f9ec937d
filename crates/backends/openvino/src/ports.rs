//! The names of an ONNX model's inputs and outputs.
//!
//! OpenVINO merges the values on both sides of an `Identity`, and then shows any of their names. So
//! the names come from the file: `ModelProto.graph` (field 7) has inputs (field 11) and outputs
//! (field 12), each with a name (field 1). Everything else is skipped without being read.

use std::io::{ErrorKind, Read, Result, Seek, SeekFrom};

/// Maximum number of names, and of bytes of a name and of its port.
const PORTS_MAX: usize = 4096;
const PORT_BYTES_MAX: u64 = 1 << 20;

const GRAPH: u64 = 7;
const INPUT: u64 = 11;
const OUTPUT: u64 = 12;
const NAME: u64 = 1;

/// The names of the inputs and of the outputs, in the model's order. Inputs may include weights.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PortNames {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

impl PortNames {
    /// Reads the names of an ONNX file. Fails for any other file.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<PortNames> {
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut names = PortNames::default();
        fields(file, end, &mut |file, field, len| match field {
            GRAPH => names.read_graph(file, len),
            _ => skip(file, len),
        })?;
        Ok(names)
    }

    fn read_graph(&mut self, file: &mut (impl Read + Seek), len: u64) -> Result<()> {
        let end = file.stream_position()?.saturating_add(len);
        fields(file, end, &mut |file, field, len| {
            let list = match field {
                INPUT => &mut self.inputs,
                OUTPUT => &mut self.outputs,
                _ => return skip(file, len),
            };
            if len > PORT_BYTES_MAX || list.len() >= PORTS_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            let end = file.stream_position()?.saturating_add(len);
            let mut name = Vec::new();
            fields(file, end, &mut |file, field, len| match field {
                NAME => {
                    // At most as long as its port, which is bounded.
                    name = vec![0; len as usize];
                    file.read_exact(&mut name)
                }
                _ => skip(file, len),
            })?;
            list.push(String::from_utf8_lossy(&name).into_owned());
            Ok(())
        })
    }
}

/// Calls `take` for each field with a length up to `end`. `take` must consume the field. Numbers
/// are skipped. No field reaches beyond `end`.
fn fields<F: Read + Seek>(file: &mut F, end: u64, take: &mut dyn FnMut(&mut F, u64, u64) -> Result<()>) -> Result<()> {
    loop {
        let at = file.stream_position()?;
        if at >= end {
            return if at == end { Ok(()) } else { Err(ErrorKind::InvalidData.into()) };
        }
        let key = number(file)?;
        match key & 7 {
            0 => drop(number(file)?),
            1 => skip(file, 8)?,
            5 => skip(file, 4)?,
            2 => {
                let len = number(file)?;
                let left = end.saturating_sub(file.stream_position()?);
                if len > left {
                    return Err(ErrorKind::InvalidData.into());
                }
                take(file, key >> 3, len)?;
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn skip(file: &mut impl Seek, len: u64) -> Result<()> {
    file.seek_relative(i64::try_from(len).map_err(|_| ErrorKind::InvalidData)?)
}

/// Reads a number of seven bits in each byte.
fn number(file: &mut impl Read) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        number |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(number);
        }
    }
    Err(ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// An ONNX file with `y = Relu(x)`.
    const RELU: &[u8] =
        b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";

    #[test]
    fn names_are_those_of_the_graph() {
        let names = PortNames::read(&mut Cursor::new(RELU)).unwrap();
        assert_eq!((names.inputs, names.outputs), (vec!["x".to_owned()], vec!["y".to_owned()]));
    }

    #[test]
    fn what_is_no_model_has_no_names() {
        // The graph ends in front of the last four bytes.
        for len in 0..RELU.len() - 4 {
            let read = PortNames::read(&mut Cursor::new(&RELU[..len]));
            assert!(read.is_err() || len <= 2, "{len}: {read:?}");
        }
        for bytes in [&b"<net name=\"a\">"[..], &[0xff; 40], b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(PortNames::read(&mut Cursor::new(bytes)).is_err());
        }
        for at in 0..RELU.len() {
            for byte in 0..=255 {
                let mut bytes = RELU.to_vec();
                bytes[at] = byte;
                // Neither a panic nor memory that the file does not have.
                let _ = PortNames::read(&mut Cursor::new(&bytes));
            }
        }
    }
}
