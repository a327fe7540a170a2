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

struct Norm { u64 residual, weight; u32 row_packs, rows; float eps, inverse_hidden; u32 reducers, send_lanes; };

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
__device__ __forceinline__ void write_pack(u64 at, const Pack &weight, const float *h, float scale) {
    float w[ELEMENTS], out[ELEMENTS];
    unpack(weight, w);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) out[e] = h[e] * scale * w[e];
    store_pack(at, pack(out));
}
// Turns the sum of squares into the row's norm and writes it.
template <int K>
__device__ __forceinline__ void write_norm(u64 output, const Norm &q, u32 row, u32 lanes, float squares, float (*h)[ELEMENTS], const Row<K> &r, float *partial) {
    float scale = rsqrtf(block_sum(squares, lanes, partial) * q.inverse_hidden + q.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 column = threadIdx.x + k * lanes;
        if (column < q.row_packs) write_pack(output + ((u64)row * q.row_packs + column) * 16, r.weight[k], h[k], scale);
    }
}

// A thread that loses its peer, or finds an earlier call failed, goes on with what it has: every
// thread must come to the barriers.
template <int K>
__device__ __forceinline__ void fused_row(const Params &p, const Norm &q, u32 row, u32 call, bool dead, u32 lanes, const Row<K> &r, float *partial) {
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
            if (!dead) wait_pack(p, from, in[k][s], s + ((u32)s >= p.rank), STEP_DATA, call);
            clear_pack(from);
        }
        squares += add_residual(sum_in_rank_order(p.rank, r.own[k], in[k]), r.residual[k], q.residual + (u64)index * 16, h[k]);
    }
    __syncwarp();  // lanes that waited apart go on together: 0.1 to 0.25 us
    write_norm<K>(p.output, q, row, lanes, squares, h, r, partial);
}

