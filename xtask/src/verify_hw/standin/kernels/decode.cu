// Small kernels of a decoder layer, bf16 storage, f32 arithmetic. One file, compiled by NVRTC
// without toolkit headers.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ float to_float(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u16 to_bf16(float v) {
    u32 bits = __float_as_uint(v);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) { return (u32)to_bf16(a) | ((u32)to_bf16(b) << 16); }
// Four values as fp8 (e4m3), largest finite at most. Cards before sm_89 have no such numbers.
__device__ __forceinline__ u32 pack8(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return (u32)low | (u32)high << 16;
#else
    return 0;
#endif
}
// Eight bf16 values as fp8, times `scale`.
__device__ __forceinline__ uint2 narrow8(uint4 v, float scale) {
    uint2 o;
    o.x = pack8(low(v.x) * scale, high(v.x) * scale, low(v.y) * scale, high(v.y) * scale);
    o.y = pack8(low(v.z) * scale, high(v.z) * scale, low(v.w) * scale, high(v.w) * scale);
    return o;
}
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
__device__ __forceinline__ float block_sum(float v, float* shared) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < (blockDim.x + 31) >> 5; w++) sum += shared[w];
    __syncthreads();
    return sum;
}

// Uniform values in +-scale, four to a thread and round.
extern "C" __global__ void fill(u32* out, u64 words, u64 seed, float scale) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        u64 r = mix(seed ^ i);
        float a = ((u32)r) * 4.656613e-10f - 1.0f, b = ((u32)(r >> 32)) * 4.656613e-10f - 1.0f;
        out[i] = pack(a * scale, b * scale);
    }
}

// Random fp8 values below 1; exponents of all ones would be no numbers.
extern "C" __global__ void fill8(u32* out, u64 words, u64 seed) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        out[i] = (u32)mix(seed ^ i) & 0xb7b7b7b7u;
}

// Values as fp8, times `scale`.
extern "C" __global__ void narrow(const uint4* in, uint2* out, u64 packs, float scale) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (i < packs) out[i] = narrow8(in[i], scale);
}

// Rows of the embedding table by token. Random weights soon choose the same few tokens over and
// over; the row's number keeps those of a pass apart, as a batch's are: what a product draws, and at
// the power limit takes, depends on its data.
extern "C" __global__ void embed(const uint4* table, const u32* tokens, uint4* out, u32 packs, u32 rows) {
    const uint4* row = table + (u64)((tokens[blockIdx.x] + blockIdx.x * 7919u) % rows) * packs;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) out[(u64)blockIdx.x * packs + i] = row[i];
}

// residual += x (where add), out = norm(residual) * weight. One block a row, 8 values a thread. With
// `scale8` above 0 the result is fp8, times it.
extern "C" __global__ void add_norm(const uint4* x, uint4* residual, const uint4* weight, uint4* out, u32 packs, u32 add, float scale8) {
    __shared__ float shared[32];
    u64 at = (u64)blockIdx.x * packs;
    float sum = 0;
    uint4 kept = {0, 0, 0, 0};
    int n = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x, n++) {
        uint4 v = x[at + i];
        if (add) {
            uint4 r = residual[at + i];
            v.x = pack(low(v.x) + low(r.x), high(v.x) + high(r.x));
            v.y = pack(low(v.y) + low(r.y), high(v.y) + high(r.y));
            v.z = pack(low(v.z) + low(r.z), high(v.z) + high(r.z));
            v.w = pack(low(v.w) + low(r.w), high(v.w) + high(r.w));
        }
        residual[at + i] = v;
        if (n == 0) kept = v;
        u32 w[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 4; j++) sum += low(w[j]) * low(w[j]) + high(w[j]) * high(w[j]);
    }
    float scale = rsqrtf(block_sum(sum, shared) / (packs * 8) + 1e-5f);
    n = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x, n++) {
        uint4 v = n == 0 ? kept : residual[at + i], g = weight[i];
        v.x = pack(low(v.x) * scale * low(g.x), high(v.x) * scale * high(g.x));
        v.y = pack(low(v.y) * scale * low(g.y), high(v.y) * scale * high(g.y));
        v.z = pack(low(v.z) * scale * low(g.z), high(v.z) * scale * high(g.z));
        v.w = pack(low(v.w) * scale * low(g.w), high(v.w) * scale * high(g.w));
        if (scale8 > 0) ((uint2*)out)[at + i] = narrow8(v, scale8);
        else out[at + i] = v;
    }
}

