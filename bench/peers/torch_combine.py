#!/usr/bin/env python3
"""Times what a user of torch has instead of the combine operator: torch._grouped_mm by expert, then an NCCL all-to-all
of the other ranks' rows; live and in a CUDA graph; and the reduction at the owner. One process a GPU; the slowest rank
counts.

    torch_combine.py --library libdraintile.so.0 --rows 16384,32768 --experts 4,64 --router balanced --json FILE

The counts are those of `draintile bench combine` (dt_combine_route). What favours this side: the rows of an owner
are sent as if they lay together (the permutation between the two steps is not timed), and own rows stay where they are.
"""
import argparse
import ctypes
import datetime
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUTERS = ("balanced", "moderate", "stress", "crossed")
WARM_UP = 3


def route(library, router, seed, ranks, experts, rows):
    """[source][global expert]."""
    c = ctypes.CDLL(library)
    c.dt_combine_route.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64,
                                   ctypes.c_void_p]
    counts = (ctypes.c_int32 * (ranks * ranks * experts))()
    status = c.dt_combine_route(ROUTERS.index(router), seed, ranks, experts, rows, counts)
    if status != 0:
        sys.exit(f"dt_combine_route: status {status}")
    return [list(counts[s * ranks * experts:(s + 1) * ranks * experts]) for s in range(ranks)]


class Timer:
    def __init__(self, rank, repeats):
        self.rank, self.repeats = rank, repeats
        self.flush = torch.ones(128 << 20, dtype=torch.float32, device="cuda")
        self.flag = torch.zeros(1, device="cuda")
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(self, methods):
        """The methods in turns. {name: seconds of the slowest rank, a sample each}."""
        times = torch.zeros(len(methods), self.repeats, dtype=torch.float64)
        for repeat in range(-WARM_UP, self.repeats):
            for i, launch in enumerate(methods.values()):
                dist.barrier(group=self.host)
                self.flush.sum()
                dist.all_reduce(self.flag)  # both GPUs are here
                self.start.record()
                launch()
                self.stop.record()
                self.stop.synchronize()
                if repeat >= 0:
                    times[i][repeat] = self.start.elapsed_time(self.stop) * 1e-3
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self.host)
        return {name: times[i].tolist() for i, name in enumerate(methods)}


def graph_of(launch):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph


def measure(timer, memory, counts, rank, ranks, n, k, experts):
    sizes = [sum(counts[s][rank * experts + e] for s in range(ranks)) for e in range(experts)]
    rows = sum(sizes)
    send = [0 if o == rank else sum(counts[o][rank * experts:(rank + 1) * experts]) for o in range(ranks)]
    receive = [0 if r == rank else sum(counts[rank][r * experts:(r + 1) * experts]) for r in range(ranks)]
    a = memory["a"][:rows * k].view(rows, k)
    b = memory["b"][:experts * n * k].view(experts, n, k).transpose(-2, -1)
    ends = torch.tensor(sizes, dtype=torch.int32, device="cuda").cumsum(0).to(torch.int32)
    owned = sum(counts[rank])
    buffer = memory["buffer"][:owned * n].view(owned, n)
    product = {}

    def gemm():
        product["out"] = torch._grouped_mm(a, b, offs=ends)

    def exchange():
        dist.all_to_all_single(buffer[:sum(receive)], product["out"][:sum(send)], receive, send)

    def both():
        gemm()
        exchange()

    at = torch.randperm(owned, device="cuda").view(-1, 2)
    weights = torch.rand(owned // 2, 2, device="cuda").to(torch.bfloat16)

    def reduce_sum():
        (buffer[at.view(-1)].view(-1, 2, n) * weights[:, :, None]).sum(1)

    gemm()
    expected = a[:sizes[0]].float() @ b[0].float() if sizes[0] and n * k < 1 << 26 else None
    if expected is not None:
        error = ((product["out"][:sizes[0]].float() - expected).norm() / expected.norm()).item()
        assert error < 8e-3, f"grouped_mm: relative error {error}"
    exchange()
    graph = graph_of(both)
    gemm()
    return timer.run({"gemm": gemm, "exchange": exchange, "grouped_live": both, "grouped_graph": graph.replay,
                      "reduce_gather_sum": reduce_sum})


def numbers(text):
    return [int(x) for x in text.split(",")]


def worker(rank, arguments, settings):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=arguments.ranks, device_id=torch.device("cuda", rank),
                            timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(1 + rank)
    timer = Timer(rank, arguments.repeats)
    timer.host = dist.new_group(backend="gloo")
    routed = [route(arguments.library, s["router"], arguments.seed, arguments.ranks, s["experts"], s["rows"])
              for s in settings]
    most = {"a": 0, "b": 0, "buffer": 0}
    for s, counts in zip(settings, routed):
        e = s["experts"]
        rows = max(sum(c[r * e + x] for c in counts for x in range(e)) for r in range(arguments.ranks))
        most["a"] = max(most["a"], rows * s["k"])
        most["b"] = max(most["b"], e * s["n"] * s["k"])
        most["buffer"] = max(most["buffer"], max(map(sum, counts)) * s["n"])
    memory = {name: torch.randn(size, dtype=torch.bfloat16, device="cuda") for name, size in most.items()}
    runs = []
    for s, counts in zip(settings, routed):
        samples = measure(timer, memory, counts, rank, arguments.ranks, s["n"], s["k"], s["experts"])
        medians = {name: statistics.median(values) for name, values in samples.items()}
        runs.append({**s, "seed": arguments.seed, "timings": [
            {"method": name, "median_s": medians[name], "samples_s": values} for name, values in samples.items()]})
        if rank == 0:
            print(*s.values(), *(f"{name} {value * 1e6:.1f}" for name, value in medians.items()), flush=True)
    if rank == 0:
        result = {"schema": "draintile-peer-torch-combine", "version": 1,
                  "command": " ".join(os.path.basename(a) for a in sys.argv),
                  "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
                  "nccl": ".".join(map(str, torch.cuda.nccl.version())), "ranks": arguments.ranks,
                  "repeat": arguments.repeats, "runs": runs}
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=numbers, default=[16384])
    parser.add_argument("--n", type=numbers, default=[8192])
    parser.add_argument("--k", type=numbers, default=[2048])
    parser.add_argument("--experts", type=numbers, default=[8])
    parser.add_argument("--router", default="balanced")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    settings = [{"rows": m, "n": n, "k": k, "experts": e, "router": r} for n in arguments.n for k in arguments.k
                for e in arguments.experts for m in arguments.rows for r in arguments.router.split(",")]
    mp.spawn(worker, (arguments, settings), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
