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

// ---- a row over a cluster of blocks, so that four multiprocessors move its bytes

#if __CUDA_ARCH__ >= 900
#define CLUSTER 4

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void store_to_block(const float *here, u32 block, float v) {
    u32 local = (u32)__cvta_generic_to_shared(here), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(remote), "f"(v) : "memory");
}
// The blocks' sums in block order, the same everywhere. All data threads of the cluster call it,
// and all its threads have arrived once before: a block's memory may be written once it runs.
__device__ __forceinline__ float cluster_sum(float v, u32 lanes, float *partial, float *parts, u32 part) {
    v = block_sum(v, lanes, partial);
    cluster_wait();
    if (threadIdx.x < CLUSTER) store_to_block(parts + part, threadIdx.x, v);
    cluster_arrive();
    cluster_wait();
    float sum = parts[0];
#pragma unroll
    for (int c = 1; c < CLUSTER; c++) sum += parts[c];
    return sum;
}
// This thread's column of the row, or row_packs for none.
__device__ __forceinline__ u32 cluster_column(const Norm &q, u32 lanes, u32 part) {
    u32 each = (q.row_packs + CLUSTER - 1) / CLUSTER, column = part * each + threadIdx.x;
    return threadIdx.x < each && column < q.row_packs ? column : q.row_packs;
}
__device__ __forceinline__ void cluster_finish(u64 output, u64 at, const Norm &q, float total, const float *h, const Pack &weight) {
    float scale = rsqrtf(total * q.inverse_hidden + q.eps), w[ELEMENTS], out[ELEMENTS];
    unpack(weight, w);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) out[e] = h[e] * scale * w[e];
    store_pack(output + at, pack(out));
}

extern "C" __global__ void __launch_bounds__(544, 1) __cluster_dims__(CLUSTER, 1, 1) fused_cluster(const __grid_constant__ Params p, const __grid_constant__ Norm q) {
    __shared__ float partial[MAX_WARPS], parts[CLUSTER];
    const u32 lanes = blockDim.x - 32, part = blockIdx.x % CLUSTER, row = blockIdx.x / CLUSTER, n = q.rows * q.row_packs;
    const Record record = load_record(p);
    const bool dead = poisoned(p);
    cluster_arrive();
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, record, dead);
        return;
    }
    const u32 column = cluster_column(q, lanes, part), index = row * q.row_packs + column;
    const bool active = column < q.row_packs && !dead;
    const u64 at = (u64)index * 16, base = inbox(p, p.rank, record.call);
    Pack own, residual, weight, in[NRANKS - 1];
    float h[ELEMENTS], squares = 0.0f;
    if (active) {
        own = without_marks(load_pack(p.input + at));
        residual = load_pack(q.residual + at);
        weight = load_pack(q.weight + (u64)column * 16);
        send_pack(p, n, index, record.call, own);
    }
    record_used();
    if (active) {
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) in[s] = load_strong(base + ((u64)s * n + index) * 16);
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = base + ((u64)s * n + index) * 16;
            wait_pack(p, from, in[s], s + ((u32)s >= p.rank), STEP_DATA, record.call);
            clear_pack(from);
        }
        squares = add_residual(sum_in_rank_order(p.rank, own, in), residual, q.residual + at, h);
    }
    float total = cluster_sum(squares, lanes, partial, parts, part);
    if (active) cluster_finish(p.output, at, q, total, h, weight);
}
extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(CLUSTER, 1, 1) norm_cluster(u64 input, u64 output, const __grid_constant__ Norm q) {
    __shared__ float partial[MAX_WARPS], parts[CLUSTER];
    const u32 lanes = blockDim.x, part = blockIdx.x % CLUSTER, row = blockIdx.x / CLUSTER;
    cluster_arrive();
    const u32 column = cluster_column(q, lanes, part);
    const bool active = column < q.row_packs;
    const u64 at = ((u64)row * q.row_packs + column) * 16;
    Pack weight;
    float h[ELEMENTS], squares = 0.0f;
    if (active) {
        Pack x = without_marks(load_pack(input + at)), residual = load_pack(q.residual + at);
        weight = load_pack(q.weight + (u64)column * 16);
        squares = add_residual(x, residual, q.residual + at, h);
    }
    float total = cluster_sum(squares, lanes, partial, parts, part);
    if (active) cluster_finish(output, at, q, total, h, weight);
}
#endif
