// Messages of one op: where each begins and ends, which of them a thread works on, and blocks of bytes at any address.
//
// `batch` alone describes messages of equal sizes. Other messages have a table with a row for each, and one more row at the end.

// The columns of the table.
#define ROW_WORDS 8u
#define ROW_SOURCE 0u
#define ROW_TARGET 1u
#define ROW_LEN 2u
#define ROW_DATA 3u
#define ROW_DATA_LEN 4u
// Units, and hashed blocks, of all messages before this one.
#define ROW_UNITS 5u
#define ROW_BLOCKS 6u

typedef struct {
    u64 count;
    // For messages of equal sizes: bytes of each, and from one to the next, in the source and in the target.
    u64 len, source_step, target_step;
    // The same of the associated data.
    u64 data_len, data_step;
    // Units of work, and hashed blocks, of each.
    u64 units, blocks;
    u64 is_alike;
} batch;

typedef struct {
    u64 source, target, len, data, data_len;
} message;

DEVICE message message_at(const batch *all, GLOBAL const u64 *rows, u64 number)
{
    message one;
    if (all->is_alike) {
        one.source = number * all->source_step;
        one.target = number * all->target_step;
        one.len = all->len;
        one.data = number * all->data_step;
        one.data_len = all->data_len;
    } else {
        GLOBAL const u64 *row = rows + number * ROW_WORDS;
        one.source = row[ROW_SOURCE];
        one.target = row[ROW_TARGET];
        one.len = row[ROW_LEN];
        one.data = row[ROW_DATA];
        one.data_len = row[ROW_DATA_LEN];
    }
    return one;
}

// The sum of a cumulative column before a message.
DEVICE u64 before_message(const batch *all, GLOBAL const u64 *rows, u64 number, u32 column)
{
    if (all->is_alike) return number * (column == ROW_UNITS ? all->units : all->blocks);
    return rows[number * ROW_WORDS + column];
}

// Where a message's part of a list begins in which `shift` halvings have left one element of 2^shift: there is always room for one more.
DEVICE u64 place_of(const batch *all, GLOBAL const u64 *rows, u64 number, u32 column, u32 shift, u32 spare)
{
    return (before_message(all, rows, number, column) >> shift) + (spare ? number : 0);
}

// The message that an element of such a list belongs to; the last one, of several that begin there.
DEVICE u64 message_of(const batch *all, GLOBAL const u64 *rows, u64 element, u32 column, u32 shift, u32 spare)
{
    // Messages of equal sizes have `each` elements each.
    u64 each = column == ROW_UNITS ? all->units : all->blocks;
    if (all->is_alike && shift == 0 && !spare && each > 0)
        return (element | each) >> 32 == 0 ? (u64)((u32)element / (u32)each) : element / each;
    u64 low = 0, high = all->count;
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (place_of(all, rows, middle, column, shift, spare) <= element) low = middle;
        else high = middle;
    }
    return low;
}

// Up to sixteen bytes, as words with the first byte lowest; zeros behind them.
DEVICE u32x4 load_block(GLOBAL const u8 *from, u64 len)
{
    if (len >= 16 && ((u64)from & 15) == 0) return *(GLOBAL const u32x4 *)from;
    u32 words[4];
    UNROLL for (u32 i = 0; i < 4; i++) {
        words[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++)
            if (4 * i + j < len) words[i] |= (u32)from[4 * i + j] << (8 * j);
    }
    u32x4 block = {words[0], words[1], words[2], words[3]};
    return block;
}

DEVICE void store_block(GLOBAL u8 *to, u32x4 block, u64 len)
{
    if (len >= 16 && ((u64)to & 15) == 0) {
        *(GLOBAL u32x4 *)to = block;
        return;
    }
    u32 words[4] = {block.x, block.y, block.z, block.w};
    UNROLL for (u32 i = 0; i < 16; i++)
        if (i < len) to[i] = (u8)(words[i / 4] >> (8 * (i % 4)));
}

DEVICE u32 swap_bytes(u32 x) { return x << 24 | (x << 8 & 0xff0000u) | (x >> 8 & 0xff00u) | x >> 24; }

// A verdict over the tags of all messages: the number of the first message with a wrong tag, or all ones; and the number of tags that are
// right. A tag that was not compared counts as wrong.
DEVICE void give_verdict(GLOBAL u32 *verdict, u32 is_there, u32 differs, u64 number)
{
    if (is_there && differs) ATOMIC_MIN(verdict, (u32)number);
    lane_mask right = ballot(is_there && !differs);
    if (lane() == 0 && right != 0) ATOMIC_ADD(verdict + 1, count_lanes(right));
}

// Whether every tag was found to be right. `complaint` gets this verdict, or the number of the wrong tag. If it gets no value, a kernel did not run.
DEVICE u32 lets_pass(GLOBAL const u32 *verdict, u64 count, GLOBAL u64 *complaint)
{
    u32 is_first = block_x() == 0 && thread_x() == 0, passes = verdict[0] == 0xffffffffu && verdict[1] == count;
    if (is_first && passes) *(GLOBAL volatile u64 *)complaint = ~(u64)0;
    if (is_first && verdict[0] != 0xffffffffu) *(GLOBAL volatile u64 *)complaint = (u64)verdict[0] + 1;
    return passes;
}
