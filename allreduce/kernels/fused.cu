// All-reduce, residual addition and RMSNorm in one kernel (one-shot transport), and the same
// arithmetic as a kernel of its own, for the pair that the fused one is compared with.
//
// sum = round(all-reduce(x)); h = sum + residual; residual = round(h); out = round(h * rsqrt(mean(h^2) + eps) * weight)

#define MAX_WARPS 32

__device__ __forceinline__ void row_barrier(u32 lanes) { asm volatile("bar.sync 2, %0;" :: "r"(lanes) : "memory"); }

// Sum over the first `lanes` threads of the block; also ends the row for all when one lost its peer.
__device__ __forceinline__ bool block_sum(float *value, bool lost, u32 lanes, float *partial, u32 *stop) {
    float v = *value;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
    if (lost) *(volatile u32 *)stop = 1;
    row_barrier(lanes);
    if (*(volatile u32 *)stop) return false;
    v = (threadIdx.x & 31) < (lanes >> 5) ? partial[threadIdx.x & 31] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    *value = v;
    return true;
}

struct Norm { u64 residual, weight; u32 row_packs, rows; float eps; u32 reducers; };

// Adds the residual to one pack and keeps h for the norm.
__device__ __forceinline__ float add_residual(const Pack &sum, const Pack &residual, u64 residual_at, float *h) {
    float squares = 0.0f;
    unpack(sum, h);
    add_pack(h, residual);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) squares += h[e] * h[e];
    store_pack(residual_at, pack(h));
    return squares;
}
__device__ __forceinline__ Pack scaled(float *h, float scale, const Pack &weight) {
    float w[ELEMENTS], out[ELEMENTS];
    unpack(weight, w);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) out[e] = h[e] * scale * w[e];
    return pack(out);
}

template <int K>  // packs of one row that a thread holds
__device__ __forceinline__ bool fused_row(const Params &p, const Norm &q, u32 row, u32 call, u32 lanes, float *partial, u32 *stop) {
    const u32 n = q.rows * q.row_packs;
    const u64 base = inbox(p, p.rank, call);
    Pack own[K], in[K][NRANKS - 1], residual[K], weight[K];
    float h[K][ELEMENTS], squares = 0.0f;
    bool lost = false;
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes, index = row * q.row_packs + column;
        if (column >= q.row_packs) continue;
        own[k] = load_input(p, index);
        residual[k] = load_pack(q.residual + (u64)index * 16);
        weight[k] = load_pack(q.weight + (u64)column * 16);
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) in[k][s] = load_strong(base + ((u64)s * n + index) * 16);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes, index = row * q.row_packs + column;
        if (column >= q.row_packs || lost) continue;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = base + ((u64)s * n + index) * 16;
            lost = lost || !wait_pack(p, from, in[k][s], s + ((u32)s >= p.rank), STEP_DATA, call);
            clear_pack(from);
        }
        squares += add_residual(sum_in_rank_order(p.rank, own[k], in[k]), residual[k], q.residual + (u64)index * 16, h[k]);
    }
    if (!block_sum(&squares, lost, lanes, partial, stop)) return false;
    float scale = rsqrtf(squares / (float)(q.row_packs * ELEMENTS) + q.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes, index = row * q.row_packs + column;
        if (column < q.row_packs) store_pack(p.output + (u64)index * 16, scaled(h[k], scale, weight[k]));
    }
    return true;
}

// Blocks from `reducers` on only send, so that one multiprocessor's rate of stores does not
// delay a row.
__device__ __forceinline__ void send_all(const Params &p, const Norm &q, u32 call, u32 lanes, u32 block, u32 blocks) {
    const u32 n = q.rows * q.row_packs;
    for (u32 index = block * lanes + threadIdx.x; index < n; index += blocks * lanes) {
        Pack v = load_input(p, index);
#pragma unroll
        for (int d = 1; d < NRANKS; d++) {
            u32 to = p.rank + d >= NRANKS ? p.rank + d - NRANKS : p.rank + d;
            store_strong(inbox(p, to, call) + ((u64)place(p.rank, to) * n + index) * 16, v);
        }
    }
}

template <int K>
__device__ __forceinline__ void fused_body(const Params &p, const Norm &q) {
    __shared__ float partial[2][MAX_WARPS];
    __shared__ u32 stop;
    const u32 lanes = blockDim.x - 32;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, r, dead);
        return;
    }
    if (threadIdx.x == 0) stop = 0;
    if (dead) return record_used();
    const u32 senders = gridDim.x - q.reducers;
    if (blockIdx.x >= q.reducers) {
        send_all(p, q, r.call, lanes, blockIdx.x - q.reducers, senders);
        return record_used();
    }
    if (senders == 0) send_all(p, q, r.call, lanes, blockIdx.x, gridDim.x);
    record_used();
    row_barrier(lanes);  // `stop` is written
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < q.rows; row += q.reducers, turn ^= 1)
        if (!fused_row<K>(p, q, row, r.call, lanes, partial[turn], &stop)) return;
}
extern "C" __global__ void __launch_bounds__(544, 1) fused_1(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<1>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_2(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<2>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_4(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<4>(p, q); }

// x is read from `input`, `output` gets the norm; no communication.
template <int K>
__device__ __forceinline__ void norm_body(u64 input, u64 output, const Norm &q) {
    __shared__ float partial[MAX_WARPS];
    __shared__ u32 stop;
    const u32 lanes = blockDim.x;
    if (threadIdx.x == 0) stop = 0;
    row_barrier(lanes);
    for (u32 row = blockIdx.x; row < q.rows; row += gridDim.x) {
        float h[K][ELEMENTS], squares = 0.0f;
        Pack weight[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            u32 column = threadIdx.x + k * lanes;
            u64 at = ((u64)row * q.row_packs + column) * 16;
            if (column >= q.row_packs) continue;
            weight[k] = load_pack(q.weight + (u64)column * 16);
            squares += add_residual(load_pack(input + at), load_pack(q.residual + at), q.residual + at, h[k]);
        }
        block_sum(&squares, false, lanes, partial, &stop);
        float scale = rsqrtf(squares / (float)(q.row_packs * ELEMENTS) + q.eps);
#pragma unroll
        for (int k = 0; k < K; k++) {
            u32 column = threadIdx.x + k * lanes;
            if (column < q.row_packs) store_pack(output + ((u64)row * q.row_packs + column) * 16, scaled(h[k], scale, weight[k]));
        }
        row_barrier(lanes);  // partial sums are read before the next row writes them
    }
}
extern "C" __global__ void __launch_bounds__(512, 1) norm_1(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<1>(input, output, q); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_2(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<2>(input, output, q); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_4(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<4>(input, output, q); }
