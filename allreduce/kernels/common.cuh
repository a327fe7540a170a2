// Shared by all kernels; put in front of each file before compilation. No toolkit headers.
//
// Injected from protocol.rs: NRANKS, DTYPE (0 f32, 1 f16, 2 bf16), MARK, MAX_BLOCKS,
// CALL_MODULUS, PEER_SLOTS, HOST_SLOTS, HEADER_BYTES, RECORDS_AT, TILE_BYTES.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Pack { u32 w[4]; };

// One per block, in this rank's memory: what the block must know of earlier calls.
struct alignas(16) Record {
    u32 call;       // number of this call, modulo CALL_MODULUS
    u32 before[2];  // marks used up by the last two host calls: packs, or tiles with bit 31
    u32 host_call;  // number of the next host call, modulo CALL_MODULUS
};

struct Params {
    u64 arena[NRANKS];    // every rank's inbox as this GPU addresses it
    u64 host;             // host memory of all ranks
    u64 state;            // poison word, then records
    u64 control;          // pinned page: abort word, then the error the host reads
    u64 input;
    u64 output;
    u64 bytes;
    u64 slot_bytes;       // data bytes of one inbox slot
    u64 host_slot_bytes;  // data bytes of one host slot of one rank, small messages
    u64 host_bulk_bytes;  // the same, large messages
    u64 deadline_ns;
    u32 rank;
    u32 aligned;          // input and output are multiples of 16
    u32 opcode;           // algorithm and type, compared between ranks
    u32 tile_bytes;       // host bulk
};

enum { FAIL_LATE = 1, FAIL_MISMATCH = 2, FAIL_ABORT = 3 };
enum { STEP_HEADER = 0, STEP_DATA = 1, STEP_SCATTER = 2, STEP_CROSS = 3, STEP_GATHER = 4 };

__device__ __forceinline__ Pack load_strong(u64 at) {
    Pack v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_strong(u64 at, const Pack &v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
// The caller's data: ordinary accesses, spelled out so that they are 16 bytes wide.
__device__ __forceinline__ Pack load_pack(u64 at) {
    Pack v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_pack(u64 at, const Pack &v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
// By words: choosing between two structs would put both on the stack.
__device__ __forceinline__ Pack pick(bool first, const Pack &a, const Pack &b) {
    return Pack{{first ? a.w[0] : b.w[0], first ? a.w[1] : b.w[1], first ? a.w[2] : b.w[2], first ? a.w[3] : b.w[3]}};
}
__device__ __forceinline__ u32 load_word(u64 at) {
    u32 v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_word(u64 at, u32 v) {
    asm volatile("st.volatile.global.u32 [%0], %1;" :: "l"(at), "r"(v) : "memory");
}
__device__ __forceinline__ u64 clock_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// A mark is a word that no sender sends: all ones, a NaN in every type. The one value that could
// collide is sent as another NaN.
__device__ __forceinline__ Pack without_marks(Pack v) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (v.w[i] == MARK) v.w[i] = 0x7fffffffu;
    return v;
}
// The smallest unit that must arrive whole is one word: each is checked.
__device__ __forceinline__ bool arrived(const Pack &v) {
    return v.w[0] != MARK && v.w[1] != MARK && v.w[2] != MARK && v.w[3] != MARK;
}
__device__ __forceinline__ void clear_pack(u64 at) {
    store_pack(at, Pack{{MARK, MARK, MARK, MARK}});
}

// ---- element types: sums are f32, in rank order, rounded once

#if DTYPE == 0
#define ELEMENTS 4
#define ELEMENT_BYTES 4
__device__ __forceinline__ void unpack(const Pack &v, float *f) {
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = __uint_as_float(v.w[i]);
}
__device__ __forceinline__ Pack pack(const float *f) {
    return Pack{{__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])}};
}
#else
#define ELEMENTS 8
#define ELEMENT_BYTES 2
__device__ __forceinline__ float low_half(u32 w) {
#if DTYPE == 1
    float f;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(f) : "r"(w));
    return f;
#else
    return __uint_as_float(w << 16);
#endif
}
__device__ __forceinline__ float high_half(u32 w) {
#if DTYPE == 1
    float f;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(w));
    return f;
#else
    return __uint_as_float(w & 0xffff0000u);
#endif
}
__device__ __forceinline__ void unpack(const Pack &v, float *f) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = low_half(v.w[i]);
        f[2 * i + 1] = high_half(v.w[i]);
    }
}
__device__ __forceinline__ Pack pack(const float *f) {
    Pack v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if DTYPE == 1
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v.w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
#else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v.w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
#endif
    }
    return v;
}
#endif

