// The steps of a recurrent layer, by a block for each row of the batch and each direction: the products with the input are there already, the
// weights of the state lie by the state's units, so that neighbours read neighbours.
DEVICE f32 sigmoid_of(f32 x) { return 1.0f / (1.0f + expf(-x)); }

KERNEL recurrent(GLOBAL const f32 *sums, STATES GLOBAL const f32 *weights, GLOBAL const f32 *biases, GLOBAL const u32 *lengths, GLOBAL f32 *y,
                 u32 steps, u32 batch, u32 directions, u32 hidden, u32 reversed, u32 wants_all)
{
    SHARED f32 products[WIDTH_MAX];
    SHARED f32 state[HIDDEN_MAX];
    SHARED f32 cells[HIDDEN_MAX];
    u32 t = thread_x(), row = block_x(), direction = block_y(), width = GATES * hidden, length = lengths[row];
    u32 own = (direction * batch + row) * hidden, all = steps * directions * batch * hidden, last = directions * batch * hidden;
    GLOBAL const f32 *matrix = weights + direction * hidden * width;
    for (u32 unit = t; unit < hidden; unit += THREADS) {
        state[unit] = FIRST_HIDDEN;
        cells[unit] = FIRST_CELLS;
    }
    for (u32 at = 0; at < length; at++) {
        u32 step = (reversed >> direction & 1) != 0 ? length - 1 - at : at;
        GLOBAL const f32 *input = sums + ((step * batch + row) * directions + direction) * width;
        BARRIER();
        for (u32 column = t; column < width; column += THREADS) {
            f32 sum = biases[direction * width + column];
            UNROLL_BY_4 for (u32 unit = 0; unit < hidden; unit++) sum += matrix[unit * width + column] * state[unit];
            products[column] = sum;
        }
        BARRIER();
        for (u32 unit = t; unit < hidden; unit += THREADS) {
            f32 made;
            CELL
            state[unit] = made;
            if (wants_all) y[((step * directions + direction) * batch + row) * hidden + unit] = made;
        }
    }
    for (u32 unit = t; unit < hidden; unit += THREADS) {
        y[all + own + unit] = state[unit];
        LAST_CELLS
    }
}
