//! NCCL, link tests, drivers.

use super::Is::{N, No, T};
use super::{Form, check};

const NCCL: &[Form] = &[
    (
        "nccl-tests of 2019: an error column, no root",
        "# nThread 1 nGpus 4 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n\
         #\n# Using devices\n\
         #   Rank  0 Pid  25342 on host device  0 [0x07] Tesla V100-SXM2-16GB\n\
         #   Rank  1 Pid  25342 on host device  1 [0x0a] Tesla V100-SXM2-16GB\n\
         #   Rank  2 Pid  25342 on host device  2 [0x0b] Tesla V100-SXM2-16GB\n\
         #   Rank  3 Pid  25342 on host device  3 [0x85] Tesla V100-SXM2-16GB\n\
         #       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n\
         #        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
         \x20      65536         16384   float     sum    33.07    1.98    2.97  4e-07    32.44    2.02    3.03  1e-07\n\
         \x20  134217728      33554432   float     sum   1547.0   86.76  130.14  5e-07   1545.0   86.87  130.31  5e-07\n\
         # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 66.6125\n",
        &[
            ("ranks", N(4.0)),
            ("gpu", T("Tesla V100-SXM2-16GB")),
            ("op", T("all_reduce")),
            ("avg_busbw_gb_s", N(66.6125)),
            ("decode_size_time_us", N(33.07)),
            ("max_busbw_gb_s", N(130.14)),
        ],
    ),
    (
        "nccl-tests of 2026",
        "# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003\n\
         # Collective test starting: all_reduce_perf\n\
         # nThread 1 nGpus 2 minBytes 1024 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg \
         iters: 1 validation: 1 graph: 0 unalign: 0\n\
         # Using devices\n\
         #  Rank  0 Group  0 Pid    653 on box device  0 [0000:06:00] NVIDIA RTX 6000D\n\
         #  Rank  1 Group  0 Pid    653 on box device  1 [0000:09:00] NVIDIA RTX 6000D\n\
         #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   \
         busbw  #wrong\n\
         \x20       65536         16384     float     sum      -1    21.50    3.05    3.05       0    21.30    3.08    \
         3.08       0\n\
         # Avg bus bandwidth    : 3.05\n# Collective test concluded: all_reduce_perf\n",
        &[
            ("ranks", N(2.0)),
            ("op", T("all_reduce")),
            ("nccl_version", T("2.30.3")),
            ("decode_size_time_us", N(21.5)),
        ],
    ),
    (
        "NCCL 2.4 to 2.8: paths without connection numbers",
        "h:1:2 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC\n\
         h:1:2 [0] NCCL INFO Channel 01 : 0[1b000] -> 1[1c000] via direct shared memory\n\
         h:1:2 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n",
        &[
            ("nccl_p2p_links", N(1.0)),
            ("nccl_shm_links", N(1.0)),
            ("ranks", N(2.0)),
            ("nccl_channels", N(2.0)),
        ],
    ),
    (
        "NCCL of today",
        "h:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n\
         h:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL\n\
         h:1:2 [0] NCCL INFO Using network Socket\n\
         h:1:2 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with \
         NCCL_IGNORE_DISABLED_P2P=1.\n\
         h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n\
         h:1:2 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via SHM/direct/direct\n\
         h:1:2 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels \
         per peer\n\
         h:1:2 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}\n\
         h:1:2 [0] NCCL INFO AllReduce: 57344 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}\n\
         h:1:2 [0] NCCL INFO AllGather: 65536 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}\n",
        &[
            ("nccl_version", T("2.28.9+cuda13.0")),
            ("nccl_proto", T("LL")),
            ("nccl_network", T("Socket")),
            ("p2p", T("off")),
            ("nccl_shm_links", N(2.0)),
            ("nccl_p2p_links", No),
            ("nccl_channels", N(4.0)),
            ("nccl_choice", T("ring-ll")),
            ("nccl_choice_bytes", N(57344.0)),
        ],
    ),
    (
        "NCCL to 2.22 names choices by number",
        "h:1:2 [0] NCCL INFO 57344 Bytes -> Algo 1 proto 0 time 24.500000\n",
        &[("nccl_choice", T("ring-ll"))],
    ),
    (
        "NVLS and IB beside P2P",
        "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n\
         h:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA\n\
         h:1:2 [0] NCCL INFO 16 coll channels, 16 nvls channels, 16 p2p channels, 16 p2p channels per peer\n",
        &[
            ("nccl_p2p_links", N(1.0)),
            ("nccl_net_links", N(1.0)),
            ("nccl_channels", N(16.0)),
        ],
    ),
];

