// Host-staged: for GPUs that cannot reach each other. Every rank writes to its own region of
// pinned host memory and reads the others' regions.
//
// host_staged: marks in the data, as in one-shot. A region is read by many, so the writer clears
// it, two host calls later, when the call in between proves that every reader is done. Host calls
// have their own number, so that calls of other algorithms between them change nothing.
// host_bulk: one flag a tile, with fences; nothing but the flags is cleared.

#define FLAG_BYTES 64  // one flag a cache line

// A slot: the call's header, data with marks from the next pack on, tile flags, tiles.
__device__ __forceinline__ u64 host_slot(const Params &p, u32 owner, u32 call) {
    u64 flags = p.host_bulk_bytes / TILE_BYTES * FLAG_BYTES;
    u64 stride = p.host_slot_bytes + HEADER_BYTES + flags + p.host_bulk_bytes;
    return p.host + (owner * HOST_SLOTS + (call & (HOST_SLOTS - 1))) * stride;
}
__device__ __forceinline__ u64 flags_at(const Params &p, u64 slot) { return slot + p.host_slot_bytes + HEADER_BYTES; }
__device__ __forceinline__ u64 bulk_at(const Params &p, u64 slot) {
    return flags_at(p, slot) + p.host_bulk_bytes / TILE_BYTES * FLAG_BYTES;
}

// Written through at once: an ordinary store to host memory may stay on the GPU until the kernel
// ends, which then waits for it.
__device__ __forceinline__ void clear_host_pack(u64 at) { store_strong(at, Pack{{MARK, MARK, MARK, MARK}}); }

// Restores the marks that the call before the last one used up: packs from the slot's start, or
// with bit 31 the header and so many tile flags.
__device__ __forceinline__ void clear_old(const Params &p, const Record &r, u32 first, u32 stride) {
    u64 slot = host_slot(p, p.rank, r.host_call - 2);
    u32 used = r.before[1];
    if (used >> 31) {
        if (first == 0) clear_host_pack(slot);
        for (u32 i = first; i < (used & 0x7fffffffu); i += stride)
            store_word(flags_at(p, slot) + (u64)i * FLAG_BYTES, MARK);
    } else {
        for (u32 i = first; i < used; i += stride) clear_host_pack(slot + (u64)i * 16);
    }
}

// ---- small messages: line q of a slot is pack q - 1 of the message; line 0 is the header, so it
// comes with the first data and costs no trip of its own

template <int U>
__device__ __forceinline__ void host_push(const Params &p, const Record &r, u64 mine, Pack *v, u32 at, u32 stride, u32 lines) {
#pragma unroll
    for (int u = 0; u < U; u++) {
        u32 line = at + u * stride;
        if (line >= lines) continue;
        v[u] = line == 0 ? header(p, r.call) : load_input(p, line - 1);
        store_strong(mine + (u64)line * 16, v[u]);
    }
}
template <int U>
__device__ __forceinline__ bool host_finish(const Params &p, const Record &r, const Pack *v, u32 at, u32 stride, u32 lines, u32 first) {
    Pack in[U][NRANKS - 1];
    u64 from[NRANKS - 1];
    const bool last = at + U * stride >= lines;
#pragma unroll
    for (int s = 0; s < NRANKS - 1; s++) from[s] = host_slot(p, s + ((u32)s >= p.rank), r.host_call);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++)
            if (at + u * stride < lines) in[u][s] = load_strong(from[s] + (u64)(at + u * stride) * 16);
#pragma unroll
    for (int u = 0; u < U; u++) {
        u32 line = at + u * stride;
        if (line >= lines) break;
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u32 peer = s + ((u32)s >= p.rank), step = line == 0 ? STEP_HEADER : STEP_DATA;
            if (!wait_pack(p, from[s] + (u64)line * 16, in[u][s], peer, step, r.call)) return false;
            if (line == 0 && !same(v[u], in[u][s])) fail(p, FAIL_MISMATCH, peer, STEP_HEADER, r.call);
        }
        // Not before: loads queue behind stores on their way to the host.
        if (u == 0 && last) clear_old(p, r, first, stride);
        if (line > 0) store_output(p, line - 1, sum_in_rank_order(p.rank, v[u], in[u]));
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(544, 1) host_staged(const __grid_constant__ Params p) {
    constexpr int U = NRANKS <= 2 ? 2 : 1;
    const u32 lanes = blockDim.x - 32;
    const u32 lines = pack_count(p.bytes) + 1, stride = gridDim.x * lanes;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) return advance_record(p, r, lines);
    if (dead) return record_used();
    const u64 mine = host_slot(p, p.rank, r.host_call);
    const u32 first = blockIdx.x * lanes + threadIdx.x;
    Pack now[U], next[U];
    host_push<U>(p, r, mine, now, first, stride, lines);
    record_used();
    if (first >= lines) return clear_old(p, r, first, stride);
    for (u32 at = first; at < lines;) {
        u32 after = at + U * stride;
        if (after < lines) host_push<U>(p, r, mine, next, after, stride, lines);
        if (!host_finish<U>(p, r, now, at, stride, lines, first)) return;
#pragma unroll
        for (int u = 0; u < U; u++) now[u] = next[u];
        at = after;
    }
}

