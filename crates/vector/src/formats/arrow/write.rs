//! Writing: a file with the columns `id` (text), `vector` (list of fixed size of float) and
//! `metadata` (JSON text).

use std::io::Write;

use polars_arrow_format::ipc::planus::Builder;
use polars_arrow_format::ipc::{
    Block, Buffer, Field, FieldNode, FixedSizeList, FloatingPoint, Footer, LargeUtf8, Message, MessageHeader,
    MetadataVersion, Precision, RecordBatch, Schema, Type,
};

use super::super::batch::{Batch, Writer};
use super::super::error::{FormatError, Result};

const MAGIC: &[u8; 6] = b"ARROW1";
/// Alignment of headers and buffers.
const ALIGNMENT_BYTES: usize = 8;

/// Writes a file with one record batch per `Batch`.
pub struct ArrowWriter<W> {
    out: W,
    dimension: usize,
    position: u64,
    blocks: Vec<Block>,
    finished: bool,
}

impl<W: Write> ArrowWriter<W> {
    /// Begins a file.
    pub fn new(out: W, dimension: usize) -> Result<ArrowWriter<W>> {
        let mut writer = ArrowWriter { out, dimension, position: 0, blocks: Vec::new(), finished: false };
        writer.put(b"ARROW1\0\0")?;
        let header = MessageHeader::Schema(Box::new(schema(dimension)));
        writer.message(header, &[])?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(FormatError::io)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn message(&mut self, header: MessageHeader, body: &[u8]) -> Result<Block> {
        let message = Message {
            version: MetadataVersion::V5,
            header: Some(header),
            body_length: body.len() as i64,
            custom_metadata: None,
        };
        let mut header = Builder::new().finish(&message, None).to_vec();
        header.resize(header.len().next_multiple_of(ALIGNMENT_BYTES), 0);
        let offset = self.position as i64;
        self.put(&[0xff; 4])?;
        self.put(&(header.len() as u32).to_le_bytes())?;
        self.put(&header)?;
        self.put(body)?;
        Ok(Block { offset, meta_data_length: (8 + header.len()) as i32, body_length: body.len() as i64 })
    }
}

impl<W: Write + Send> Writer for ArrowWriter<W> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        if batch.ids.is_empty() {
            return Ok(());
        }
        let rows = batch.ids.len();
        let texts: Vec<Option<String>> = (0..rows)
            .map(|row| batch.metadata.get(row).filter(|metadata| !metadata.is_null()).map(ToString::to_string))
            .collect();
        let nulls = texts.iter().filter(|text| text.is_none()).count();
        let mut body = BodyBuilder::default();
        body.push(&[]);
        body.texts(batch.ids.iter().map(|id| Some(id.as_str())));
        body.push(&[]);
        body.push(&[]);
        body.push(&batch.vectors.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        body.push(&validity(&texts));
        body.texts(texts.iter().map(Option::as_deref));
        let node = |length: usize, nulls: usize| FieldNode { length: length as i64, null_count: nulls as i64 };
        let nodes = vec![node(rows, 0), node(rows, 0), node(rows * self.dimension, 0), node(rows, nulls)];
        let header = RecordBatch {
            length: rows as i64,
            nodes: Some(nodes),
            buffers: Some(body.buffers),
            compression: None,
            variadic_buffer_counts: None,
        };
        let block = self.message(MessageHeader::RecordBatch(Box::new(header)), &body.bytes)?;
        self.blocks.push(block);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.put(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])?;
        let footer = Footer {
            version: MetadataVersion::V5,
            schema: Some(Box::new(schema(self.dimension))),
            dictionaries: None,
            record_batches: Some(std::mem::take(&mut self.blocks)),
            custom_metadata: None,
        };
        let footer = Builder::new().finish(&footer, None).to_vec();
        self.put(&footer)?;
        self.put(&(footer.len() as u32).to_le_bytes())?;
        self.put(MAGIC)?;
        self.out.flush().map_err(FormatError::io)
    }
}

fn schema(dimension: usize) -> Schema {
    let field = |name: &str, nullable, kind, children| Field {
        name: Some(name.to_owned()),
        nullable,
        type_: Some(kind),
        dictionary: None,
        children: Some(children),
        custom_metadata: None,
    };
    let float = Type::FloatingPoint(Box::new(FloatingPoint { precision: Precision::Single }));
    let list = Type::FixedSizeList(Box::new(FixedSizeList { list_size: dimension as i32 }));
    let text = || Type::LargeUtf8(Box::new(LargeUtf8 {}));
    Schema {
        fields: Some(vec![
            field("id", false, text(), Vec::new()),
            field("vector", false, list, vec![field("item", false, float, Vec::new())]),
            field("metadata", true, text(), Vec::new()),
        ]),
        ..Schema::default()
    }
}

/// The validity bitmap: one bit per row, set where there is a text.
fn validity(texts: &[Option<String>]) -> Vec<u8> {
    let byte = |texts: &[Option<String>]| {
        texts.iter().enumerate().fold(0, |byte, (bit, text)| byte | (u8::from(text.is_some()) << bit))
    };
    texts.chunks(8).map(byte).collect()
}

#[derive(Default)]
struct BodyBuilder {
    bytes: Vec<u8>,
    buffers: Vec<Buffer>,
}

impl BodyBuilder {
    fn push(&mut self, buffer: &[u8]) {
        self.buffers.push(Buffer { offset: self.bytes.len() as i64, length: buffer.len() as i64 });
        self.bytes.extend(buffer);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT_BYTES), 0);
    }

    /// Appends the offsets, then the texts.
    fn texts<'a>(&mut self, texts: impl Iterator<Item = Option<&'a str>>) {
        let mut offsets = 0_i64.to_le_bytes().to_vec();
        let mut bytes = Vec::new();
        for text in texts {
            bytes.extend(text.unwrap_or_default().bytes());
            offsets.extend((bytes.len() as i64).to_le_bytes());
        }
        self.push(&offsets);
        self.push(&bytes);
    }
}
