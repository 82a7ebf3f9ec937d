// Images scaled and shifted channel by channel: T to R. `figures` has a factor and a summand for each channel; `inner` elements
// lie together in one channel. A thread takes VECTOR elements.

typedef struct ALIGNED(T_VECTOR_BYTES) { T at[VECTOR]; } vector_in;
typedef struct ALIGNED(R_VECTOR_BYTES) { R at[VECTOR]; } vector_out;

KERNEL LAUNCH_BOUNDS(256, 4) normalize(GLOBAL R *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const f32 *RESTRICT figures,
    u64 vectors, u32 inner, u32 channels)
{
    u64 i = (u64)block_x() * 256 + thread_x();
    if (i >= vectors) return;
    vector_in v = ((GLOBAL const vector_in *)source)[i];
    vector_out w;
    u64 first = i * VECTOR;
    u64 line = first >> 32 ? first / inner : (u32)first / inner;
    u32 place = (u32)(first - line * inner);
    u32 channel = line >> 32 ? (u32)(line % channels) : (u32)line % channels;
    UNROLL
    for (u32 e = 0; e < VECTOR; e++) {
        w.at[e] = R_STORE((f32)T_LOAD(v.at[e]) * figures[2 * channel] + figures[2 * channel + 1]);
        if (++place == inner) {
            place = 0;
            if (++channel == channels) channel = 0;
        }
    }
    ((GLOBAL vector_out *)target)[i] = w;
}
