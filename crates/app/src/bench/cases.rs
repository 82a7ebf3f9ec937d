//! What can be measured, as data: which op, which element type, which sizes.
//!
//! Names are stable, so that figures of different versions, machines and libraries can be joined on them.

/// Every case, in the order in which they are measured.
pub const CASES: &[Work] = &[Work::Transpose { rows: 64, columns: 64 }, Work::Transpose { rows: 4096, columns: 4096 }];

/// One op with its sizes. Elements are f32 unless it says otherwise; inputs are seeded random normals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// A matrix written out with its axes exchanged.
    Transpose { rows: usize, columns: usize },
}

/// How much work one run is, in the unit that the case is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Additions and multiplications.
    Flops(f64),
    /// Bytes that must be read and written at the least.
    Bytes(f64),
    /// Queries answered.
    Queries(f64),
    /// Nothing to divide the time by that would mean something.
    TimeOnly,
}

impl Work {
    /// The case's name.
    pub fn name(&self) -> String {
        match *self {
            Work::Transpose { rows, columns } => format!("transpose/f32/{rows}x{columns}"),
        }
    }

    /// How much work one run is.
    pub fn amount(&self) -> Amount {
        match *self {
            Work::Transpose { rows, columns } => Amount::Bytes(8.0 * (rows * columns) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = CASES.iter().map(Work::name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
