// The steps of a recurrent layer of more units than a block's memory holds, by a block for each row of the batch and each direction. A thread makes
// the sums of all gates of a unit, then those of its next one; states lie behind what the layer makes, those of one step and of the next in turn.
DEVICE f32 sigmoid_of(f32 x) { return 1.0f / (1.0f + expf(-x)); }

KERNEL recurrent(GLOBAL const f32 *sums, STATES GLOBAL const f32 *weights, GLOBAL const f32 *biases, GLOBAL const u32 *lengths, GLOBAL f32 *y,
                 u32 steps, u32 batch, u32 directions, u32 hidden, u32 reversed, u32 wants_all)
{
    SHARED f32 states[THREADS];
    u32 t = thread_x(), row = block_x(), direction = block_y(), width = GATES * hidden, length = lengths[row];
    u32 own = (direction * batch + row) * hidden, all = steps * directions * batch * hidden, last = directions * batch * hidden;
    GLOBAL const f32 *matrix = weights + direction * hidden * width;
    GLOBAL f32 *made_last = y + all + own, *cells = y + all + last + own, *other = y + all + KEPT * last + own;
    for (u32 unit = t; unit < hidden; unit += THREADS) {
        made_last[unit] = FIRST_HIDDEN;
        FIRST_CELLS
    }
    for (u32 at = 0; at < length; at++) {
        u32 step = (reversed >> direction & 1) != 0 ? length - 1 - at : at;
        GLOBAL const f32 *input = sums + ((step * batch + row) * directions + direction) * width;
        GLOBAL const f32 *before = at % 2 == 0 ? made_last : other;
        GLOBAL f32 *after = at % 2 == 0 ? other : made_last;
        for (u32 first = 0; first < hidden; first += THREADS) {
            u32 unit = first + t;
            f32 products[GATES];
            UNROLL for (u32 gate = 0; gate < GATES; gate++) products[gate] = unit < hidden ? biases[direction * width + gate * hidden + unit] : 0.0f;
            for (u32 from = 0; from < hidden; from += THREADS) {
                u32 count = hidden - from < THREADS ? hidden - from : THREADS;
                BARRIER();
                if (t < count) states[t] = before[from + t];
                BARRIER();
                if (unit < hidden) {
                    for (u32 place = 0; place < count; place++) {
                        GLOBAL const f32 *line = matrix + (from + place) * width + unit;
                        UNROLL for (u32 gate = 0; gate < GATES; gate++) products[gate] += line[gate * hidden] * states[place];
                    }
                }
            }
            if (unit < hidden) {
                f32 made;
                CELL
                after[unit] = made;
                if (wants_all) y[((step * directions + direction) * batch + row) * hidden + unit] = made;
            }
        }
    }
    // A thread moves what it has made itself.
    if (length % 2 != 0) {
        for (u32 unit = t; unit < hidden; unit += THREADS) made_last[unit] = other[unit];
    }
}
