// Two-shot: rank c owns chunk c. Every rank sends chunk c to its owner, the owner sums in rank
// order and sends the result to all. 2(N-1)/N of the message crosses each link instead of N-1.

extern "C" __global__ void __launch_bounds__(544, 1) two_shot(const __grid_constant__ Params p) {
    const u32 lanes = blockDim.x - 32;
    const u32 n = pack_count(p.bytes), chunk = (n + NRANKS - 1) / NRANKS;
    const u32 stride = gridDim.x * lanes, first = blockIdx.x * lanes + threadIdx.x;
    const Record r = load_record(p);
    const bool dead = poisoned(p);
    if (threadIdx.x >= lanes) {
        peer_control_warp(p, r, dead);
        return;
    }
    if (dead) return record_used();
    const u64 box = inbox(p, p.rank, r.call);
    const u64 gather = (u64)(NRANKS - 1) * chunk * 16;  // the second half of an inbox

    for (u32 i = first; i < chunk; i += stride) {
#pragma unroll
        for (int k = 1; k < NRANKS; k++) {
            u32 to = p.rank + k >= NRANKS ? p.rank + k - NRANKS : p.rank + k;
            u32 index = to * chunk + i;
            if (index < n)
                store_strong(inbox(p, to, r.call) + ((u64)place(p.rank, to) * chunk + i) * 16, load_input(p, index));
        }
    }
    record_used();

    for (u32 i = first; i < chunk && p.rank * chunk + i < n; i += stride) {
        u32 index = p.rank * chunk + i;
        Pack own = load_input(p, index), in[NRANKS - 1];
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) in[s] = load_strong(box + ((u64)s * chunk + i) * 16);
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u64 from = box + ((u64)s * chunk + i) * 16;
            if (!wait_pack(p, from, in[s], s + ((u32)s >= p.rank), STEP_SCATTER, r.call)) return;
            clear_pack(from);
        }
        Pack sum = without_marks(sum_in_rank_order(p.rank, own, in));
#pragma unroll
        for (int k = 1; k < NRANKS; k++) {
            u32 to = p.rank + k >= NRANKS ? p.rank + k - NRANKS : p.rank + k;
            store_strong(inbox(p, to, r.call) + gather + ((u64)place(p.rank, to) * chunk + i) * 16, sum);
        }
        store_output(p, index, sum);
    }

    for (u32 i = first; i < chunk; i += stride) {
        Pack in[NRANKS - 1];
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u32 owner = s + ((u32)s >= p.rank);
            if (owner * chunk + i < n) in[s] = load_strong(box + gather + ((u64)s * chunk + i) * 16);
        }
#pragma unroll
        for (int s = 0; s < NRANKS - 1; s++) {
            u32 owner = s + ((u32)s >= p.rank);
            if (owner * chunk + i >= n) continue;
            u64 from = box + gather + ((u64)s * chunk + i) * 16;
            if (!wait_pack(p, from, in[s], owner, STEP_GATHER, r.call)) return;
            clear_pack(from);
            store_output(p, owner * chunk + i, in[s]);
        }
    }
}
