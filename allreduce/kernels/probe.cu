// Probes of one link: what stores, loads and flags cost, and whether data arrives at all.

typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(16) Pack { u32 w[4]; };

__device__ __forceinline__ u64 clock_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ u32 load_word(u64 at) {
    u32 v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_word(u64 at, u32 v) {
    asm volatile("st.volatile.global.u32 [%0], %1;" :: "l"(at), "r"(v) : "memory");
}
// A value that depends on place and seed, so that a mirror or a stale copy does not pass.
__device__ __forceinline__ u32 expected(u64 index, u32 seed) {
    u64 x = (index + 1) * 0x9e3779b97f4a7c15ull ^ ((u64)seed << 32 | seed);
    return (u32)(x ^ (x >> 29));
}

extern "C" __global__ void nothing() {}

extern "C" __global__ void store_stream(u64 to, u64 packs, u32 seed) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride) {
        u32 v = expected(i, seed);
        asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(to + i * 16), "r"(v), "r"(v + 1), "r"(v + 2), "r"(v + 3) : "memory");
    }
}
// Counts wrong packs; run by the GPU that owns the memory.
extern "C" __global__ void check_stream(u64 from, u64 packs, u32 seed, u64 wrong) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride) {
        Pack v = *(const Pack *)(from + i * 16);
        u32 e = expected(i, seed);
        if (v.w[0] != e || v.w[1] != e + 1 || v.w[2] != e + 2 || v.w[3] != e + 3) atomicAdd((u32 *)wrong, 1u);
    }
}
extern "C" __global__ void load_stream(u64 from, u64 packs, u64 sink) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    u32 acc = 0;
#pragma unroll 4
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride) {
        Pack v;
        asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(from + i * 16));
        acc ^= v.w[0] ^ v.w[1] ^ v.w[2] ^ v.w[3];
    }
    if (acc == 0x12345679u) store_word(sink, acc);
}
// Each side stores a counter into the other's memory and waits for its own; `first` starts.
// result: rounds done, then total ns.
extern "C" __global__ void ping_pong(u64 theirs, u64 mine, u32 first, u32 rounds, u64 deadline_ns, u64 result) {
    u64 since = clock_ns(), began = 0;
    u32 round = 1;
    for (; round <= rounds; round++) {
        if (round == rounds / 10 + 1) began = clock_ns();  // the first tenth warms up
        if (first) store_word(theirs, round);
        u32 polls = 0;
        while (load_word(mine) != round)
            if ((++polls & 255) == 0 && clock_ns() - since > deadline_ns) goto out;
        if (!first) store_word(theirs, round);
    }
out:
    u64 ended = clock_ns();
    *(u64 *)result = round - 1;
    *(u64 *)(result + 8) = ended - began;
    __threadfence_system();
}
// Dependent loads, each one line further; result: total ns.
extern "C" __global__ void load_latency(u64 from, u32 loads, u32 lines, u64 result) {
    u32 at = 0;
    for (u32 i = 0; i < 64; i++) at = (at + 1 + load_word(from + (u64)at * 128)) % lines;
    u64 began = clock_ns();
    for (u32 i = 0; i < loads; i++) at = (at + 1 + load_word(from + (u64)at * 128)) % lines;
    u64 ended = clock_ns();
    *(u64 *)result = ended - began + (at == 0xffffffffu);
    __threadfence_system();
}
