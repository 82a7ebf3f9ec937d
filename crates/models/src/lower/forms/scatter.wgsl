// Elements joined by all updates of theirs, one after the other: each invocation has an element, and looks through the indices of its line.
@compute @workgroup_size(BLOCK_X)
fn scatter(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < scalars.elements; i += groups.x * BLOCK_X) {
        let at = i % scalars.inner;
        let row = i / scalars.inner % scalars.len;
        let first = i / scalars.inner / scalars.len * scalars.count;
        var old = x[i];
        for (var k = 0u; k < scalars.count; k++) {
            let place = (first + k) * scalars.inner + at;
            if u32(indices[place]) == row {
                let given = updates[place];
                old = JOIN;
            }
        }
        y[i] = old;
    }
}
