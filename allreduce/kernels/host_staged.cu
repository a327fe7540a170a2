// Host-staged: for GPUs that cannot reach each other. Every rank writes to its own region of
// pinned host memory and reads the others' regions.
//
// host_staged: marks in the data, as in one-shot. A region is read by many, so the writer clears
// it, two host calls later, when the call in between proves that every reader is done. Host calls
// have their own number, so that calls of other algorithms between them change nothing.
// host_bulk: one flag a tile, with fences; nothing but the flags is cleared.

#define FLAG_BYTES 64  // one flag a cache line

__device__ __forceinline__ u64 host_slot(const Params &p, u32 owner, u32 call) {
    u64 flags = p.host_bulk_bytes / TILE_BYTES * FLAG_BYTES;
    u64 stride = p.host_slot_bytes + HEADER_BYTES + flags + p.host_bulk_bytes;
    return p.host + (owner * HOST_SLOTS + (call & (HOST_SLOTS - 1))) * stride;
}
__device__ __forceinline__ u64 header_at(const Params &p, u64 slot) { return slot + p.host_slot_bytes; }
__device__ __forceinline__ u64 flags_at(const Params &p, u64 slot) { return header_at(p, slot) + HEADER_BYTES; }
__device__ __forceinline__ u64 bulk_at(const Params &p, u64 slot) {
    return flags_at(p, slot) + p.host_bulk_bytes / TILE_BYTES * FLAG_BYTES;
}

// Written through at once: an ordinary store to host memory may stay on the GPU until the kernel
// ends, which then waits for it.
__device__ __forceinline__ void clear_host_pack(u64 at) { store_strong(at, Pack{{MARK, MARK, MARK, MARK}}); }

__device__ __forceinline__ void host_control_warp(const Params &p, const Record &r, bool dead, u32 used) {
    u32 lane = threadIdx.x & 31;
    bool live = !dead && blockIdx.x == 0;
    Pack mine = header(p, r.call);
    if (live && lane == p.rank) {
        store_strong(header_at(p, host_slot(p, p.rank, r.host_call)), mine);
        if (r.before[1] != 0) clear_host_pack(header_at(p, host_slot(p, p.rank, r.host_call - 2)));
    }
    __syncwarp();  // else the lanes that wait below may run before the one that sends
    if (live && lane < NRANKS && lane != p.rank) {
        u64 at = header_at(p, host_slot(p, lane, r.host_call));
        Pack theirs = load_strong(at);
        if (wait_pack(p, at, theirs, lane, STEP_HEADER, r.call) && !same(mine, theirs))
            fail(p, FAIL_MISMATCH, lane, STEP_HEADER, r.call);
    }
    __syncwarp();
    advance_record(p, r, used);
}
// Restores the marks that the call before the last one used up.
__device__ __forceinline__ void clear_old(const Params &p, const Record &r, u32 first, u32 stride) {
    u64 slot = host_slot(p, p.rank, r.host_call - 2);
    u32 used = r.before[1];
    if (used >> 31) {
        for (u32 i = first; i < (used & 0x7fffffffu); i += stride)
            store_word(flags_at(p, slot) + (u64)i * FLAG_BYTES, MARK);
    } else {
        for (u32 i = first; i < used; i += stride) clear_host_pack(slot + (u64)i * 16);
    }
}

template <int U>
__device__ __forceinline__ void host_push(const Params &p, u64 mine, Pack *v, u32 at, u32 stride, u32 n) {
#pragma unroll
    for (int u = 0; u < U; u++)
        if (at + u * stride < n) {
            v[u] = load_input(p, at + u * stride);
            store_strong(mine + (u64)(at + u * stride) * 16, v[u]);
        }
}
template <int U>
__device__ __forceinline__ bool host_finish(const Params &p, const Pack *v, u32 at, u32 stride, u32 n, const Record &r) {
    Pack in[U][NRANKS - 1];
    u64 from[NRANKS - 1];
#pragma unroll
    for (int s = 0; s < NRANKS - 1; s++) from[s] = host_slot(p, s + ((u32)s >= p.rank), r.host_call);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++)
            if (at + u * stride < n) in[u][s] = load_strong(from[s] + (u64)(at + u * stride) * 16);
