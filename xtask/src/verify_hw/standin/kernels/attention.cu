// Decode attention with grouped queries over a contiguous cache, tensor cores, split over the
// cache. Compiled with DIM (64 or 128), ROWS (16 or 32: query rows of one block).
//
// A block serves one (sequence, kv head, split, group of query rows). Row r of a sequence's kv
// head is query token r / group, head r % group. Each of 4 warps walks tiles of 16 cached tokens
// with its own running softmax; the block merges the warps, and `combine` the splits.
//
// Every warp copies its next keys while it multiplies values, and its next values while it
// multiplies keys, into shared memory of its own, so that reading never pauses and holds no
// registers. Fragments are 16 bytes a lane: the order of elements inside a product is free as long
// as both operands agree, so lane q of a row takes 8 neighbours.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define TILES (ROWS / 16)
#define CHUNKS (DIM / 32)
#define HALVES (DIM / 64)
#define WARPS 4

__device__ __forceinline__ u32 pack(float a, float b) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
__device__ __forceinline__ u16 to_bf16(float v) { return (u16)pack(v, 0.0f); }
__device__ __forceinline__ void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Where 16-byte piece `piece` of a tile's row lies: rows are turned against each other so that
// neither the eight lanes that read keys (rows 2i, 2i + 1) nor those that read values (rows 2q)
// meet in a bank.
__device__ __forceinline__ u32 place_of(u32 row, u32 piece) {
    return row * (DIM / 8) + (piece ^ (((row >> 1) & 3) << 1 ^ (row & 1) << 2));
}
// Starts the copy of 16 rows from `at`; rows beyond `last` repeat it.
__device__ __forceinline__ void fetch(uint4* tile, const u16* from, u32 at, u32 last, u32 lane) {
    #pragma unroll
    for (u32 i = 0; i < DIM / 16; i++) {
        u32 index = i * 32 + lane, row = index / (DIM / 8), piece = index % (DIM / 8);
        const u16* source = from + (u64)(at + row < last ? at + row : last) * DIM + piece * 8;
        u32 to = (u32)__cvta_generic_to_shared(tile + place_of(row, piece));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(source));
    }
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
// All but the latest group have arrived, for the whole warp.
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