__device__ __forceinline__ void send_pack(const Params &p, u32 n, u32 index, u32 call, const Pack &v) {
#pragma unroll
    for (int d = 1; d < NRANKS; d++) {
        u32 to = p.rank + d >= NRANKS ? p.rank + d - NRANKS : p.rank + d;
        store_strong(inbox(p, to, call) + ((u64)place(p.rank, to) * n + index) * 16, v);
    }
}
// Blocks from `reducers` on only send, a few packs each, so that one multiprocessor's rate of stores
// does not delay a row.
__device__ __forceinline__ void send_all(const Params &p, const Norm &q, u32 call, u32 block, u32 blocks) {
    const u32 n = q.rows * q.row_packs;
    if (threadIdx.x >= q.send_lanes) return;
    for (u32 index = block * q.send_lanes + threadIdx.x; index < n; index += blocks * q.send_lanes)
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
        if (!dead) send_all(p, q, record.call, blockIdx.x - q.reducers, senders);
        return record_used();
    }
    Row<K> r;
    load_row<K>(p.input, q, blockIdx.x, lanes, r);
    if (senders == 0 && !dead) send_all(p, q, record.call, blockIdx.x, gridDim.x);
    record_used();
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < q.rows; row += q.reducers, turn ^= 1) {
        if (row != blockIdx.x) load_row<K>(p.input, q, row, lanes, r);
        fused_row<K>(p, q, row, record.call, dead, lanes, r, partial[turn]);
    }
}
extern "C" __global__ void __launch_bounds__(1024, 1) fused_1(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<1>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_2(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<2>(p, q); }
extern "C" __global__ void __launch_bounds__(544, 1) fused_4(const __grid_constant__ Params p, const __grid_constant__ Norm q) { fused_body<4>(p, q); }

// ---- a row spread over a cluster of eight blocks: eight multiprocessors send, receive and write it,
// and the warps' sums of squares meet in shared memory, one message for each warp and block.
#if __CUDA_ARCH__ >= 900
#define CLUSTER 8

struct Meeting {
    alignas(16) float partial[MAX_WARPS];
    alignas(8) u64 gate;
};
__device__ __forceinline__ u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ u32 in_block(u32 address, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
// The gate opens when every warp's sum has come. All threads of the cluster must come here, and
// then to all_are_here, before anyone may write to another block.
__device__ __forceinline__ void open_meeting(Meeting &m) {
    if (threadIdx.x == 0) {
        u32 gate = shared_address(&m.gate);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(gate) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void all_are_here() {
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What the gate waits for; one thread of the block says it. Messages may have come before.
__device__ __forceinline__ void expect(Meeting &m, u32 warps) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(&m.gate)), "r"(warps * 4) : "memory");
}
// Sum of `v` over the cluster, in the order of block_sum; `warp` counts through its blocks. No block
// ends before all messages to it have come.
__device__ __forceinline__ float cluster_sum(float v, Meeting &m, u32 warp, u32 warps) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (lane < CLUSTER)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                     :: "r"(in_block(shared_address(&m.partial[warp]), lane)), "r"(__float_as_uint(v)),
                        "r"(in_block(shared_address(&m.gate), lane)) : "memory");
    for (u32 open = 0; !open;)
        asm volatile("{ .reg .pred ok; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ok, [%1], 0; selp.u32 %0, 1, 0, ok; }"
                     : "=r"(open) : "r"(shared_address(&m.gate)) : "memory");
    v = lane < warps ? *(volatile float *)&m.partial[lane] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

// One cluster a row, one pack a thread.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(160, 1) fused_cluster(const __grid_constant__ Params p, const __grid_constant__ Norm q) {
    __shared__ Meeting m;
    const u32 lanes = blockDim.x - 32, warps = CLUSTER * lanes / 32, n = q.rows * q.row_packs;
    const u32 row = blockIdx.x / CLUSTER, column = cluster_rank() * lanes + threadIdx.x, index = row * q.row_packs + column;
    open_meeting(m);
    const Record record = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        all_are_here();
        if (threadIdx.x == lanes) expect(m, warps);
        peer_control_warp(p, record, dead);
        return;
    }
    const bool mine = column < q.row_packs;
    const u64 at = (u64)index * 16, base = inbox(p, p.rank, record.call);
    Pack own, residual, weight, in[NRANKS - 1];
    float h[ELEMENTS], squares = 0.0f;
    if (mine) {
        own = without_marks(load_pack(p.input + at));
        residual = load_pack(q.residual + at);
        weight = load_pack(q.weight + (u64)column * 16);
        if (!dead) send_pack(p, n, index, record.call, own);
    }
    record_used();
    if (mine) {
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) in[s] = load_strong(base + ((u64)s * n + index) * 16);
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = base + ((u64)s * n + index) * 16;
            if (!dead) wait_pack(p, from, in[s], s + ((u32)s >= p.rank), STEP_DATA, record.call);
            clear_pack(from);
        }
        squares = add_residual(sum_in_rank_order(p.rank, own, in), residual, q.residual + at, h);
    }
    all_are_here();
    float scale = rsqrtf(cluster_sum(squares, m, column >> 5, warps) * q.inverse_hidden + q.eps);
    if (mine) write_pack(p.output + at, weight, h, scale);
}
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(128, 1) norm_cluster(u64 input, u64 output, const __grid_constant__ Norm q) {
    __shared__ Meeting m;
    const u32 lanes = blockDim.x, warps = CLUSTER * lanes / 32, column = cluster_rank() * lanes + threadIdx.x;
    const u64 at = ((u64)(blockIdx.x / CLUSTER) * q.row_packs + column) * 16;
    const bool mine = column < q.row_packs;
    Pack residual, weight;
    float h[ELEMENTS], squares = 0.0f;
    open_meeting(m);
    if (mine) {
        Pack own = without_marks(load_pack(input + at));
        residual = load_pack(q.residual + at);
        weight = load_pack(q.weight + (u64)column * 16);
        squares = add_residual(own, residual, q.residual + at, h);
    }
    all_are_here();
    if (threadIdx.x == 0) expect(m, warps);
    float scale = rsqrtf(cluster_sum(squares, m, column >> 5, warps) * q.inverse_hidden + q.eps);
    if (mine) write_pack(output + at, weight, h, scale);
}
#endif

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