// Rotary positions on queries (in place) and keys, and keys and values into the cache.
// qkv: [tokens][heads + 2 kv_heads][DIM]; a block a token, a warp a head in turn.
// cache: [sequence][kv_head][position][DIM], keys and values apart.
extern "C" __global__ void rope(u16* qkv, u16* keys, u16* values, const u32* lengths, u32 heads, u32 kv_heads,
                                u32 dim, u32 per_sequence, u32 capacity, float base) {
    u32 token = blockIdx.x, sequence = token / per_sequence;
    u32 position = lengths[sequence] + token % per_sequence;
    u32 slot = position < capacity ? position : capacity - 1;
    u32 lane = threadIdx.x & 31;
    u16* row = qkv + (u64)token * (heads + 2 * kv_heads) * dim;
    u32 half = dim / 2;
    for (u32 h = threadIdx.x >> 5; h < heads + 2 * kv_heads; h += blockDim.x >> 5) {
        u16* head = row + (u64)h * dim;
        u32 kv = h < heads ? 0 : (h - heads) % kv_heads;
        u64 to = (((u64)sequence * kv_heads + kv) * capacity + slot) * dim;
        if (h >= heads + kv_heads) {
            for (u32 i = lane; i < dim; i += 32) values[to + i] = head[i];
            continue;
        }
        u16* out = h < heads ? head : keys + to;
        for (u32 i = lane; i < half; i += 32) {
            float angle = position * exp2f(-(float)(2 * i) / dim * log2f(base));
            float s, c;
            __sincosf(angle, &s, &c);
            float a = to_float(head[i]), b = to_float(head[i + half]);
            out[i] = to_bf16(a * c - b * s);
            out[i + half] = to_bf16(b * c + a * s);
        }
    }
}

// out = silu(gate) * up over rows of [gate | up]; fp8 as above.
extern "C" __global__ void silu(const uint4* in, uint4* out, u32 packs, float scale8) {
    const uint4* row = in + (u64)blockIdx.x * 2 * packs;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < packs; i += gridDim.y * blockDim.x) {
        uint4 g = row[i], u = row[packs + i], o;
        u32 gs[4] = {g.x, g.y, g.z, g.w}, us[4] = {u.x, u.y, u.z, u.w}, os[4];
        for (int j = 0; j < 4; j++) {
            float a = low(gs[j]), b = high(gs[j]);
            os[j] = pack(a / (1.0f + __expf(-a)) * low(us[j]), b / (1.0f + __expf(-b)) * high(us[j]));
        }
        o.x = os[0]; o.y = os[1]; o.z = os[2]; o.w = os[3];
        u64 at = (u64)blockIdx.x * packs + i;
        if (scale8 > 0) ((uint2*)out)[at] = narrow8(o, scale8);
        else out[at] = o;
    }
}

// The largest logit of each row; a block a row.
extern "C" __global__ void argmax(const uint4* logits, u32* tokens, u32 packs) {
    __shared__ u64 best[32];
    const uint4* row = logits + (u64)blockIdx.x * packs;
    u64 most = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
        uint4 v = row[i];
        u32 w[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 8; j++) {
            u32 bits = j & 1 ? (w[j >> 1] & 0xffff0000u) : (w[j >> 1] << 16);
            u32 order = bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
            u64 key = ((u64)order << 32) | (0xffffffffu - (i * 8 + j));
            if (key > most) most = key;
        }
    }
    for (int d = 16; d > 0; d >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, most, d);
        if (other > most) most = other;
    }
    if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x >> 5; w++) if (best[w] > most) most = best[w];
        tokens[blockIdx.x] = 0xffffffffu - (u32)most;
    }
}

// out row = [a row | b row]: what an EAGLE head reads.
extern "C" __global__ void join(const uint4* a, const uint4* b, uint4* out, u32 packs) {
    u64 from = (u64)blockIdx.x * packs, to = from * 2;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
        out[to + i] = a[from + i];
        out[to + packs + i] = b[from + i];
    }
}
