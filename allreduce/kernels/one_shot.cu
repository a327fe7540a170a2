// One-shot: every rank stores its whole input into every peer's inbox, then sums what arrives in
// its own. The data carries its own arrival mark, so there is no flag, no fence and no barrier.

template <int U>
__device__ __forceinline__ void push(const Params &p, const Pack *v, u32 at, u32 stride, u32 n, u32 call) {
#pragma unroll
    for (int k = 1; k < NRANKS; k++) {
        u32 to = p.rank + k >= NRANKS ? p.rank + k - NRANKS : p.rank + k;  // no two start at one peer
        u64 base = inbox(p, to, call) + (u64)place(p.rank, to) * n * 16;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * stride < n) store_strong(base + (u64)(at + u * stride) * 16, v[u]);
    }
}

template <int U>
__device__ __forceinline__ bool finish(const Params &p, const Pack *v, u32 at, u32 stride, u32 n, u32 call) {
    u64 base = inbox(p, p.rank, call);
    Pack in[U][NRANKS - 1];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++)
            if (at + u * stride < n) in[u][s] = load_strong(base + ((u64)s * n + at + u * stride) * 16);
#pragma unroll
    for (int u = 0; u < U; u++) {
        u32 index = at + u * stride;
        if (index >= n) break;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = base + ((u64)s * n + index) * 16;
            if (!wait_pack(p, from, in[u][s], s + ((u32)s >= p.rank), STEP_DATA, call)) return false;
            clear_pack(from);
        }
        if (U > 1) __syncwarp();  // lanes that waited apart go on together: 8 % at 4 MiB
        store_output(p, index, sum_in_rank_order(p.rank, v[u], in[u]));
    }
    return true;
}

template <int U>
__device__ __forceinline__ void one_shot_body(const Params &p) {
    const u32 lanes = blockDim.x - 32;
    const u32 n = pack_count(p.bytes), stride = gridDim.x * lanes;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, r, dead);
        return;
    }
    u32 at = blockIdx.x * lanes + threadIdx.x;
    Pack now[U], next[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (at + u * stride < n) now[u] = load_input(p, at + u * stride);
    if (dead) return record_used();
    push<U>(p, now, at, stride, n, r.call);
    record_used();
    while (at < n) {
        u32 after = at + U * stride;  // sent before the present batch is awaited, to fill the link
        if (after < n) {
#pragma unroll
            for (int u = 0; u < U; u++)
                if (after + u * stride < n) next[u] = load_input(p, after + u * stride);
            push<U>(p, next, after, stride, n, r.call);
        }
        if (!finish<U>(p, now, at, stride, n, r.call)) return;
#pragma unroll
        for (int u = 0; u < U; u++) now[u] = next[u];
        at = after;
    }
}

extern "C" __global__ void __launch_bounds__(544, 1) one_shot(const __grid_constant__ Params p) {
    one_shot_body<1>(p);
}
extern "C" __global__ void __launch_bounds__(544, 1) one_shot_wide(const __grid_constant__ Params p) {
    one_shot_body<(NRANKS <= 2 ? 4 : NRANKS <= 4 ? 2 : 1)>(p);
}
