//! The errors of filters.

/// The reason why a filter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The text does not follow the grammar.
    #[error("filter, at character {at}: expected {expected}, got {got}")]
    Syntax {
        /// The character's position, counted from one.
        at: usize,
        /// The tokens that the grammar accepts at this position.
        expected: &'static str,
        /// The text found there.
        got: String,
    },
    /// The text begins like JSON but is not valid JSON.
    #[error("the filter is not JSON: {reason}")]
    NotJson {
        /// The JSON parser's message.
        reason: String,
    },
    /// A part of the JSON form has the wrong type.
    #[error("filter, at `{at}`: expected {expected}, got {got}")]
    Form {
        /// The key of that part.
        at: String,
        /// The accepted types.
        expected: &'static str,
        /// The type found.
        got: &'static str,
    },
    /// A path is empty, has an empty part or is too long or too deep.
    #[error("filter: the path `{path}` {reason}")]
    Path {
        /// The path.
        path: String,
        /// The fault of the path.
        reason: &'static str,
    },
    /// A range is bounded by a value without an order.
    #[error("filter: `{path}` is compared with {got}; expected a number or a text")]
    BoundType {
        /// The field.
        path: String,
        /// The type of the bound.
        got: &'static str,
    },
    /// A range has two bounds on one side.
    #[error("filter: `{path}` has two bounds on the same side; join two conditions with `and` instead")]
    BoundTwice {
        /// The field.
        path: String,
    },
    /// A range has a number on one side and a text on the other.
    #[error("filter: `{path}` is bounded by a number and by a text; nothing is between them")]
    BoundsDiffer {
        /// The field.
        path: String,
    },
    /// The text is too long.
    #[error("the filter has {bytes} bytes, at most {bytes_max} are read")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// There are too many conditions.
    #[error("the filter has more than {conditions_max} conditions")]
    TooManyConditions {
        /// Maximum number of conditions.
        conditions_max: usize,
    },
    /// The conditions are nested too deeply.
    #[error("the filter is nested more than {depth_max} levels deep")]
    TooDeep {
        /// Maximum depth.
        depth_max: usize,
    },
}