__device__ __forceinline__ void add_pack(float *acc, const Pack &v) {
    float f[ELEMENTS];
    unpack(v, f);
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) acc[i] += f[i];
}

// ---- the caller's buffers: any length, any element-aligned address

__device__ __forceinline__ u32 pack_count(u64 bytes) { return (u32)((bytes + 15) >> 4); }

__device__ __noinline__ Pack load_elements(const Params &p, u32 index) {
    Pack v = {{0, 0, 0, 0}};
    for (u32 i = 0; i < 16; i += ELEMENT_BYTES) {
        u64 at = (u64)index * 16 + i;
        if (at >= p.bytes) break;
#if ELEMENT_BYTES == 4
        v.w[i / 4] = *(const u32 *)(p.input + at);
#else
        v.w[i / 4] |= (u32)(*(const u16 *)(p.input + at)) << (8 * (i & 2));
#endif
    }
    return v;
}
__device__ __noinline__ void store_elements(const Params &p, u32 index, Pack v) {
    for (u32 i = 0; i < 16; i += ELEMENT_BYTES) {
        u64 at = (u64)index * 16 + i;
        if (at >= p.bytes) break;
#if ELEMENT_BYTES == 4
        *(u32 *)(p.output + at) = v.w[i / 4];
#else
        *(u16 *)(p.output + at) = (u16)(v.w[i / 4] >> (8 * (i & 2)));
#endif
    }
}
__device__ __forceinline__ bool whole(const Params &p, u32 index) {
    return p.aligned && (u64)index * 16 + 16 <= p.bytes;
}
__device__ __forceinline__ Pack load_input(const Params &p, u32 index) {
    Pack v;
    if (whole(p, index)) v = load_pack(p.input + (u64)index * 16);
    else v = load_elements(p, index);
    return without_marks(v);
}
__device__ __forceinline__ void store_output(const Params &p, u32 index, const Pack &v) {
    if (whole(p, index)) store_pack(p.output + (u64)index * 16, v);
    else store_elements(p, index, v);
}

// ---- failing in bounded time

__device__ __noinline__ void fail(const Params &p, u32 kind, u32 peer, u32 step, u32 call) {
    if (atomicCAS((u32 *)p.state, 0u, kind) != 0) return;  // the first failure is the one reported
    store_word(p.control + 68, peer);
    store_word(p.control + 72, step);
    store_word(p.control + 76, call);
    __threadfence_system();
    store_word(p.control + 64, kind);
    __threadfence_system();
}
__device__ __forceinline__ bool poisoned(const Params &p) { return load_word(p.state) != 0; }

// Called now and then by a thread that waits; true when the wait must end. Only block 0 looks at
// the host's abort word: reads of one host line are served one after another, 0.7 us each, and
// all warps together would delay their peers for so long that these do the same.
__device__ __noinline__ bool give_up(const Params &p, u64 waited_ns, u32 peer, u32 step, u32 call) {
    if (poisoned(p)) return true;
    u32 kind = waited_ns > p.deadline_ns ? FAIL_LATE : 0;
    if (blockIdx.x == 0 && load_word(p.control) != 0) kind = FAIL_ABORT;
    if (kind != 0) fail(p, kind, peer, step, call);
    return kind != 0;
}
// Waits for the pack at `at`, starting from what an earlier load of it gave.
__device__ __forceinline__ bool wait_pack(const Params &p, u64 at, Pack &v, u32 peer, u32 step, u32 call) {
    if (arrived(v)) return true;
    u64 since = 0;
    for (;;) {
#pragma unroll 1
        for (int polls = 0; polls < 512; polls++) {
            v = load_strong(at);
            if (arrived(v)) return true;
        }
        u64 now = clock_ns();
        if (since == 0) since = now;
        if (give_up(p, now - since, peer, step, call)) return false;
    }
}

