// Island: two groups of G = N/2 ranks. Chunks are summed inside each group; the owner in the lower
// group sends its f32 partial to its twin in the upper group, which adds its own group's values in
// rank order and sends the rounded result back; owners then gather inside their groups. Between
// the groups flows only rank g <-> rank g + G, and the sums are those of one-shot, bit for bit.

#if NRANKS % 2 == 0 && NRANKS >= 4
#define GROUP (NRANKS / 2)
#define WORDS (ELEMENTS / 4)  // packs that one pack's f32 partial sums take

struct Layout { u64 up, down, gather; };
__device__ __forceinline__ Layout layout(u32 chunk) {
    u64 up = (u64)(GROUP - 1) * chunk * 16, down = up + (u64)WORDS * chunk * 16;
    return Layout{up, down, down + (u64)chunk * 16};
}
// Waits for this chunk's packs of the other members; `in` is in rank order without this one.
__device__ __forceinline__ bool collect(const Params &p, u64 box, u32 chunk, u32 i, u32 base, u32 member, Pack *in, u32 call) {
#pragma unroll
    for (int s = 0; s < GROUP - 1; s++) in[s] = load_strong(box + ((u64)s * chunk + i) * 16);
#pragma unroll
    for (int s = 0; s < GROUP - 1; s++) {
        u64 from = box + ((u64)s * chunk + i) * 16;
        if (!wait_pack(p, from, in[s], base + s + ((u32)s >= member), STEP_SCATTER, call)) return false;
        clear_pack(from);
    }
    return true;
}
__device__ __forceinline__ void add_group(float *acc, bool fresh, u32 member, const Pack &own, const Pack *others) {
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        Pack other = pick((u32)s > member, others[s > 0 ? s - 1 : 0], others[s < GROUP - 1 ? s : GROUP - 2]);
        Pack x = pick((u32)s == member, own, other);
        if (s == 0 && fresh) unpack(x, acc);
        else add_pack(acc, x);
    }
}
__device__ __forceinline__ void send_partial(u64 to, u32 i, const float *acc) {
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        Pack v;
#pragma unroll
        for (int e = 0; e < 4; e++) v.w[e] = __float_as_uint(acc[w * 4 + e]);
        store_strong(to + ((u64)i * WORDS + w) * 16, without_marks(v));
    }
}
__device__ __forceinline__ bool take_partial(const Params &p, u64 from, u32 i, float *acc, u32 peer, u32 call) {
    Pack v[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; w++) v[w] = load_strong(from + ((u64)i * WORDS + w) * 16);
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        u64 at = from + ((u64)i * WORDS + w) * 16;
        if (!wait_pack(p, at, v[w], peer, STEP_CROSS, call)) return false;
        clear_pack(at);
#pragma unroll
        for (int e = 0; e < 4; e++) acc[w * 4 + e] = __uint_as_float(v[w].w[e]);
    }
    return true;
}
__device__ __forceinline__ void spread(const Params &p, u32 base, u32 member, u32 chunk, u32 i, u64 gather, const Pack &sum, u32 call) {
#pragma unroll
    for (int k = 1; k < GROUP; k++) {
        u32 to = (member + k) % GROUP;
        store_strong(inbox(p, base + to, call) + gather + ((u64)place(member, to) * chunk + i) * 16, sum);
    }
}

extern "C" __global__ void __launch_bounds__(544, 1) island(const __grid_constant__ Params p) {
    const u32 lanes = blockDim.x - 32;
    const u32 n = pack_count(p.bytes), chunk = (n + GROUP - 1) / GROUP;
    const u32 stride = gridDim.x * lanes, first = blockIdx.x * lanes + threadIdx.x;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, r, dead);
        return;
    }
    if (dead) return record_used();
    const bool lower = p.rank < GROUP;
    const u32 base = lower ? 0 : GROUP, member = p.rank - base, twin = lower ? p.rank + GROUP : p.rank - GROUP;
    const u64 box = inbox(p, p.rank, r.call), far = inbox(p, twin, r.call);
    const Layout at = layout(chunk);

    for (u32 i = first; i < chunk; i += stride)
#pragma unroll
        for (int k = 1; k < GROUP; k++) {
            u32 to = (member + k) % GROUP, index = to * chunk + i;
            if (index < n)
                store_strong(inbox(p, base + to, r.call) + ((u64)place(member, to) * chunk + i) * 16, load_input(p, index));
        }
    record_used();

    for (u32 i = first; i < chunk && member * chunk + i < n; i += stride) {
        u32 index = member * chunk + i;
        Pack own = load_input(p, index), in[GROUP - 1];
        float acc[ELEMENTS];
        if (!collect(p, box, chunk, i, base, member, in, r.call)) return;
        if (lower) {
            add_group(acc, true, member, own, in);
            send_partial(far + at.up, i, acc);
            continue;
        }
        if (!take_partial(p, box + at.up, i, acc, twin, r.call)) return;
        add_group(acc, false, member, own, in);
        Pack sum = without_marks(pack(acc));
        store_strong(far + at.down + (u64)i * 16, sum);
        spread(p, base, member, chunk, i, at.gather, sum, r.call);
        store_output(p, index, sum);
    }
    for (u32 i = first; lower && i < chunk && member * chunk + i < n; i += stride) {
        u64 from = box + at.down + (u64)i * 16;
        Pack sum = load_strong(from);
        if (!wait_pack(p, from, sum, twin, STEP_CROSS, r.call)) return;
        clear_pack(from);
        spread(p, base, member, chunk, i, at.gather, sum, r.call);
        store_output(p, member * chunk + i, sum);
    }
    for (u32 i = first; i < chunk; i += stride)
#pragma unroll
        for (int s = 0; s < GROUP - 1; s++) {
            u32 owner = s + ((u32)s >= member);
            if (owner * chunk + i >= n) continue;
            u64 from = box + at.gather + ((u64)s * chunk + i) * 16;
            Pack sum = load_strong(from);
            if (!wait_pack(p, from, sum, base + owner, STEP_GATHER, r.call)) return;
            clear_pack(from);
            store_output(p, owner * chunk + i, sum);
        }
}
#endif