// partial: [rows of all blocks][splits][DIM] f32, stats: [rows][splits][2]; out: [tokens][heads][DIM].
extern "C" __global__ void __launch_bounds__(128, ROWS == 16 ? 4 : 2) attend(
    const u16* qkv, const u16* keys, const u16* values, const u32* lengths, u16* out, float* partial, float* stats,
    u32 heads, u32 kv_heads, u32 per_sequence, u32 capacity, float scale) {
    __shared__ u32 queries[TILES][CHUNKS][2][32][4];
    // Tiles of keys and values of each warp; the warps' sums lie there afterwards.
    __shared__ uint4 tiles[WARPS][2][16 * DIM / 8];
    // Eight floats of padding: the four rows and lanes of half a warp then meet 32 banks.
    float (*merged)[DIM + 8] = (float (*)[DIM + 8])tiles;
    __shared__ float tops[WARPS][ROWS], sums[WARPS][ROWS];
    u32 split = blockIdx.x, splits = gridDim.x;
    u32 kv = blockIdx.y % kv_heads, sequence = blockIdx.y / kv_heads;
    u32 first_row = blockIdx.z * ROWS;
    u32 group = heads / kv_heads, rows = group * per_sequence;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    u32 length = lengths[sequence];
    u32 end = length + per_sequence < capacity ? length + per_sequence : capacity;
    // Splits are whole tiles of all warps.
    u32 each = ((end + splits - 1) / splits + 63) / 64 * 64;
    u32 from = split * each, to = from + each < end ? from + each : end;
    u32 row_width = (heads + 2 * kv_heads) * DIM;
    u64 base = ((u64)sequence * kv_heads + kv) * capacity * DIM;
    uint4 *key_tile = tiles[warp][0], *value_tile = tiles[warp][1];
    u32 last = to - 1, at = from + warp * 16;
    if (at < to) fetch(key_tile, keys + base, at, last, lane);
    commit();
    if (at < to) fetch(value_tile, values + base, at, last, lane);
    commit();
    // Queries as fragments in shared memory: [tile][chunk][half of the chunk][lane][register].
    for (u32 i = threadIdx.x; i < TILES * CHUNKS * 32 * 2; i += blockDim.x) {
        u32 l = i & 31, rest = i >> 5, upper = rest & 1, chunk = (rest >> 1) % CHUNKS, tile = (rest >> 1) / CHUNKS;
        u32 row = first_row + tile * 16 + (l >> 2) + upper * 8;
        uint4 v = {0, 0, 0, 0};
        if (row < rows) {
            u32 token = sequence * per_sequence + row / group, head = kv * group + row % group;
            v = *(const uint4*)(qkv + (u64)token * row_width + head * DIM + chunk * 32 + (l & 3) * 8);
        }
        queries[tile][chunk][0][l][upper] = v.x;
        queries[tile][chunk][0][l][2 + upper] = v.y;
        queries[tile][chunk][1][l][upper] = v.z;
        queries[tile][chunk][1][l][2 + upper] = v.w;
    }
    __syncthreads();
    float acc[TILES][HALVES][8][4];
    float top[TILES][2], sum[TILES][2];
    u32 limit[TILES][2];
    #pragma unroll
    for (int t = 0; t < TILES; t++) {
        for (int h = 0; h < HALVES; h++) for (int n = 0; n < 8; n++) for (int e = 0; e < 4; e++) acc[t][h][n][e] = 0;
        for (int u = 0; u < 2; u++) {
            top[t][u] = -1e30f; sum[t][u] = 0;
            u32 row = first_row + t * 16 + g + u * 8;
            limit[t][u] = row < rows ? length + row / group : 0;
        }
    }
    for (; at < to; at += WARPS * 16) {
        arrived();
        float scores[TILES][2][4];
        #pragma unroll
        for (int t = 0; t < TILES; t++) for (int n = 0; n < 2; n++) for (int e = 0; e < 4; e++) scores[t][n][e] = 0;
        #pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const uint4 k0 = key_tile[place_of(g, c * 4 + q)], k1 = key_tile[place_of(8 + g, c * 4 + q)];
            #pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 a = *(const uint4*)queries[t][c][0][lane], b = *(const uint4*)queries[t][c][1][lane];
                mma(scores[t][0], a.x, a.y, a.z, a.w, k0.x, k0.y);
                mma(scores[t][0], b.x, b.y, b.z, b.w, k0.z, k0.w);
                mma(scores[t][1], a.x, a.y, a.z, a.w, k1.x, k1.y);
                mma(scores[t][1], b.x, b.y, b.z, b.w, k1.z, k1.w);
            }
        }
        __syncwarp();
        u32 next = at + WARPS * 16;
        if (next < to) fetch(key_tile, keys + base, next, last, lane);
        commit();
        u32 chances[TILES][4];
        #pragma unroll
        for (int t = 0; t < TILES; t++) {
            float p[2][4];
            #pragma unroll
            for (int u = 0; u < 2; u++) {
                float x[4] = {scores[t][0][2 * u], scores[t][0][2 * u + 1], scores[t][1][2 * u], scores[t][1][2 * u + 1]};
                float most = top[t][u];
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    u32 position = at + 2 * q + (e & 1) + (e >> 1) * 8;
                    x[e] = position < to && position <= limit[t][u] ? x[e] * scale : -1e30f;
                    most = fmaxf(most, x[e]);
                }
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                float factor = exp2f(top[t][u] - most);
                top[t][u] = most;
                float part = 0;
                #pragma unroll
                for (int e = 0; e < 4; e++) { p[u][e] = x[e] > -1e29f ? exp2f(x[e] - most) : 0.0f; part += p[u][e]; }
                sum[t][u] = sum[t][u] * factor + part;
                #pragma unroll
                for (int h = 0; h < HALVES; h++)
                    #pragma unroll
                    for (int n = 0; n < 8; n++) { acc[t][h][n][2 * u] *= factor; acc[t][h][n][2 * u + 1] *= factor; }
            }
            chances[t][0] = pack(p[0][0], p[0][1]);
            chances[t][1] = pack(p[1][0], p[1][1]);
            chances[t][2] = pack(p[0][2], p[0][3]);
            chances[t][3] = pack(p[1][2], p[1][3]);
        }
        arrived();
        #pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint4 v[4];
            #pragma unroll
            for (int e = 0; e < 4; e++) v[e] = value_tile[place_of(2 * q + (e & 1) + (e >> 1) * 8, h * 8 + g)];
            const u32* w[4] = {&v[0].x, &v[1].x, &v[2].x, &v[3].x};
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                u32 pick = n & 1 ? 0x7632 : 0x5410;
                u32 b0 = __byte_perm(w[0][n >> 1], w[1][n >> 1], pick), b1 = __byte_perm(w[2][n >> 1], w[3][n >> 1], pick);
                #pragma unroll
                for (int t = 0; t < TILES; t++) mma(acc[t][h][n], chances[t][0], chances[t][1], chances[t][2], chances[t][3], b0, b1);
            }
        }
        __syncwarp();
        if (next < to) fetch(value_tile, values + base, next, last, lane);
        commit();
    }
    // Sums were kept by lane: a row's four lanes hold different tokens.
    #pragma unroll
    for (int t = 0; t < TILES; t++) for (int u = 0; u < 2; u++) {
        sum[t][u] += __shfl_xor_sync(0xffffffffu, sum[t][u], 1);
        sum[t][u] += __shfl_xor_sync(0xffffffffu, sum[t][u], 2);
        if (q == 0) { tops[warp][t * 16 + g + u * 8] = top[t][u]; sums[warp][t * 16 + g + u * 8] = sum[t][u]; }
    }
    __syncthreads();
    u32 here = rows - first_row < ROWS ? rows - first_row : ROWS;
    // The warps add in turn, only rows that exist. Column 2q, 2q+1 of product n are elements
    // (2q)*8+n and (2q+1)*8+n of the half; they lie at n*8+2q here, so that lanes write pairs.
    for (u32 w = 0; w < WARPS; w++) {
        if (w == warp) {
            #pragma unroll
            for (int t = 0; t < TILES; t++)
                #pragma unroll
                for (int u = 0; u < 2; u++) {
                    u32 r = t * 16 + g + u * 8;
                    if (r >= here) continue;
                    float most = fmaxf(fmaxf(tops[0][r], tops[1][r]), fmaxf(tops[2][r], tops[3][r]));
                    float factor = exp2f(top[t][u] - most);
                    #pragma unroll
                    for (int h = 0; h < HALVES; h++)
                        #pragma unroll
                        for (int n = 0; n < 8; n++) {
                            float2* place = (float2*)&merged[r][h * 64 + n * 8 + 2 * q];
                            float2 v = {acc[t][h][n][2 * u] * factor, acc[t][h][n][2 * u + 1] * factor};
                            if (w > 0) { float2 old = *place; v.x += old.x; v.y += old.y; }
                            *place = v;
                        }
                }
        }
        __syncthreads();
    }
    for (u32 r = warp; r < here; r += WARPS) {
        u32 row = first_row + r;
        float most = fmaxf(fmaxf(tops[0][r], tops[1][r]), fmaxf(tops[2][r], tops[3][r])), total = 0;
        for (int w = 0; w < WARPS; w++) total += sums[w][r] * exp2f(tops[w][r] - most);
        u32 token = sequence * per_sequence + row / group, head = kv * group + row % group;
        u64 place = (u64)token * heads + head;
        float inverse = 1.0f / fmaxf(total, 1e-30f);
        for (u32 d = lane; d < DIM; d += 32) {
            float v = merged[r][d / 64 * 64 + d % 8 * 8 + d % 64 / 8];
            if (splits == 1) out[place * DIM + d] = to_bf16(v * inverse);
            else partial[(place * splits + split) * DIM + d] = v;
        }
        if (splits > 1 && lane == 0) {
            stats[(place * splits + split) * 2] = most;
            stats[(place * splits + split) * 2 + 1] = total;
        }
    }
}

// One block a (token, head): joins the splits.
extern "C" __global__ void combine(const float* partial, const float* stats, u16* out, u32 splits) {
    u64 place = blockIdx.x;
    float most = -1e30f;
    for (u32 s = 0; s < splits; s++) most = fmaxf(most, stats[(place * splits + s) * 2]);
    float total = 0, value = 0;
    for (u32 s = 0; s < splits; s++) {
        float factor = exp2f(stats[(place * splits + s) * 2] - most);
        total += stats[(place * splits + s) * 2 + 1] * factor;
        value += partial[(place * splits + s) * DIM + threadIdx.x] * factor;
    }
    out[place * DIM + threadIdx.x] = to_bf16(value / fmaxf(total, 1e-30f));
}
