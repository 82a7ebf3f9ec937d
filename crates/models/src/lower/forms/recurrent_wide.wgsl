// The steps of a recurrent layer of more units than a block's memory holds, by a block for each row of the batch and each direction. An invocation
// makes the sums of all gates of a unit, then those of its next one; states lie behind what the layer makes, those of one step and of the next in turn.
var<workgroup> states: array<f32, BLOCK_X>;

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
    let made_last = all + own;
    let cells = all + last + own;
    let other = all + KEPTu * last + own;
    for (var unit = t; unit < hidden; unit += BLOCK_X) {
        y[made_last + unit] = FIRST_HIDDEN;
        FIRST_CELLS
    }
    for (var at = 0u; at < length; at++) {
        var step = at;
        if (scalars.reversed >> direction & 1u) != 0u { step = length - 1u - at; }
        let input = ((step * batch + row) * directions + direction) * width;
        let before = select(other, made_last, at % 2u == 0u);
        let after = select(made_last, other, at % 2u == 0u);
        for (var first = 0u; first < hidden; first += BLOCK_X) {
            let unit = first + t;
            var products: array<f32, GATES>;
            for (var gate = 0u; gate < GATESu; gate++) {
                if unit < hidden { products[gate] = biases[direction * width + gate * hidden + unit]; }
            }
            for (var start = 0u; start < hidden; start += BLOCK_X) {
                let count = min(hidden - start, BLOCK_X);
                storageBarrier();
                workgroupBarrier();
                if t < count { states[t] = y[before + start + t]; }
                workgroupBarrier();
                if unit < hidden {
                    for (var place = 0u; place < count; place++) {
                        let line = matrix + (start + place) * width + unit;
                        let one = states[place];
                        for (var gate = 0u; gate < GATESu; gate++) { products[gate] += weights[line + gate * hidden] * one; }
                    }
                }
            }
            if unit < hidden {
                var made: f32;
                CELL
                y[after + unit] = made;
                if scalars.wants_all != 0u { y[((step * directions + direction) * batch + row) * hidden + unit] = made; }
            }
        }
    }
    // An invocation moves what it has made itself.
    if length % 2u != 0u {
        for (var unit = t; unit < hidden; unit += BLOCK_X) { y[made_last + unit] = y[other + unit]; }
    }
}
