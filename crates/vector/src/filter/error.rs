//! What can be wrong with a filter.

/// Why a filter was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The text does not follow the grammar.
    #[error("filter, at character {at}: expected {expected}, got {got}")]
    Syntax {
        /// Which character, counted from one.
        at: usize,
        /// What could have stood there.
        expected: &'static str,
        /// What stands there.
        got: String,
    },
    /// The text begins as JSON and does not go on so.
    #[error("the filter is not JSON: {reason}")]
    NotJson {
        /// What the JSON parser said.
        reason: String,
    },
    /// A part of the JSON form is of the wrong kind.
    #[error("filter, at `{at}`: expected {expected}, got {got}")]
    Form {
        /// The key that it stands under.
        at: String,
        /// What could have stood there.
        expected: &'static str,
        /// What stands there.
        got: &'static str,
    },
    /// A path is empty, has an empty part or is too long or too deep.
    #[error("filter: the path `{path}` {reason}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A range is bounded by something that has no order.
    #[error("filter: `{path}` is compared with {got}; expected a number or a text")]
    BoundType {
        /// The field.
        path: String,
        /// What it is compared with.
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
        /// Its length.
        bytes: usize,
        /// The longest that is accepted.
        bytes_max: usize,
    },
    /// There are too many conditions.
    #[error("the filter has more than {conditions_max} conditions")]
    TooManyConditions {
        /// The most that are accepted.
        conditions_max: usize,
    },
    /// The conditions are nested too deeply.
    #[error("the filter is nested more than {depth_max} levels deep")]
    TooDeep {
        /// The deepest that is accepted.
        depth_max: usize,
    },
}
