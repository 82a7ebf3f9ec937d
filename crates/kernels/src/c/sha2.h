// The functions of SHA-2 over words: of 64 bits where WIDE is 1 (SHA-512 and its shorter form), else of 32 (SHA-256).

#if WIDE
typedef u64 word;
#define ROUNDS 80u
#define BLOCK 128u
#define WORD_BYTES 8u
#define ROTATED(x, by) ((x) >> (by) | (x) << (64 - (by)))
#define SUM0(x) (ROTATED(x, 28) ^ ROTATED(x, 34) ^ ROTATED(x, 39))
#define SUM1(x) (ROTATED(x, 14) ^ ROTATED(x, 18) ^ ROTATED(x, 41))
#define MIX0(x) (ROTATED(x, 1) ^ ROTATED(x, 8) ^ (x) >> 7)
#define MIX1(x) (ROTATED(x, 19) ^ ROTATED(x, 61) ^ (x) >> 6)
#else
typedef u32 word;
#define ROUNDS 64u
#define BLOCK 64u
#define WORD_BYTES 4u
#define ROTATED(x, by) ((x) >> (by) | (x) << (32 - (by)))
#define SUM0(x) (ROTATED(x, 2) ^ ROTATED(x, 13) ^ ROTATED(x, 22))
#define SUM1(x) (ROTATED(x, 6) ^ ROTATED(x, 11) ^ ROTATED(x, 25))
#define MIX0(x) (ROTATED(x, 7) ^ ROTATED(x, 18) ^ (x) >> 3)
#define MIX1(x) (ROTATED(x, 17) ^ ROTATED(x, 19) ^ (x) >> 10)
#endif

DEVICE void compress(word *state, word *w)
{
    const word constants[ROUNDS] = {
#if WIDE
        0x428a2f98d728ae22ull, 0x7137449123ef65cdull, 0xb5c0fbcfec4d3b2full, 0xe9b5dba58189dbbcull, 0x3956c25bf348b538ull,
        0x59f111f1b605d019ull, 0x923f82a4af194f9bull, 0xab1c5ed5da6d8118ull, 0xd807aa98a3030242ull, 0x12835b0145706fbeull,
        0x243185be4ee4b28cull, 0x550c7dc3d5ffb4e2ull, 0x72be5d74f27b896full, 0x80deb1fe3b1696b1ull, 0x9bdc06a725c71235ull,
        0xc19bf174cf692694ull, 0xe49b69c19ef14ad2ull, 0xefbe4786384f25e3ull, 0x0fc19dc68b8cd5b5ull, 0x240ca1cc77ac9c65ull,
        0x2de92c6f592b0275ull, 0x4a7484aa6ea6e483ull, 0x5cb0a9dcbd41fbd4ull, 0x76f988da831153b5ull, 0x983e5152ee66dfabull,
        0xa831c66d2db43210ull, 0xb00327c898fb213full, 0xbf597fc7beef0ee4ull, 0xc6e00bf33da88fc2ull, 0xd5a79147930aa725ull,
        0x06ca6351e003826full, 0x142929670a0e6e70ull, 0x27b70a8546d22ffcull, 0x2e1b21385c26c926ull, 0x4d2c6dfc5ac42aedull,
        0x53380d139d95b3dfull, 0x650a73548baf63deull, 0x766a0abb3c77b2a8ull, 0x81c2c92e47edaee6ull, 0x92722c851482353bull,
        0xa2bfe8a14cf10364ull, 0xa81a664bbc423001ull, 0xc24b8b70d0f89791ull, 0xc76c51a30654be30ull, 0xd192e819d6ef5218ull,
        0xd69906245565a910ull, 0xf40e35855771202aull, 0x106aa07032bbd1b8ull, 0x19a4c116b8d2d0c8ull, 0x1e376c085141ab53ull,
        0x2748774cdf8eeb99ull, 0x34b0bcb5e19b48a8ull, 0x391c0cb3c5c95a63ull, 0x4ed8aa4ae3418acbull, 0x5b9cca4f7763e373ull,
        0x682e6ff3d6b2b8a3ull, 0x748f82ee5defb2fcull, 0x78a5636f43172f60ull, 0x84c87814a1f0ab72ull, 0x8cc702081a6439ecull,
        0x90befffa23631e28ull, 0xa4506cebde82bde9ull, 0xbef9a3f7b2c67915ull, 0xc67178f2e372532bull, 0xca273eceea26619cull,
        0xd186b8c721c0c207ull, 0xeada7dd6cde0eb1eull, 0xf57d4f7fee6ed178ull, 0x06f067aa72176fbaull, 0x0a637dc5a2c898a6ull,
        0x113f9804bef90daeull, 0x1b710b35131c471bull, 0x28db77f523047d84ull, 0x32caab7b40c72493ull, 0x3c9ebe0a15c9bebcull,
        0x431d67c49c100d4cull, 0x4cc5d4becb3e42b6ull, 0x597f299cfc657e2aull, 0x5fcb6fab3ad6faecull, 0x6c44198c4a475817ull
#else
        0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
        0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
        0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
        0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
        0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
        0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
        0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
        0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u
#endif
    };
    word v[8];
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = state[i];
    UNROLL for (u32 t = 0; t < ROUNDS; t++) {
        if (t >= 16) w[t % 16] += MIX1(w[(t + 14) % 16]) + w[(t + 9) % 16] + MIX0(w[(t + 1) % 16]);
        word a = v[0], b = v[1], c = v[2], e = v[4], f = v[5], g = v[6];
        word first = v[7] + SUM1(e) + ((e & f) ^ (~e & g)) + constants[t] + w[t % 16];
        word second = SUM0(a) + ((a & b) ^ (a & c) ^ (b & c));
        v[7] = g;
        v[6] = f;
        v[5] = e;
        v[4] = v[3] + first;
        v[3] = c;
        v[2] = b;
        v[1] = a;
        v[0] = first + second;
    }
    UNROLL for (u32 i = 0; i < 8; i++) state[i] += v[i];
}

DEVICE word word_of(u32 first, u32 second)
{
#if WIDE
    return (u64)swap_bytes(first) << 32 | swap_bytes(second);
#else
    return swap_bytes(first);
#endif
}