#pragma unroll
    for (int u = 0; u < U; u++) {
        u32 index = at + u * stride;
        if (index >= n) break;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++)
            if (!wait_pack(p, from[s] + (u64)index * 16, in[u][s], s + ((u32)s >= p.rank), STEP_DATA, r.call)) return false;
        store_output(p, index, sum_in_rank_order(p.rank, v[u], in[u]));
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(544, 1) host_staged(const __grid_constant__ Params p) {
    constexpr int U = NRANKS <= 2 ? 2 : 1;
    const u32 lanes = blockDim.x - 32;
    const u32 n = pack_count(p.bytes), stride = gridDim.x * lanes;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        host_control_warp(p, r, dead, n);
        return;
    }
    if (dead) return record_used();
    const u64 mine = host_slot(p, p.rank, r.host_call);
    const u32 first = blockIdx.x * lanes + threadIdx.x;
    Pack now[U], next[U];
    host_push<U>(p, mine, now, first, stride, n);
    record_used();
    if (first + U * stride >= n) clear_old(p, r, first, stride);
    for (u32 at = first; at < n;) {
        u32 after = at + U * stride;
        if (after < n) {
            host_push<U>(p, mine, next, after, stride, n);
            if (after + U * stride >= n) clear_old(p, r, first, stride);
        }
        if (!host_finish<U>(p, now, at, stride, n, r)) return;
#pragma unroll
        for (int u = 0; u < U; u++) now[u] = next[u];
        at = after;
    }
}

// ---- large messages

__device__ __forceinline__ void data_barrier(u32 lanes) { asm volatile("bar.sync 2, %0;" :: "r"(lanes) : "memory"); }

// The message in tiles: what the functions below share.
struct Tiles { u32 n, packs, count, lanes; };

__device__ __forceinline__ void write_tile(const Params &p, const Tiles &t, u64 slot, u32 tile) {
    u64 bulk = bulk_at(p, slot);
    for (u32 k = threadIdx.x; k < t.packs && tile * t.packs + k < t.n; k += t.lanes) {
        u32 index = tile * t.packs + k;
        store_strong(bulk + (u64)index * 16, load_input(p, index));
    }
    data_barrier(t.lanes);
    if (threadIdx.x == 0)
        asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flags_at(p, slot) + (u64)tile * FLAG_BYTES), "r"(1) : "memory");
}
__device__ __forceinline__ u32 load_flag(u64 at) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ bool wait_tile(const Params &p, const Tiles &t, u32 tile, const Record &r, u32 *stop) {
    if (threadIdx.x < NRANKS && threadIdx.x != p.rank) {
        u64 at = flags_at(p, host_slot(p, threadIdx.x, r.host_call)) + (u64)tile * FLAG_BYTES;
        u64 since = 0;
        for (u32 polls = 1; load_flag(at) == MARK; polls++) {
            if ((polls & 511) != 0) continue;
            u64 now = clock_ns();
            if (since == 0) since = now;
            if (give_up(p, now - since, threadIdx.x, STEP_DATA, r.call)) {
                *(volatile u32 *)stop = 1;
                break;
            }
        }
    }
    data_barrier(t.lanes);
    return *(volatile u32 *)stop == 0;
}
__device__ __forceinline__ void sum_tile(const Params &p, const Tiles &t, u32 tile, u32 host_call) {
    constexpr int U = NRANKS <= 2 ? 4 : NRANKS <= 4 ? 2 : 1;
    for (u32 k = threadIdx.x; k < t.packs && tile * t.packs + k < t.n; k += U * t.lanes) {
        Pack in[U][NRANKS - 1];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int s = 0; s < NRANKS - 1; s++) {
                u32 index = tile * t.packs + k + u * t.lanes;
                u64 bulk = bulk_at(p, host_slot(p, s + ((u32)s >= p.rank), host_call));
                if (k + u * t.lanes < t.packs && index < t.n) in[u][s] = load_strong(bulk + (u64)index * 16);
            }
#pragma unroll
        for (int u = 0; u < U; u++) {
            u32 index = tile * t.packs + k + u * t.lanes;
            if (k + u * t.lanes < t.packs && index < t.n)
                store_output(p, index, sum_in_rank_order(p.rank, load_input(p, index), in[u]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(544, 1) host_bulk(const __grid_constant__ Params p) {
    __shared__ u32 stop;
    Tiles t;
    t.lanes = blockDim.x - 32;
    t.n = pack_count(p.bytes);
    t.packs = p.tile_bytes / 16;
    t.count = (t.n + t.packs - 1) / t.packs;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= t.lanes) {
        host_control_warp(p, r, dead, t.count | 0x80000000u);
        return;
    }
    if (threadIdx.x == 0) stop = dead;
    data_barrier(t.lanes);
    record_used();
    if (*(volatile u32 *)&stop) return;
    clear_old(p, r, blockIdx.x * t.lanes + threadIdx.x, gridDim.x * t.lanes);
    const u64 slot = host_slot(p, p.rank, r.host_call);
    u32 previous = t.count;
    for (u32 tile = blockIdx.x; previous < t.count || tile < t.count; tile += gridDim.x) {
        if (tile < t.count) write_tile(p, t, slot, tile);
        if (previous < t.count) {
            if (!wait_tile(p, t, previous, r, &stop)) return;
            sum_tile(p, t, previous, r.host_call);
        }
        previous = tile < t.count ? tile : t.count;
    }
}
