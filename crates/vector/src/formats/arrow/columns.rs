//! The schema: the columns, and the plan of the columns to read.

use polars_arrow_format::ipc::{DateUnit, FieldRef, Precision, TypeRef};

use super::super::batch::ColumnNames;
use super::super::error::{FormatError, Result};
use super::FORMAT;
use super::array::Array;
use super::message::damaged;

/// The accepted names of a column of vectors.
const VECTOR_NAMES: [&str; 2] = ["vector", "embedding"];
/// The name of a column of ids.
const ID_NAME: &str = "id";
/// The name of a column whose texts are JSON objects.
pub const METADATA_NAME: &str = "metadata";
/// Maximum nesting of lists and structures.
const DEPTH_MAX: usize = 16;

/// A column, or a part of one.
pub struct Column {
    pub name: String,
    pub kind: Kind,
}

/// The memory layout of an array.
pub enum Kind {
    Null,
    Bool,
    Int {
        bits: usize,
        signed: bool,
    },
    Float(Precision),
    Text {
        large: bool,
    },
    TextView,
    List {
        large: bool,
        item: Box<Column>,
    },
    FixedList {
        size: usize,
        item: Box<Column>,
    },
    Struct(Vec<Column>),
    /// An array that is not read: its number of buffers, whether view buffers follow, and its
    /// children.
    Opaque {
        buffers: usize,
        views: bool,
        children: Vec<Column>,
    },
}

impl Column {
    /// A field of the schema at nesting level `depth`.
    pub fn new(field: FieldRef<'_>, depth: usize) -> Result<Column> {
        if depth > DEPTH_MAX {
            return Err(FormatError::header(FORMAT, "columns are nested too deeply"));
        }
        let name = field.name().map_err(damaged)?.unwrap_or_default().to_owned();
        let mut children = Vec::new();
        for child in field.children().map_err(damaged)?.into_iter().flat_map(|children| children.iter()) {
            children.push(Column::new(child.map_err(damaged)?, depth + 1)?);
        }
        if field.dictionary().map_err(damaged)?.is_some() {
            // The array holds indices. Their values are in another message, which is not read.
            return Ok(Column { name, kind: Kind::Opaque { buffers: 2, views: false, children: Vec::new() } });
        }
        let Some(kind) = field.type_().map_err(damaged)? else {
            return Err(FormatError::header(FORMAT, format!("the column `{name}` has no type")));
        };
        Ok(Column { kind: Kind::new(kind, children, &name)?, name })
    }
}

impl Kind {
    fn new(kind: TypeRef<'_>, mut children: Vec<Column>, name: &str) -> Result<Kind> {
        let mut item = || match children.pop() {
            Some(item) if children.is_empty() => Ok(Box::new(item)),
            _ => Err(FormatError::header(FORMAT, format!("the list `{name}` does not have one kind of items"))),
        };
        let integer = |bits: i32, signed| match bits {
            8 | 16 | 32 | 64 => Ok(Kind::Int { bits: bits as usize, signed }),
            _ => Err(FormatError::header(FORMAT, format!("the column `{name}` has integers of {bits} bits"))),
        };
        let opaque = |buffers| Kind::Opaque { buffers, views: false, children: Vec::new() };
        Ok(match kind {
            TypeRef::Null(_) => Kind::Null,
            TypeRef::Bool(_) => Kind::Bool,
            TypeRef::Int(int) => integer(int.bit_width().map_err(damaged)?, int.is_signed().map_err(damaged)?)?,
            TypeRef::FloatingPoint(float) => Kind::Float(float.precision().map_err(damaged)?),
            TypeRef::Date(date) => match date.unit().map_err(damaged)? {
                DateUnit::Day => integer(32, true)?,
                DateUnit::Millisecond => integer(64, true)?,
            },
            TypeRef::Time(time) => integer(time.bit_width().map_err(damaged)?, true)?,
            TypeRef::Timestamp(_) | TypeRef::Duration(_) => integer(64, true)?,
            TypeRef::Utf8(_) => Kind::Text { large: false },
            TypeRef::LargeUtf8(_) => Kind::Text { large: true },
            TypeRef::Utf8View(_) => Kind::TextView,
            TypeRef::List(_) => Kind::List { large: false, item: item()? },
            TypeRef::LargeList(_) => Kind::List { large: true, item: item()? },
            TypeRef::FixedSizeList(list) => {
                let size = list.list_size().map_err(damaged)?;
                let size =
                    usize::try_from(size).map_err(|_| FormatError::header(FORMAT, format!("lists of {size} items")))?;
                Kind::FixedList { size, item: item()? }
            }
            TypeRef::Struct(_) => Kind::Struct(children),
            TypeRef::Decimal(_) | TypeRef::FixedSizeBinary(_) | TypeRef::Interval(_) => opaque(2),
            TypeRef::Binary(_) | TypeRef::LargeBinary(_) => opaque(3),
            TypeRef::BinaryView(_) => Kind::Opaque { buffers: 2, views: true, children: Vec::new() },
            TypeRef::Map(_) => Kind::Opaque { buffers: 2, views: false, children },
            TypeRef::ListView(_) | TypeRef::LargeListView(_) => Kind::Opaque { buffers: 3, views: false, children },
            TypeRef::RunEndEncoded(_) => Kind::Opaque { buffers: 0, views: false, children },
            TypeRef::Union(_) => {
                let what = format!("the union `{name}`");
                return Err(FormatError::Unsupported { format: FORMAT, what, advice: "leave the column out" });
            }
        })
    }

