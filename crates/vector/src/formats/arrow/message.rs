//! Messages: a flatbuffers header, then a body of arrays.
//!
//! ```text
//! 0xFFFFFFFF, header bytes (i32), header, padding to 8 bytes, body
//! ```

use std::io::Read;

use polars_arrow_format::ipc::planus::ReadAsRoot;
use polars_arrow_format::ipc::{Endianness, MessageHeaderRef, MessageRef, RecordBatchRef, SchemaRef};

use super::super::bytes::ByteSource;
use super::super::error::{FormatError, Result};
use super::FORMAT;
use super::array::{Array, UnreadBuffers};
use super::body::{Body, Compression};
use super::columns::{ArrowColumns, Column};

/// The magic bytes of a file; a stream has none.
const FILE_MAGIC: &[u8; 8] = b"ARROW1\0\0";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Maximum size of a header.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// Maximum size of a body: one record batch.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// The messages of a stream.
pub struct Messages<R> {
    source: ByteSource<R>,
    /// The bytes that were read to distinguish a file from a stream; `Some` for a stream.
    peeked: Option<[u8; 8]>,
    /// Whether the source is a file. A file has a footer after its last message; a stream may just
    /// end.
    is_file: bool,
    ended: bool,
}

/// A message, reduced to the parts that are used.
pub enum Message {
    Schema(Vec<Column>),
    Batch {
        header: BatchHeader,
        body: Body,
    },
    /// Any other message, such as the values of a dictionary.
    Other,
}

/// The lengths and buffer ranges of a record batch's arrays.
pub struct BatchHeader {
    rows: usize,
    layout: UnreadBuffers,
}

impl<R: Read> Messages<R> {
    pub fn new(mut source: ByteSource<R>) -> Result<Messages<R>> {
        let mut bytes = Vec::new();
        let magic = source.fill(&mut bytes, FILE_MAGIC.len())?;
        let Some(first) = bytes.first_chunk::<8>().filter(|_| magic) else {
            return Err(FormatError::header(FORMAT, "it is empty"));
        };
        let peeked = (first != FILE_MAGIC).then_some(*first);
        if peeked.is_some_and(|first| first[..4] != CONTINUATION) {
            return Err(FormatError::header(FORMAT, "it begins neither as a file nor as a stream"));
        }
        Ok(Messages { source, peeked, is_file: peeked.is_none(), ended: false })
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// The next message; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Message>> {
        if self.ended {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let prefix = match self.peeked.take() {
            Some(peeked) => peeked,
            None => {
                if !self.source.fill(&mut bytes, 8)? {
                    if self.is_file {
                        return Err(self.source.truncated(8, 0));
                    }
                    self.ended = true;
                    return Ok(None);
                }
                *bytes.first_chunk().ok_or_else(|| self.source.truncated(8, 0))?
            }
        };
        let [a, b, c, d, lengths @ ..] = prefix;
        let length = u32::from_le_bytes(lengths) as usize;
        // After the last message of a file comes its footer, which has no message prefix.
        if [a, b, c, d] != CONTINUATION || length == 0 {
            self.ended = true;
            return Ok(None);
        }
        if length > HEADER_BYTES_MAX {
            let (bytes, bytes_max) = (length as u64, HEADER_BYTES_MAX as u64);
            return Err(FormatError::TooLarge { what: "a message's header", bytes, bytes_max });
        }
        self.source.fill_exactly(&mut bytes, length)?;
        self.read(&bytes).map(Some)
    }

    fn read(&mut self, header: &[u8]) -> Result<Message> {
        let message = MessageRef::read_as_root(header).map_err(damaged)?;
        let claimed = message.body_length().map_err(damaged)?;
        let body_bytes = u64::try_from(claimed)
            .map_err(|_| FormatError::header(FORMAT, format!("a message claims a body of {claimed} bytes")))?;
        if body_bytes > BODY_BYTES_MAX {
            let (what, bytes_max) = ("a record batch", BODY_BYTES_MAX);
            return Err(FormatError::TooLarge { what, bytes: body_bytes, bytes_max });
        }
        let mut body = Vec::new();
        self.source.fill_exactly(&mut body, body_bytes as usize)?;
        match message.header().map_err(damaged)? {
            Some(MessageHeaderRef::Schema(schema)) => read_schema(schema).map(Message::Schema),
            Some(MessageHeaderRef::RecordBatch(batch)) => {
                let (header, compression) = BatchHeader::new(batch)?;
                Ok(Message::Batch { header, body: Body::new(body, compression) })
            }
            _ => Ok(Message::Other),
        }
    }
}

fn read_schema(schema: SchemaRef<'_>) -> Result<Vec<Column>> {
    if schema.endianness().map_err(damaged)? != Endianness::Little {
        let what = "big-endian data".to_owned();
        return Err(FormatError::Unsupported { format: FORMAT, what, advice: "write it on a little-endian machine" });
    }
    let fields = schema.fields().map_err(damaged)?;
    let fields = fields.into_iter().flat_map(|fields| fields.iter());
    fields.map(|field| Column::new(field.map_err(damaged)?, 0)).collect()
}

impl BatchHeader {
    fn new(batch: RecordBatchRef<'_>) -> Result<(BatchHeader, Option<Compression>)> {
        let rows = count(batch.length().map_err(damaged)?)?;
        let compression = match batch.compression().map_err(damaged)? {
            Some(compression) => Some(Compression::new(compression.codec().map_err(damaged)?)?),
            None => None,
        };
        let mut layout = UnreadBuffers::default();
        for node in batch.nodes().map_err(damaged)?.into_iter().flat_map(|nodes| nodes.iter()) {
            layout.lengths.push_back(count(node.length())?);
        }
        for buffer in batch.buffers().map_err(damaged)?.into_iter().flat_map(|buffers| buffers.iter()) {
            let start = count(buffer.offset())?;
            let end = start.checked_add(count(buffer.length())?);
            let end = end.ok_or_else(|| FormatError::header(FORMAT, "a buffer lies nowhere"))?;
            layout.buffers.push_back(start..end);
        }
        for buffers in batch.variadic_buffer_counts().map_err(damaged)?.into_iter().flat_map(|counts| counts.iter()) {
            layout.variadic.push_back(count(buffers)?);
        }
        Ok((BatchHeader { rows, layout }, compression))
    }

    /// The arrays of the columns that the plan reads, and the number of rows.
    pub fn read(mut self, body: &Body, columns: &[Column], plan: &ArrowColumns) -> Result<(Vec<Option<Array>>, usize)> {
        let mut arrays = Vec::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            let wanted = plan.reads(index);
            let array = Array::take(&column.kind, &mut self.layout, body, wanted)?;
            if wanted && array.len() != self.rows {
                let reason = format!("the column `{}` has {} rows of {}", column.name, array.len(), self.rows);
                return Err(FormatError::header(FORMAT, reason));
            }
            arrays.push(wanted.then_some(array));
        }
        Ok((arrays, self.rows))
    }
}

fn count(value: i64) -> Result<usize> {
    usize::try_from(value).map_err(|_| FormatError::header(FORMAT, format!("a length is {value}")))
}

/// Converts an error of the flatbuffers library.
pub fn damaged(error: polars_arrow_format::ipc::planus::Error) -> FormatError {
    FormatError::header(FORMAT, error.to_string())
}
