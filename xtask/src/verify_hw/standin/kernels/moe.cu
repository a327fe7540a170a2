// Mixture of experts for few tokens: choose, sort, grouped products, weighted sum. bf16 storage.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define MAX_EXPERTS 1024
// SLOTS: experts / 32 rounded up, at most 32.

__device__ __forceinline__ float to_float(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u32 pack(float a, float b) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
__device__ __forceinline__ u16 to_bf16(float v) { return (u16)pack(v, 0.0f); }
__device__ __forceinline__ u64 hash(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// A warp a token. Random weights would send every token to the same experts, so each logit gets
// a large random part by (salt, token, expert): every token chooses by itself, an expert with a
// chance proportional to exp(SIGMA x normal variable), step_time's POPULARITY_SIGMA for served models
// (the largest of log chance + Gumbel noise draws so). Which are popular differs by layer.
#define SIGMA 1.0f
extern "C" __global__ void choose(const u16* logits, u32* chosen, float* weights, u32 experts, u32 topk, u32 salt) {
    u32 token = blockIdx.x, lane = threadIdx.x;
    float score[SLOTS];
    #pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        u32 e = i * 32 + lane;
        float u = ((float)(hash(((u64)salt << 40) ^ ((u64)token << 16) ^ e) >> 40) + 0.5f) * (1.0f / 16777216.0f);
        // 7919 is a prime: a different order for every layer.
        float rank = (float)((e * 7919u + salt * 104729u) % experts);
        float r = -__logf(-__logf(u)) + SIGMA * normcdfinvf((rank + 0.5f) / experts);
        score[i] = e < experts ? r + 0.001f * to_float(logits[(u64)token * experts + e]) : -1e30f;
    }
    float sum = 0;
    for (u32 k = 0; k < topk; k++) {
        float best = -1e30f;
        u32 at = 0;
        #pragma unroll
        for (int i = 0; i < SLOTS; i++) if (score[i] > best) { best = score[i]; at = i * 32 + lane; }
        for (int d = 16; d > 0; d >>= 1) {
            float other = __shfl_xor_sync(0xffffffffu, best, d);
            u32 where = __shfl_xor_sync(0xffffffffu, at, d);
            if (other > best || (other == best && where < at)) { best = other; at = where; }
        }
        #pragma unroll
        for (int i = 0; i < SLOTS; i++) if (i * 32 + lane == at) score[i] = -1e30f;
        float w = __expf(fminf(best, 16.0f));
        sum += w;
        if (lane == 0) { chosen[token * topk + k] = at; weights[token * topk + k] = w; }
    }
    __syncwarp();
    if (lane < topk) weights[token * topk + lane] /= sum;
}

// Most pairs of one expert that a block multiplies: popular experts are cut into parts, so that no
// block runs for long.
#define PART 32

// One block: sorts the pairs (token, k) by expert. order: pair by place; starts: first place of an
// expert; parts: how many parts there are, then each as expert | number << 16.
extern "C" __global__ void sort(const u32* chosen, u32* order, u32* starts, u32* parts, u32 pairs, u32 experts) {
    __shared__ u32 counts[MAX_EXPERTS], begins[MAX_EXPERTS];
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (u32 p = threadIdx.x; p < pairs; p += blockDim.x) atomicAdd(&counts[chosen[p]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 lane = threadIdx.x, place = 0, listed = 0;
        for (u32 e0 = 0; e0 < experts; e0 += 32) {
            u32 e = e0 + lane, c = e < experts ? counts[e] : 0, before = c;
            u32 mine = (c + PART - 1) / PART, until = mine;
            for (int d = 1; d < 32; d <<= 1) {
                u32 v = __shfl_up_sync(0xffffffffu, before, d), w = __shfl_up_sync(0xffffffffu, until, d);
                if (lane >= d) { before += v; until += w; }
            }
            if (e < experts) starts[e] = begins[e] = place + before - c;
            for (u32 i = 0; i < mine; i++) parts[1 + listed + until - mine + i] = e | i << 16;
            place += __shfl_sync(0xffffffffu, before, 31);
            listed += __shfl_sync(0xffffffffu, until, 31);
        }
        if (lane == 0) { starts[experts] = place; parts[0] = listed; }
    }
    __syncthreads();
    for (u32 p = threadIdx.x; p < pairs; p += blockDim.x) order[atomicAdd(&begins[chosen[p]], 1)] = p;
}

__device__ __forceinline__ void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint4 load(const u16* p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// out[pair][outputs] = x[source of pair][inputs] w[expert][outputs][inputs]^T for the pairs of each
// part. Weights are the wide operand (16 rows a warp), tokens the narrow one (8 at a time, up to 32).
// divide: pairs of one token share its row of x (topk), or 1. inputs: a multiple of 64.
#define WIDE (PART / 8)
#define STEPS 4

// For few experts: the 4 warps of a block share 16 rows, take the inputs in turn in chunks of 128
// and add up at the end, so that few experts still fill the GPU. grid: (outputs / 16, parts).
extern "C" __global__ void __launch_bounds__(128) grouped_few(
    const u16* x, const u16* w, u16* out, const u32* order, const u32* starts, const u32* parts,
    u32 inputs, u32 outputs, u32 divide) {
    __shared__ float sums[4][WIDE][32][4];
    if (blockIdx.y >= parts[0]) return;
    u32 part = parts[1 + blockIdx.y], expert = part & 0xffff, from = starts[expert] + (part >> 16) * PART;
    u32 to = starts[expert + 1] < from + PART ? starts[expert + 1] : from + PART;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    u32 row = blockIdx.x * 16;
    u32 k = warp * 32 * STEPS, stride = 4 * 32 * STEPS;
    const u16* w0 = w + ((u64)expert * outputs + row + g) * inputs + q * 8;
    const u16* w1 = w0 + (u64)8 * inputs;
    // Weights first: they are what takes long.
    uint4 a[STEPS], b[STEPS];
    #pragma unroll
    for (int j = 0; j < STEPS; j++) if (k + j * 32 < inputs) { a[j] = load(w0 + k + j * 32); b[j] = load(w1 + k + j * 32); }
    u32 tiles = (to - from + 7) / 8;
    const u16* rows[WIDE];
    float acc[WIDE][4];
    #pragma unroll
    for (int n = 0; n < WIDE; n++) {
        u32 at = from + n * 8 + g;
        rows[n] = x + (u64)(order[at < to ? at : to - 1] / divide) * inputs + q * 8;
        for (int e = 0; e < 4; e++) acc[n][e] = 0;
    }
    for (; k < inputs; k += stride) {
        // The next chunk is on its way while this one is used.
        uint4 na[STEPS], nb[STEPS];
        u32 next = k + stride;
        #pragma unroll
        for (int j = 0; j < STEPS; j++) if (next + j * 32 < inputs) { na[j] = load(w0 + next + j * 32); nb[j] = load(w1 + next + j * 32); }
        #pragma unroll
        for (int n = 0; n < WIDE; n++) if (n < tiles) {
            uint4 t[STEPS];
            #pragma unroll
            for (int j = 0; j < STEPS; j++) if (k + j * 32 < inputs) t[j] = *(const uint4*)(rows[n] + k + j * 32);
            #pragma unroll
            for (int j = 0; j < STEPS; j++) if (k + j * 32 < inputs) {
                mma(acc[n], a[j].x, b[j].x, a[j].y, b[j].y, t[j].x, t[j].y);
                mma(acc[n], a[j].z, b[j].z, a[j].w, b[j].w, t[j].z, t[j].w);
            }
        }
        #pragma unroll
        for (int j = 0; j < STEPS; j++) { a[j] = na[j]; b[j] = nb[j]; }
    }
    #pragma unroll
    for (int n = 0; n < WIDE; n++) *(float4*)sums[warp][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    __syncthreads();
    // Warp n finishes tile n.
    if (warp < tiles) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            float v = sums[0][warp][lane][e] + sums[1][warp][lane][e] + sums[2][warp][lane][e] + sums[3][warp][lane][e];
            u32 at = from + warp * 8 + 2 * q + (e & 1);
            if (at < to) out[(u64)order[at] * outputs + row + g + (e >> 1) * 8] = to_bf16(v);
        }
    }
}

// For many experts: a block has 64 rows, 16 a warp, whose weights and tokens pass through shared
// memory in chunks of 64 inputs, two chunks ahead. grid: (outputs / 64, parts).
#define CHUNK 64
#define DEEP 3
#define ROWS 64
struct Stage { uint4 weights[ROWS * CHUNK / 8], tokens[PART * CHUNK / 8]; };

// Place of 16-byte piece `piece` of a row: odd rows are turned by half a row, so that the eight
// lanes of two neighbouring rows meet all banks.
__device__ __forceinline__ u32 place_of(u32 row, u32 piece) { return row * (CHUNK / 8) + (piece ^ (row & 1) << 2); }
__device__ __forceinline__ void copy(uint4* to, const u16* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}

extern "C" __global__ void __launch_bounds__(128) grouped_many(
    const u16* x, const u16* w, u16* out, const u32* order, const u32* starts, const u32* parts,
    u32 inputs, u32 outputs, u32 divide) {
    __shared__ Stage stages[DEEP];
    if (blockIdx.y >= parts[0]) return;
    u32 part = parts[1 + blockIdx.y], expert = part & 0xffff, from = starts[expert] + (part >> 16) * PART;
    u32 to = starts[expert + 1] < from + PART ? starts[expert + 1] : from + PART;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    u32 tiles = (to - from + 7) / 8;
    // Thread t copies piece t % 8 of rows t / 8, and 16 further each time.
    u32 copied = threadIdx.x >> 3, piece = threadIdx.x & 7;
    const u16* weights = w + ((u64)expert * outputs + blockIdx.x * ROWS + copied) * inputs + piece * 8;
    const u16* tokens[2];
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 at = from + copied + i * 16;
        tokens[i] = x + (u64)(order[at < to ? at : to - 1] / divide) * inputs + piece * 8;
    }
    float acc[WIDE][4];
    #pragma unroll
    for (int n = 0; n < WIDE; n++) for (int e = 0; e < 4; e++) acc[n][e] = 0;
    auto fetch = [&](Stage& stage, u32 k) {
        if (k < inputs) {
            #pragma unroll
            for (u32 i = 0; i < ROWS / 16; i++)
                copy(&stage.weights[place_of(copied + i * 16, piece)], weights + (u64)i * 16 * inputs + k);
            #pragma unroll
            for (u32 i = 0; i < 2; i++)
                if (i * 2 < tiles) copy(&stage.tokens[place_of(copied + i * 16, piece)], tokens[i] + k);
        }
        asm volatile("cp.async.commit_group;");
    };
    fetch(stages[0], 0);
    fetch(stages[1], CHUNK);
    u32 slot = 0;
    for (u32 k = 0; k < inputs; k += CHUNK) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        // Every warp is done with the chunk before this one: its place is free.
        fetch(stages[slot == 0 ? DEEP - 1 : slot - 1], k + 2 * CHUNK);
        const Stage& stage = stages[slot];
        #pragma unroll
        for (int j = 0; j < CHUNK / 32; j++) {
            const uint4 a = stage.weights[place_of(warp * 16 + g, j * 4 + q)];
            const uint4 b = stage.weights[place_of(warp * 16 + 8 + g, j * 4 + q)];
            #pragma unroll
            for (int n = 0; n < WIDE; n++) if (n < tiles) {
                const uint4 t = stage.tokens[place_of(n * 8 + g, j * 4 + q)];
                mma(acc[n], a.x, b.x, a.y, b.y, t.x, t.y);
                mma(acc[n], a.z, b.z, a.w, b.w, t.z, t.w);
            }
        }
        slot = slot == DEEP - 1 ? 0 : slot + 1;
    }
    u32 row = blockIdx.x * ROWS + warp * 16 + g;
    #pragma unroll
    for (int n = 0; n < WIDE; n++) for (int e = 0; e < 4; e++) {
        u32 at = from + n * 8 + 2 * q + (e & 1);
        if (n < tiles && at < to) out[(u64)order[at] * outputs + row + (e >> 1) * 8] = to_bf16(acc[n][e]);
    }
}

// out[token] = sum over its pairs of weight x row.
extern "C" __global__ void gather(const u16* rows, const float* weights, u16* out, u32 width, u32 topk) {
    u32 token = blockIdx.x;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0;
        for (u32 k = 0; k < topk; k++) sum += weights[token * topk + k] * to_float(rows[((u64)token * topk + k) * width + i]);
        out[(u64)token * width + i] = to_bf16(sum);
    }
}