    fn can_be_vector(&self) -> bool {
        match self {
            Kind::List { item, .. } | Kind::FixedList { item, .. } => matches!(item.kind, Kind::Float(_)),
            _ => false,
        }
    }

    fn can_be_metadata(&self) -> bool {
        match self {
            Kind::Opaque { .. } => false,
            Kind::List { item, .. } | Kind::FixedList { item, .. } => item.kind.can_be_metadata(),
            Kind::Struct(fields) => fields.iter().all(|field| field.kind.can_be_metadata()),
            _ => true,
        }
    }

    fn can_be_id(&self) -> bool {
        matches!(self, Kind::Text { .. } | Kind::TextView | Kind::Int { .. })
    }
}

/// The columns to read.
pub struct ArrowColumns {
    vector: usize,
    pub id: Option<usize>,
    pub fields: Vec<usize>,
    /// The names of the columns that are not read.
    pub left_out: Vec<String>,
}

impl ArrowColumns {
    /// Chooses the columns by their names and types.
    pub fn new(columns: &[Column], names: &ColumnNames) -> Result<ArrowColumns> {
        let missing = |wanted: String| {
            let known = columns.iter().take(100).map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
            FormatError::MissingColumn { wanted, known }
        };
        let vector = vector_index(columns, names.vector.as_deref()).ok_or_else(|| {
            missing(match &names.vector {
                Some(name) => format!("`{name}` of lists of floats"),
                None => {
                    "of vectors: expected one of lists of floats, named `vector` or `embedding` if there are several"
                        .to_owned()
                }
            })
        })?;
        let name = names.id.as_deref().unwrap_or(ID_NAME);
        let id = columns.iter().position(|column| column.name == name && column.kind.can_be_id());
        if let (Some(name), None) = (&names.id, id) {
            return Err(missing(format!("`{name}` of texts or integers")));
        }
        let rest = (0..columns.len()).filter(|index| *index != vector && Some(*index) != id);
        let (fields, others): (Vec<usize>, Vec<usize>) = rest.partition(|index| columns[*index].kind.can_be_metadata());
        let left_out = others.into_iter().map(|index| columns[index].name.clone()).collect();
        Ok(ArrowColumns { vector, id, fields, left_out })
    }

    /// Whether the column is read.
    pub fn reads(&self, index: usize) -> bool {
        index == self.vector || Some(index) == self.id || self.fields.contains(&index)
    }

    /// The array of vectors in a batch.
    pub fn vector_of<'a>(&self, arrays: &'a [Option<Array>]) -> Result<&'a Array> {
        let array = arrays.get(self.vector).and_then(Option::as_ref);
        array.ok_or_else(|| FormatError::header(FORMAT, "a record batch lacks the vectors"))
    }
}

fn vector_index(columns: &[Column], name: Option<&str>) -> Option<usize> {
    if let Some(name) = name {
        return columns.iter().position(|column| column.name == name && column.kind.can_be_vector());
    }
    let usual = |column: &Column| VECTOR_NAMES.contains(&column.name.as_str()) && column.kind.can_be_vector();
    columns.iter().position(usual).or_else(|| {
        let mut fitting = columns.iter().enumerate().filter(|(_, column)| column.kind.can_be_vector());
        let only = fitting.next().map(|(index, _)| index);
        only.filter(|_| fitting.next().is_none())
    })
}
