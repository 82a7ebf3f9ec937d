// Planes of other sizes: each element is a sum of elements with weights, by a table for each axis. Places below zero are none. An
// axis with no entries stays as it is.
@compute @workgroup_size(BLOCK_X)
fn resample(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row_entries = scalars.row_entries;
    let column_entries = scalars.column_entries;
    for (var i = id.x; i < scalars.count; i += groups.x * BLOCK_X) {
        let column = i % scalars.columns;
        let row = i / scalars.columns % scalars.rows;
        let plane = i / scalars.columns / scalars.rows;
        var sum = 0.0;
        for (var r = 0u; r < max(row_entries, 1u); r++) {
            var from_row = i32(row);
            var row_weight = 1.0;
            if row_entries > 0u {
                from_row = row_at[row * row_entries + r];
                row_weight = row_of[row * row_entries + r];
            }
            if from_row >= 0 {
                var part = 0.0;
                for (var c = 0u; c < max(column_entries, 1u); c++) {
                    var from_column = i32(column);
                    var weight = 1.0;
                    if column_entries > 0u {
                        from_column = column_at[column * column_entries + c];
                        weight = column_of[column * column_entries + c];
                    }
                    if from_column >= 0 {
                        part += weight * x[(plane * scalars.height + u32(from_row)) * scalars.width + u32(from_column)];
                    }
                }
                sum += row_weight * part;
            }
        }
        y[i] = sum;
    }
}
