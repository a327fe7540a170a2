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
// a large random part by (salt, token, expert): independent routing, as trained routers balance it.
extern "C" __global__ void choose(const u16* logits, u32* chosen, float* weights, u32 experts, u32 topk, u32 salt) {
    u32 token = blockIdx.x, lane = threadIdx.x;
    float score[SLOTS];
    #pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        u32 e = i * 32 + lane;
        float r = (float)(hash(((u64)salt << 40) ^ ((u64)token << 16) ^ e) >> 40) * (16.0f / 16777216.0f);
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
        float w = __expf(best - 16.0f);
        sum += w;
        if (lane == 0) { chosen[token * topk + k] = at; weights[token * topk + k] = w; }
    }
    __syncwarp();
    if (lane < topk) weights[token * topk + lane] /= sum;
}

// One block: sorts the pairs (token, k) by expert. order: pair by place; starts: first place of an
// expert; used: the experts that have any, and used[experts] how many those are.
extern "C" __global__ void sort(const u32* chosen, u32* order, u32* starts, u32* used, u32 pairs, u32 experts) {
    __shared__ u32 counts[MAX_EXPERTS], begins[MAX_EXPERTS];
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (u32 p = threadIdx.x; p < pairs; p += blockDim.x) atomicAdd(&counts[chosen[p]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 lane = threadIdx.x, place = 0, active = 0;
        for (u32 e0 = 0; e0 < experts; e0 += 32) {
            u32 e = e0 + lane, c = e < experts ? counts[e] : 0, before = c;
            for (int d = 1; d < 32; d <<= 1) {
                u32 v = __shfl_up_sync(0xffffffffu, before, d);
                if (lane >= d) before += v;
            }
            u32 total = __shfl_sync(0xffffffffu, before, 31);
            if (e < experts) { starts[e] = begins[e] = place + before - c; }
            u32 has = __ballot_sync(0xffffffffu, c > 0);
            if (c > 0) used[active + __popc(has & ((1u << lane) - 1))] = e;
            active += __popc(has);
            place += total;
        }
        if (lane == 0) { starts[experts] = place; used[experts] = active; }
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
// expert. Weights are the wide operand (16 rows a warp), tokens the narrow one (8 at a time, up to
// 32 in one pass over the weights). With split, the 4 warps of a block share 16 rows, take the inputs
// in turn in chunks of 128 and add up at the end, so that few experts still fill the GPU; without,
// each has 16 rows of its own. divide: pairs of one token share its row of x (topk), or 1. inputs: a
// multiple of 32. grid: (outputs / 16 or / 64, experts that can be used).
#define WIDE 4
#define STEPS 4
extern "C" __global__ void __launch_bounds__(128) grouped(
    const u16* x, const u16* w, u16* out, const u32* order, const u32* starts, const u32* used,
    u32 inputs, u32 outputs, u32 experts, u32 divide, u32 split) {
    __shared__ float sums[4][WIDE][32][4];
    if (blockIdx.y >= used[experts]) return;
    u32 expert = used[blockIdx.y], from = starts[expert], to = starts[expert + 1];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    u32 row = split ? blockIdx.x * 16 : blockIdx.x * 64 + warp * 16;
    u32 begin = split ? warp * 32 * STEPS : 0, stride = (split ? 4 : 1) * 32 * STEPS;
    const u16* w0 = w + ((u64)expert * outputs + row + g) * inputs + q * 8;
    const u16* w1 = w0 + (u64)8 * inputs;
    for (u32 first = from; first < to; first += WIDE * 8) {
        // Weights first: they are what takes long.
        uint4 a[STEPS], b[STEPS];
        u32 k = begin;
        #pragma unroll
        for (int j = 0; j < STEPS; j++) if (k + j * 32 < inputs) { a[j] = load(w0 + k + j * 32); b[j] = load(w1 + k + j * 32); }
        u32 tiles = (to - first + 7) / 8;
        if (tiles > WIDE) tiles = WIDE;
        const u16* rows[WIDE];
        float acc[WIDE][4];
        #pragma unroll
        for (int n = 0; n < WIDE; n++) {
            u32 at = first + n * 8 + g;
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
        if (!split) {
            #pragma unroll
            for (int n = 0; n < WIDE; n++) for (int e = 0; e < 4; e++) {
                u32 at = first + n * 8 + 2 * q + (e & 1);
                if (n < tiles && at < to) out[(u64)order[at] * outputs + row + g + (e >> 1) * 8] = to_bf16(acc[n][e]);
            }
            continue;
        }
        #pragma unroll
        for (int n = 0; n < WIDE; n++) *(float4*)sums[warp][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
        __syncthreads();
        // Warp n finishes tile n.
        if (warp < tiles) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                float v = sums[0][warp][lane][e] + sums[1][warp][lane][e] + sums[2][warp][lane][e] + sums[3][warp][lane][e];
                u32 at = first + warp * 8 + 2 * q + (e & 1);
                if (at < to) out[(u64)order[at] * outputs + row + g + (e >> 1) * 8] = to_bf16(v);
            }
        }
        __syncthreads();
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
