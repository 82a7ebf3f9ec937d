// Planes of the elements of others, by a table of places for each axis. Places below zero are none: `fill` stands there. An axis with no
// entries stays as it is.
fn element(i: u32) -> KIND {
    let column = i % scalars.columns;
    let row = i / scalars.columns % scalars.rows;
    let plane = i / scalars.columns / scalars.rows;
    var from_row = i32(row);
    var from_column = i32(column);
    if scalars.row_entries > 0u { from_row = row_at[row]; }
    if scalars.column_entries > 0u { from_column = column_at[column]; }
    if from_row < 0 || from_column < 0 { return FILL; }
    return SOURCE;
}