// ---- large messages: half of a block's warps write tiles, the others read them, so that the link
// carries both directions at once. A tile is one warp's, so nothing waits for a block.

#define TILE_STEP 4  // packs of a tile that a lane has in flight

struct Tiles { u32 n, packs, count; };

// The first warp that has nothing else to do exchanges headers, and advances the records.
__device__ __forceinline__ void bulk_control_warp(const Params &p, const Record &r, bool dead, u32 used) {
    u32 lane = threadIdx.x & 31;
    bool live = !dead && blockIdx.x == 0;
    Pack mine = header(p, r.call);
    if (live && lane == p.rank) store_strong(host_slot(p, p.rank, r.host_call), mine);
    __syncwarp();  // else the lanes that wait below may run before the one that sends
    if (live && lane < NRANKS && lane != p.rank) {
        u64 at = host_slot(p, lane, r.host_call);
        Pack theirs = load_strong(at);
        if (wait_pack(p, at, theirs, lane, STEP_HEADER, r.call) && !same(mine, theirs))
            fail(p, FAIL_MISMATCH, lane, STEP_HEADER, r.call);
    }
    __syncwarp();
    advance_record(p, r, used);
}


__device__ __forceinline__ void write_tile(const Params &p, const Tiles &t, u64 slot, u32 tile) {
    u64 bulk = bulk_at(p, slot);
    const u32 begin = tile * t.packs, end = begin + t.packs < t.n ? begin + t.packs : t.n;
    for (u32 k = begin + (threadIdx.x & 31); k < end; k += 32 * TILE_STEP) {
        Pack v[TILE_STEP];
#pragma unroll
        for (int u = 0; u < TILE_STEP; u++)
            if (k + u * 32 < end) v[u] = load_input(p, k + u * 32);
#pragma unroll
        for (int u = 0; u < TILE_STEP; u++)
            if (k + u * 32 < end) store_strong(bulk + (u64)(k + u * 32) * 16, v[u]);
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flags_at(p, slot) + (u64)tile * FLAG_BYTES), "r"(1) : "memory");
}
__device__ __forceinline__ u32 load_flag(u64 at) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
// One lane a peer waits for that peer's flag; in place for this rank's own too, because its sum
// must not overwrite what is still to be sent. False, on all lanes, when one gave up.
__device__ __forceinline__ bool wait_tile(const Params &p, u32 tile, const Record &r) {
    u32 lane = threadIdx.x & 31;
    bool lost = false;
    if (lane < NRANKS && (lane != p.rank || p.input == p.output)) {
        u64 at = flags_at(p, host_slot(p, lane, r.host_call)) + (u64)tile * FLAG_BYTES;
        u64 since = 0;
        for (u32 polls = 1; load_flag(at) == MARK; polls++) {
            if ((polls & 511) != 0) continue;
            u64 now = clock_ns();
            if (since == 0) since = now;
            if (give_up(p, now - since, lane, STEP_DATA, r.call)) {
                lost = true;
                break;
            }
        }
    }
    lost = __any_sync(0xffffffffu, lost);
    __syncwarp();  // orders this warp's reads behind the lanes that saw the flags
    return !lost;
}
__device__ __forceinline__ void sum_tile(const Params &p, const Tiles &t, u32 tile, u32 host_call) {
    constexpr int U = NRANKS <= 2 ? TILE_STEP : NRANKS <= 4 ? 2 : 1;
    const u32 begin = tile * t.packs, end = begin + t.packs < t.n ? begin + t.packs : t.n;
    for (u32 k = begin + (threadIdx.x & 31); k < end; k += 32 * U) {
        Pack in[U][NRANKS - 1];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int s = 0; s < NRANKS - 1; s++) {
                u64 bulk = bulk_at(p, host_slot(p, s + ((u32)s >= p.rank), host_call));
                if (k + u * 32 < end) in[u][s] = load_strong(bulk + (u64)(k + u * 32) * 16);
            }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (k + u * 32 < end)
                store_output(p, k + u * 32, sum_in_rank_order(p.rank, load_input(p, k + u * 32), in[u]));
    }
}

extern "C" __global__ void __launch_bounds__(544, 1) host_bulk(const __grid_constant__ Params p) {
    const u32 lanes = blockDim.x - 32, half = lanes / 64, warp = threadIdx.x >> 5;
    Tiles t;
    t.n = pack_count(p.bytes);
    t.packs = p.tile_bytes / 16;
    t.count = (t.n + t.packs - 1) / t.packs;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) return bulk_control_warp(p, r, dead, t.count | 0x80000000u);
    record_used();
    if (dead) return;
    clear_old(p, r, blockIdx.x * lanes + threadIdx.x, gridDim.x * lanes);
    const bool writes = warp < half;
    const u32 stride = gridDim.x * half;
    for (u32 tile = blockIdx.x * half + (writes ? warp : warp - half); tile < t.count; tile += stride) {
        if (writes) {
            write_tile(p, t, host_slot(p, p.rank, r.host_call), tile);
        } else {
            if (!wait_tile(p, tile, r)) return;
            sum_tile(p, t, tile, r.host_call);
        }
    }
}
