#!/usr/bin/env python3
"""What others take for the same all-reduce, measured as `bench` does.

    torchrun --nproc-per-node 2 peers.py [--json FILE] [--only NAME,...]

PyTorch symmetric memory one-shot and two-shot, NCCL, and NCCL on registered symmetric windows;
bf16, inside replayed CUDA graphs, the slowest rank's median. NVLink multicast stays off.
"""

import argparse
import json
import os

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

SIZES = [1024, 4096, 14336, 57344, 131072, 262144, 524288, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
REPLAYS = 15


def calls_for(size):
    return 50 if size <= 1 << 20 else 20 if size <= 8 << 20 else 8 if size <= 32 << 20 else 4


def measure(size, queue):
    """Median and least time of one call in microseconds, the slowest rank's."""
    calls = calls_for(size)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            queue()
        side.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(calls):
                queue()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # brings the ranks together
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    times.sort()
    both = torch.tensor([times[len(times) // 2], times[0]], device="cuda", dtype=torch.float64)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return both.tolist()


def symmetric(op):
    def make(size, group):
        tensor = symm_mem.empty(size // 2, dtype=torch.bfloat16, device="cuda")
        symm_mem.rendezvous(tensor, group.group_name)
        tensor.fill_(0.5)
        if op == "one_shot":
            return lambda: torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group.group_name)
        return lambda: torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group.group_name)

    return make


def nccl(size, group):
    tensor = torch.full((size // 2,), 0.5, dtype=torch.bfloat16, device="cuda")
    return lambda: dist.all_reduce(tensor)


POOLS = []


def nccl_window(size, group):
    backend = group._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((size // 2,), 0.5, dtype=torch.bfloat16, device="cuda")
    backend.register_mem_pool(pool, symm=True)
    POOLS.append(pool)
    return lambda: dist.all_reduce(tensor)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--json")
    args.add_argument("--only")
    args = args.parse_args()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    group = dist.group.WORLD
    makers = {
        "symm-one-shot": symmetric("one_shot"),
        "symm-two-shot": symmetric("two_shot"),
        "nccl-torch": nccl,
        "nccl-window": nccl_window,
    }
    lines = []
    for name, make in makers.items():
        if args.only and name not in args.only.split(","):
            continue
        for size in SIZES:
            try:
                time_us, min_us = measure(size, make(size, group))
            except Exception as error:  # one peer missing must not lose the others
                if rank == 0:
                    print(f"{name} {size}: {type(error).__name__}: {error}", flush=True)
                break
            line = {"algorithm": name, "bytes": size, "ranks": dist.get_world_size(), "dtype": "bf16",
                    "mode": "processes", "nccl_p2p": "off" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "on",
                    "time_us": round(time_us, 3), "min_us": round(min_us, 3)}
            lines.append(json.dumps(line))
            if rank == 0:
                print(f"processes {name} {size} bytes: {time_us:.2f} us (min {min_us:.2f})", flush=True)
    if rank == 0 and args.json:
        with open(args.json, "w") as out:
            out.write("\n".join(lines) + "\n")
    torch.cuda.synchronize()
    os._exit(0)  # registered pools outlive the process group otherwise


main()