const ENGINES: &[Form] = &[
    (
        "why the engines' own all-reduce is off",
        "[2026-03-03 11:06:07 TP0] Load weight begin. avail mem=94.00 GB\n\
         [2026-03-03 11:06:07 TP0] Custom allreduce is disabled because this process group spans across nodes.\n",
        &[(
            "custom_all_reduce_disabled",
            T("this process group spans across nodes"),
        )],
    ),
    (
        "the same for a count of cards it has no kernel for",
        "INFO 07-13 03:43:30 model_runner.py:1097] Loading model weights took 14.9888 GB\n\
         WARNING 07-13 03:43:42 custom_all_reduce.py:129] Custom allreduce is disabled due to an unsupported \
         world size: 3. Supported world sizes: [2, 4, 6, 8].\n",
        &[(
            "custom_all_reduce_disabled",
            T("an unsupported world size: 3"),
        )],
    ),
    (
        "the engine's own all-reduce forced over PCIe, and up to which size",
        "INFO 05-15 03:31:18 model_runner.py:1097] Loading model weights took 14.9888 GB\n\
         INFO 05-15 03:31:20 [custom_all_reduce.py:355] PCIe custom allreduce enabled via \
         VLLM_ENABLE_PCIE_ALLREDUCE=1 (backend=cpp, using vLLM C++ custom allreduce).\n\
         INFO 05-15 03:31:20 [custom_all_reduce.py:490] Using dynamic C++ custom allreduce cutoff \
         (cutoff=57344 bytes, ignore_cutoff_max_rows=8).\n",
        &[
            ("custom_all_reduce", T("pcie")),
            ("custom_all_reduce_max_bytes", N(57344.0)),
            ("custom_all_reduce_max_rows", N(8.0)),
        ],
    ),
];

const LINKS: &[Form] = &[
    (
        "p2pBandwidthLatencyTest on two cards whose P2P is denied",
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n\
         Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0\n\
         Device: 1, NVIDIA GeForce RTX 4090, pciBusID: 2, pciDeviceID: 0, pciDomainID:0\n\
         Device=0 CANNOT Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n\
         P2P Connectivity Matrix\n     D\\D     0     1\n     0       1     0\n     1       0     1\n\
         Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D     0      1 \n     0 909.49  21.73 \n     1  \
         22.61 921.83 \n\
         Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1 \n     0 902.14  \
         20.91 \n     1  22.36 922.92 \n",
        &[
            ("p2p", T("off")),
            ("gpus", N(2.0)),
            ("gpu", T("NVIDIA GeForce RTX 4090")),
            ("unidirectional_gb_s", N(21.635)),
            ("unidirectional_without_p2p_gb_s", N(22.17)),
        ],
    ),
    (
        "nvbandwidth 0.10",
        "nvbandwidth Version: v0.10.0\nCUDA Runtime Version: 13.2 (13020)\nDriver Version: 595.71.05\n\
         Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         \
         1\n 0     55.37     55.35\n\nSUM host_to_device_memcpy_ce 110.72\n\
         COEFFICIENT_OF_VARIATION host_to_device_memcpy_ce 0.00\n\
         Running device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         \
         1\n 0       N/A     53.10\n 1     53.30       N/A\n",
        &[
            ("h2d_gb_s", N(55.36)),
            ("d2d_read_gb_s", N(53.2)),
            ("gpus", N(2.0)),
        ],
    ),
    (
        "nvidia-smi dmon",
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk\n\
         # Idx      W      C      C      %      %      %      %    MHz    MHz\n\
         \x20   0     55     40      -      0      0      0      0    405    210\n\
         \x20   1     57     41      -     98     60      0      0   9501   2520\n\
         \x20   0     55     40      -      0      0      0      0    405    210\n",
        &[("gpus", N(2.0))],
    ),
];

#[test]
fn nccl_and_its_tests_print_paths_channels_and_choices_in_these_forms() {
    check(NCCL);
}

#[test]
fn engines_say_why_their_own_all_reduce_is_off_in_these_forms() {
    check(ENGINES);
}

#[test]
fn link_tests_and_drivers_print_theirs_in_these_forms() {
    check(LINKS);
}
