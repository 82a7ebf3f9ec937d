// The steps of a recurrent layer, by a block for each row of the batch and each direction: the products with the input are there already, the
// weights of the state lie by the state's units, so that neighbours read neighbours.
var<workgroup> products: array<f32, WIDTH_MAX>;
var<workgroup> state: array<f32, HIDDEN_MAX>;
var<workgroup> cells: array<f32, HIDDEN_MAX>;

@compute @workgroup_size(BLOCK_X)
fn recurrent(@builtin(local_invocation_index) t: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let batch = scalars.batch;
    let hidden = scalars.hidden;
    let directions = scalars.directions;
    let row = group.x;
    let direction = group.y;
    let width = GATESu * hidden;
    let length = lengths[row];
    let own = (direction * batch + row) * hidden;
    let all = scalars.steps * directions * batch * hidden;
    let last = directions * batch * hidden;
    let matrix = direction * hidden * width;
    for (var unit = t; unit < hidden; unit += BLOCK_X) {
        state[unit] = FIRST_HIDDEN;
        cells[unit] = FIRST_CELLS;
    }
    for (var at = 0u; at < length; at++) {
        var step = at;
        if (scalars.reversed >> direction & 1u) != 0u { step = length - 1u - at; }
        let input = ((step * batch + row) * directions + direction) * width;
        workgroupBarrier();
        for (var column = t; column < width; column += BLOCK_X) {
            var sum = biases[direction * width + column];
            for (var unit = 0u; unit < hidden; unit++) { sum += weights[matrix + unit * width + column] * state[unit]; }
            products[column] = sum;
        }
        workgroupBarrier();
        for (var unit = t; unit < hidden; unit += BLOCK_X) {
            var made: f32;
            CELL
            state[unit] = made;
            if scalars.wants_all != 0u { y[((step * directions + direction) * batch + row) * hidden + unit] = made; }
        }
    }
    for (var unit = t; unit < hidden; unit += BLOCK_X) {
        y[all + own + unit] = state[unit];
        LAST_CELLS
    }
}
