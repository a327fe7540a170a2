// All-reduce, residual addition and RMSNorm in one kernel (one-shot transport), and the same
// arithmetic as a kernel of its own, for the pair that the fused one is compared with.
//
// sum = round(all-reduce(x)); h = sum + residual; residual = round(h); out = round(h * rsqrt(mean(h^2) + eps) * weight)

#define MAX_WARPS 32

__device__ __forceinline__ void row_barrier(u32 lanes) { asm volatile("bar.sync 2, %0;" :: "r"(lanes) : "memory"); }

// Sum over the first `lanes` threads of the block, the same on all of them.
__device__ __forceinline__ float block_sum(float v, u32 lanes, float *partial) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
    row_barrier(lanes);
    v = (threadIdx.x & 31) < (lanes >> 5) ? partial[threadIdx.x & 31] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

struct Norm { u64 residual, weight; u32 row_packs, rows; float eps, inverse_hidden; u32 reducers, unused; };

// What a thread holds of one row: K packs, `lanes` apart.
template <int K>
struct Row { Pack own[K], residual[K], weight[K]; };

template <int K>
__device__ __forceinline__ void load_row(u64 input, const Norm &q, u32 row, u32 lanes, Row<K> &r) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes;
        u64 at = ((u64)row * q.row_packs + column) * 16;
        if (column >= q.row_packs) continue;
        r.own[k] = without_marks(load_pack(input + at));
        r.residual[k] = load_pack(q.residual + at);
        r.weight[k] = load_pack(q.weight + (u64)column * 16);
    }
}
// Adds the residual to one pack and keeps h for the norm; gives the sum of squares.
__device__ __forceinline__ float add_residual(const Pack &sum, const Pack &residual, u64 residual_at, float *h) {
    float squares = 0.0f;
    unpack(sum, h);
    add_pack(h, residual);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) squares += h[e] * h[e];
    store_pack(residual_at, pack(h));
    return squares;
}
// Turns the sum of squares into the row's norm and writes it.
template <int K>
__device__ __forceinline__ void write_norm(u64 output, const Norm &q, u32 row, u32 lanes, float squares, float (*h)[ELEMENTS], const Row<K> &r, float *partial) {
    float scale = rsqrtf(block_sum(squares, lanes, partial) * q.inverse_hidden + q.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes;
        float w[ELEMENTS], out[ELEMENTS];
        if (column >= q.row_packs) continue;
        unpack(r.weight[k], w);
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) out[e] = h[k][e] * scale * w[e];
        store_pack(output + ((u64)row * q.row_packs + column) * 16, pack(out));
    }
}

// A thread that loses its peer goes on with what it has: the failure is reported, and every thread
// must come to the barriers.
template <int K>
__device__ __forceinline__ void fused_row(const Params &p, const Norm &q, u32 row, u32 call, u32 lanes, const Row<K> &r, float *partial) {
    const u32 n = q.rows * q.row_packs;
    const u64 base = inbox(p, p.rank, call);
    Pack in[K][NRANKS - 1];
    float h[K][ELEMENTS], squares = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes, index = row * q.row_packs + column;
        if (column >= q.row_packs) continue;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) in[k][s] = load_strong(base + ((u64)s * n + index) * 16);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes, index = row * q.row_packs + column;
        if (column >= q.row_packs) continue;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = base + ((u64)s * n + index) * 16;
            wait_pack(p, from, in[k][s], s + ((u32)s >= p.rank), STEP_DATA, call);
            clear_pack(from);
        }
        squares += add_residual(sum_in_rank_order(p.rank, r.own[k], in[k]), r.residual[k], q.residual + (u64)index * 16, h[k]);
    }
    write_norm<K>(p.output, q, row, lanes, squares, h, r, partial);
}

__device__ __forceinline__ void send_pack(const Params &p, u32 n, u32 index, u32 call, const Pack &v) {
#pragma unroll
    for (int d = 1; d < NRANKS; d++) {
        u32 to = p.rank + d >= NRANKS ? p.rank + d - NRANKS : p.rank + d;
        store_strong(inbox(p, to, call) + ((u64)place(p.rank, to) * n + index) * 16, v);
    }
}
// Blocks from `reducers` on only send, so that one multiprocessor's rate of stores does not
// delay a row.
__device__ __forceinline__ void send_all(const Params &p, const Norm &q, u32 call, u32 lanes, u32 block, u32 blocks) {
    const u32 n = q.rows * q.row_packs;
    for (u32 index = block * lanes + threadIdx.x; index < n; index += blocks * lanes)
        send_pack(p, n, index, call, load_input(p, index));
}

template <int K>
__device__ __forceinline__ void fused_body(const Params &p, const Norm &q) {
    __shared__ float partial[2][MAX_WARPS];
    const u32 lanes = blockDim.x - 32;
    const u32 senders = gridDim.x - q.reducers;
    const Record record = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, record, dead);
        return;
    }
    if (blockIdx.x >= q.reducers) {
        if (!dead) send_all(p, q, record.call, lanes, blockIdx.x - q.reducers, senders);
        return record_used();
    }
    Row<K> r;
    load_row<K>(p.input, q, blockIdx.x, lanes, r);
    if (dead) return record_used();
    if (senders == 0 && q.rows <= gridDim.x) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            u32 column = threadIdx.x + k * lanes;
            if (column < q.row_packs) send_pack(p, q.rows * q.row_packs, blockIdx.x * q.row_packs + column, record.call, r.own[k]);
        }
    } else if (senders == 0) {
        send_all(p, q, record.call, lanes, blockIdx.x, gridDim.x);
    }
    record_used();
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < q.rows; row += q.reducers, turn ^= 1) {
        if (row != blockIdx.x) load_row<K>(p.input, q, row, lanes, r);
        fused_row<K>(p, q, row, record.call, lanes, r, partial[turn]);
    }
}
extern "C" __global__ void __launch_bounds__(1024, 1) fused_1(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<1>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_2(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<2>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_4(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<4>(p, q); }

// x is read from `input`, `output` gets the norm; no communication.
template <int K>
__device__ __forceinline__ void norm_body(u64 input, u64 output, const Norm &q) {
    __shared__ float partial[2][MAX_WARPS];
    const u32 lanes = blockDim.x;
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < q.rows; row += gridDim.x, turn ^= 1) {
        Row<K> r;
        float h[K][ELEMENTS], squares = 0.0f;
        load_row<K>(input, q, row, lanes, r);
#pragma unroll
        for (int k = 0; k < K; k++) {
            u32 column = threadIdx.x + k * lanes;
            u64 at = ((u64)row * q.row_packs + column) * 16;
            if (column < q.row_packs) squares += add_residual(r.own[k], r.residual[k], q.residual + at, h[k]);
        }
        write_norm<K>(output, q, row, lanes, squares, h, r, partial[turn]);
    }
}
extern "C" __global__ void __launch_bounds__(1024, 1) norm_1(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<1>(input, output, q); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_2(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<2>(input, output, q); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_4(u64 input, u64 output, const __grid_constant__ Norm q) { norm_body<4>(input, output, q); }