// ---- inboxes of other GPUs (slots used in turn) and the call record

__device__ __forceinline__ u64 inbox(const Params &p, u32 owner, u32 call) {
    return p.arena[owner] + (call & (PEER_SLOTS - 1)) * (p.slot_bytes + HEADER_BYTES);
}
// Other ranks' regions in an inbox are packed: this rank has none in its own.
__device__ __forceinline__ u32 place(u32 source, u32 owner) { return source - (source > owner ? 1 : 0); }

__device__ __forceinline__ Record load_record(const Params &p) {
    Pack v = load_strong(p.state + RECORDS_AT + blockIdx.x * 16);
    return Record{v.w[0], {v.w[1], v.w[2]}, v.w[3]};
}
// The data warps have read the record and used it.
__device__ __forceinline__ void record_used() {
    __syncwarp();  // the barrier counts whole warps
    asm volatile("bar.arrive 1, %0;" :: "r"(blockDim.x) : "memory");
}
// Moves every record to the next call. Blocks that this launch lacks are moved by those it has.
// `used` is 0 for calls that leave host memory alone: they do not count as host calls.
__device__ __forceinline__ void advance_record(const Params &p, const Record &r, u32 used) {
    asm volatile("bar.sync 1, %0;" :: "r"(blockDim.x) : "memory");
    Pack next = {{(r.call + 1) & (CALL_MODULUS - 1), r.before[0], r.before[1], r.host_call}};
    if (used != 0) {
        next.w[1] = used;
        next.w[2] = r.before[0];
        next.w[3] = (r.host_call + 1) & (CALL_MODULUS - 1);
    }
    for (u32 b = blockIdx.x + (threadIdx.x & 31) * gridDim.x; b < MAX_BLOCKS; b += 32 * gridDim.x)
        store_strong(p.state + RECORDS_AT + b * 16, next);
}
__device__ __forceinline__ Pack header(const Params &p, u32 call) {
    return Pack{{(u32)p.bytes & 0x7fffffffu, p.opcode, call, (u32)(p.bytes >> 31)}};
}
__device__ __forceinline__ bool same(const Pack &a, const Pack &b) {
    return a.w[0] == b.w[0] && a.w[1] == b.w[1] && a.w[2] == b.w[2] && a.w[3] == b.w[3];
}
// The last warp of each block: in block 0 it tells every peer which call this is and compares
// theirs; in all blocks it advances the records.
__device__ __forceinline__ void peer_control_warp(const Params &p, const Record &r, bool dead) {
    u32 lane = threadIdx.x & 31;
    if (!dead && blockIdx.x == 0 && lane < NRANKS && lane != p.rank) {
        Pack mine = header(p, r.call);
        store_strong(inbox(p, lane, r.call) + p.slot_bytes + p.rank * 16, mine);
        u64 at = inbox(p, p.rank, r.call) + p.slot_bytes + lane * 16;
        Pack theirs = load_strong(at);
        if (wait_pack(p, at, theirs, lane, STEP_HEADER, r.call)) {
            clear_pack(at);
            if (!same(mine, theirs)) fail(p, FAIL_MISMATCH, lane, STEP_HEADER, r.call);
        }
    }
    __syncwarp();
    advance_record(p, r, 0);
}
// Adds one pack of every rank in rank order; `others` holds them in rank order without this one.
__device__ __forceinline__ Pack sum_in_rank_order(u32 rank, const Pack &own, const Pack *others) {
    float acc[ELEMENTS];
    unpack(pick(rank == 0, own, others[0]), acc);
#pragma unroll
    for (int s = 1; s < NRANKS; s++) {
        Pack after = pick((u32)s > rank, others[s - 1], others[s < NRANKS - 1 ? s : NRANKS - 2]);
        add_pack(acc, pick((u32)s == rank, own, after));
    }
    return pack(acc);
}
