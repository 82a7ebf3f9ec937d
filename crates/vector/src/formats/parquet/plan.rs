//! The plan of the columns to read, and their use.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};

use super::super::batch::ColumnNames;
use super::super::error::{FormatError, Result};

/// The accepted names of a column of vectors.
const VECTOR_NAMES: [&str; 2] = ["vector", "embedding"];
/// The accepted names of a column of ids.
const ID_NAMES: [&str; 1] = ["id"];
/// The name of a column whose texts are JSON objects.
const METADATA_NAME: &str = "metadata";

/// The columns to read.
pub struct ParquetColumns {
    pub vector: Field,
    pub id: Option<Field>,
    pub fields: Vec<Field>,
    /// The names of the columns that are not read.
    pub left_out: Vec<String>,
}

/// One column of values: a leaf of the schema.
#[derive(Clone)]
pub struct Field {
    /// Index among all leaves.
    pub index: usize,
    /// The dotted path, for display.
    pub path: String,
    /// The path in the metadata.
    pub parts: Vec<String>,
    /// Whether the texts are JSON objects that are used as the metadata directly.
    pub is_json: bool,
    pub descriptor: ColumnDescPtr,
}

impl ParquetColumns {
    /// Chooses the columns by their names and types.
    pub fn new(schema: &SchemaDescriptor, names: &ColumnNames) -> Result<ParquetColumns> {
        let mut leaves: Vec<Field> = (0..schema.num_columns()).map(|index| Field::new(schema, index)).collect();
        let known = || {
            let roots = schema.root_schema().get_fields().iter().map(|root| root.name().to_owned());
            roots.take(100).collect::<Vec<_>>().join(", ")
        };
        let vector = vector_index(&leaves, names.vector.as_deref()).ok_or_else(|| {
            let wanted = match &names.vector {
                Some(name) => format!("`{name}` of lists of floats"),
                None => {
                    "of vectors: expected one of lists of floats, named `vector` or `embedding` if there are several"
                        .to_owned()
                }
            };
            FormatError::MissingColumn { wanted, known: known() }
        })?;
        let vector = leaves.remove(vector);
        let is_id = |leaf: &Field| match &names.id {
            Some(name) => leaf.path == *name,
            None => ID_NAMES.contains(&leaf.path.as_str()),
        };
        let id = leaves.iter().position(is_id).map(|index| leaves.remove(index));
        if let Some(wanted) = &names.id
            && !id.as_ref().is_some_and(Field::can_be_id)
        {
            let wanted = format!("`{wanted}` of texts or integers");
            return Err(FormatError::MissingColumn { wanted, known: known() });
        }
        let (id, unfit) = match id {
            Some(id) if !id.can_be_id() => (None, Some(id)),
            id => (id, None),
        };
        let (fields, others): (Vec<Field>, Vec<Field>) =
            leaves.into_iter().chain(unfit).partition(Field::can_be_metadata);
        let left_out = others.into_iter().map(|leaf| leaf.path).collect();
        Ok(ParquetColumns { vector, id, fields, left_out })
    }

    /// All leaves to read: the vector, the id if there is one, the fields.
    pub fn leaves(&self) -> impl Iterator<Item = &Field> {
        std::iter::once(&self.vector).chain(&self.id).chain(&self.fields)
    }
}

impl Field {
    fn new(schema: &SchemaDescriptor, index: usize) -> Field {
        let descriptor = schema.column(index);
        let mut parts = descriptor.path().parts().to_vec();
        // A list's own name is two levels above its elements.
        if descriptor.max_rep_level() > 0 && parts.len() >= 3 {
            parts.truncate(parts.len() - 2);
        }
        let path = parts.join(".");
        let is_text = descriptor.physical_type() == PhysicalType::BYTE_ARRAY && descriptor.max_rep_level() == 0;
        let is_json = is_text && path == METADATA_NAME;
        Field { index, path, parts, is_json, descriptor: Arc::clone(&descriptor) }
    }

    fn can_be_vector(&self) -> bool {
        let float = match self.descriptor.physical_type() {
            PhysicalType::FLOAT | PhysicalType::DOUBLE => true,
            _ => is_half(&self.descriptor),
        };
        float && self.descriptor.max_rep_level() == 1
    }

    fn can_be_id(&self) -> bool {
        let fits = matches!(
            self.descriptor.physical_type(),
            PhysicalType::BYTE_ARRAY | PhysicalType::INT32 | PhysicalType::INT64
        );
        fits && self.can_be_metadata() && self.descriptor.max_rep_level() == 0
    }

    fn can_be_metadata(&self) -> bool {
        let decimal = matches!(self.descriptor.logical_type_ref(), Some(LogicalType::Decimal { .. }))
            || self.descriptor.converted_type() == ConvertedType::DECIMAL;
        let fits = match self.descriptor.physical_type() {
            PhysicalType::INT96 => false,
            PhysicalType::FIXED_LEN_BYTE_ARRAY => is_half(&self.descriptor),
            PhysicalType::BYTE_ARRAY => is_text(&self.descriptor),
            _ => true,
        };
        fits && !decimal && self.descriptor.max_rep_level() <= 1
    }
}

/// Whether a column of bytes holds texts.
fn is_text(descriptor: &ColumnDescPtr) -> bool {
    let logical =
        matches!(descriptor.logical_type_ref(), Some(LogicalType::String | LogicalType::Enum | LogicalType::Json));
    let converted = [ConvertedType::UTF8, ConvertedType::ENUM, ConvertedType::JSON];
    logical || converted.contains(&descriptor.converted_type())
}

/// Whether a column holds half-precision numbers.
pub fn is_half(descriptor: &ColumnDescPtr) -> bool {
    descriptor.physical_type() == PhysicalType::FIXED_LEN_BYTE_ARRAY
        && matches!(descriptor.logical_type_ref(), Some(LogicalType::Float16))
}

fn vector_index(leaves: &[Field], name: Option<&str>) -> Option<usize> {
    if let Some(name) = name {
        return leaves.iter().position(|leaf| leaf.path == name && leaf.can_be_vector());
    }
    let usual = |leaf: &Field| VECTOR_NAMES.contains(&leaf.path.as_str()) && leaf.can_be_vector();
    leaves.iter().position(usual).or_else(|| {
        let mut fitting = leaves.iter().enumerate().filter(|(_, leaf)| leaf.can_be_vector());
        let only = fitting.next().map(|(index, _)| index);
        only.filter(|_| fitting.next().is_none())
    })
}
