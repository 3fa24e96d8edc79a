#!/usr/bin/env python3
"""Times an expert-parallel MoE layer of torch: NCCL all-to-all, grouped_mm, permutes and gather-and-sum, in graphs.

One process a GPU, one line of JSON a row. Shapes and routing are those of `draintile bench moe`, from the library's own
functions. The splits are known beforehand, so that nothing waits for the host. In turns, each after a 512 MB read and
an all-reduce of all GPUs: the layer, its compute alone (two grouped GEMMs and SiLU), the two grouped GEMMs alone, and
the two all-to-alls alone. A sample is the slowest rank's; medians count.

  torch_moe.py --library libdraintile.so --json FILE [--models A,B] [--routers A,B] [--tokens 128,8192] [--repeats 20]
"""
import argparse
import ctypes
import gc
import json
import os
import socket
import statistics
import sys
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch  # noqa: E402  (NCCL reads the variable)
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

ROUTERS = ["balanced", "skewed", "crossed"]
SAMPLED = 4  # tokens a rank whose output is compared with float64


class Shape(ctypes.Structure):
    """dt_moe_shape of draintile/moe_bench.h."""
    _fields_ = [("name", ctypes.c_char_p), ("hidden", ctypes.c_int64), ("intermediate", ctypes.c_int64),
                ("experts", ctypes.c_int32), ("top_k", ctypes.c_int32)]


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(os.path.abspath(path))
        self.c.dt_moe_shape_at.restype = ctypes.POINTER(Shape)

    def shapes(self):
        found, index = {}, 0
        while self.c.dt_moe_shape_at(index):
            shape = self.c.dt_moe_shape_at(index).contents
            found[shape.name.decode()] = shape
            index += 1
        return found

    def route(self, router, seed, ranks, shape, tokens):
        ids = torch.empty(ranks, tokens, shape.top_k, dtype=torch.int32)
        weights = torch.empty(ranks, tokens, shape.top_k, dtype=torch.float32)
        status = self.c.dt_moe_route(ROUTERS.index(router), ctypes.c_uint64(seed), ranks, shape.experts, shape.top_k,
                                     ctypes.c_int64(tokens), ctypes.c_void_p(ids.data_ptr()),
                                     ctypes.c_void_p(weights.data_ptr()))
        assert status == 0, f"dt_moe_route: {status}"
        return ids, weights


class Model:
    """The experts of this rank."""
    def __init__(self, shape, ranks):
        experts = shape.experts // ranks
        h, i = shape.hidden, shape.intermediate
        self.gate_up = torch.empty(experts, 2 * i, h, dtype=torch.bfloat16, device="cuda").normal_(0, h ** -0.5)
        self.down = torch.empty(experts, h, i, dtype=torch.bfloat16, device="cuda").normal_(0, i ** -0.5)


class Layer:
    """One row: fixed routing, buffers of its sizes, three graphs."""
    def __init__(self, model, shape, rank, ranks, ids, weights):
        self.model, self.rank, self.ranks = model, rank, ranks
        tokens, k, h, i = ids.shape[1], shape.top_k, shape.hidden, shape.intermediate
        per_rank = shape.experts // ranks
        counts = torch.stack([torch.bincount(ids[s].flatten().long(), minlength=shape.experts) for s in range(ranks)])
        own = counts[:, rank * per_rank:(rank + 1) * per_rank]  # [source][expert]
        self.in_splits = counts[rank].view(ranks, per_rank).sum(1).tolist()
        self.out_splits = own.sum(1).tolist()
        self.rows, slots = sum(self.out_splits), tokens * k
        order = ids[rank].flatten().long().argsort(stable=True)  # slots by expert, so by rank
        back = torch.empty_like(order)
        back[order] = torch.arange(slots)
        # received rows lie by (source, expert); experts want them by (expert, source)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), own.flatten().cumsum(0)[:-1]]).view(ranks, per_rank)
        sorted_rows = torch.cat([torch.arange(int(starts[s, e]), int(starts[s, e] + own[s, e]))
                                 for e in range(per_rank) for s in range(ranks)]) if self.rows else order[:0]
        unsorted = torch.empty_like(sorted_rows)
        unsorted[sorted_rows] = torch.arange(self.rows)
        self.send_token, self.row_of_slot = (order // k).cuda(), back.view(tokens, k).cuda()
        self.sorted_rows, self.unsorted = sorted_rows.cuda(), unsorted.cuda()
        self.ends = own.sum(0).cumsum(0).to(torch.int32).cuda()
        self.weights = weights[rank].to(torch.bfloat16).cuda()
        bf16 = dict(dtype=torch.bfloat16, device="cuda")
        self.x = torch.randn(tokens, h, **bf16)
        self.sent, self.back = torch.empty(slots, h, **bf16), torch.empty(slots, h, **bf16)
        self.received, self.permuted = torch.empty(self.rows, h, **bf16), torch.empty(self.rows, h, **bf16)
        self.returned = torch.empty(self.rows, h, **bf16)
        self.act = torch.empty(self.rows, i, **bf16)
        self.half = i
        self.first, self.second = torch.randn(self.rows, 2 * i, **bf16), None

    def gemms(self):
        torch._grouped_mm(self.permuted, self.model.gate_up.transpose(-2, -1), offs=self.ends)
        self.second = torch._grouped_mm(self.act, self.model.down.transpose(-2, -1), offs=self.ends)

    def compute(self):
        first = torch._grouped_mm(self.permuted, self.model.gate_up.transpose(-2, -1), offs=self.ends)
        gate, up = first[:, :self.half], first[:, self.half:]
        torch.mul(torch.nn.functional.silu(gate), up, out=self.act)
        self.second = torch._grouped_mm(self.act, self.model.down.transpose(-2, -1), offs=self.ends)

    def transfers(self):
        dist.all_to_all_single(self.received, self.sent, self.out_splits, self.in_splits)
        dist.all_to_all_single(self.back, self.returned, self.in_splits, self.out_splits)

    def layer(self):
        torch.index_select(self.x, 0, self.send_token, out=self.sent)
        dist.all_to_all_single(self.received, self.sent, self.out_splits, self.in_splits)
        torch.index_select(self.received, 0, self.sorted_rows, out=self.permuted)
        self.compute()
        torch.index_select(self.second, 0, self.unsorted, out=self.returned)
        dist.all_to_all_single(self.back, self.returned, self.in_splits, self.out_splits)
        self.out = torch.nn.functional.embedding_bag(self.row_of_slot, self.back, mode="sum",
                                                     per_sample_weights=self.weights)

    def error(self, ids, weights):
        """The largest relative error of sampled tokens of this rank; every rank adds its experts' share."""
        tokens, per_rank = self.x.shape[0], self.model.down.shape[0]
        sample = torch.linspace(0, tokens - 1, min(SAMPLED, tokens)).long()
        worst = 0.0
        for source in range(self.ranks):
            x = self.x[sample.cuda()].clone()
            dist.broadcast(x, source)
            y = torch.zeros(len(sample), x.shape[1], dtype=torch.float64, device="cuda")
            for j, token in enumerate(sample.tolist()):
                for expert, weight in zip(ids[source, token].tolist(), weights[source, token].tolist()):
                    if expert // per_rank != self.rank:
                        continue
                    both = self.model.gate_up[expert % per_rank].double() @ x[j].double()
                    act = torch.nn.functional.silu(both[:self.half]) * both[self.half:]
                    y[j] += weight * (self.model.down[expert % per_rank].double() @ act)
            dist.all_reduce(y)
            if source == self.rank:
                worst = float(((self.out[sample.cuda()].double() - y).norm(dim=1) / y.norm(dim=1)).max())
        return worst


def capture(function, pool):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        function()
    return graph


def measure(layer, arguments, flush, word, pool, ids, weights):
    methods = {"layer": layer.layer, "compute": layer.compute, "gemms": layer.gemms, "transfers": layer.transfers}
    graphs = {name: capture(function, pool) for name, function in methods.items()}
    layer.x.normal_()
    graphs["layer"].replay()
    torch.cuda.synchronize()
    error = layer.error(ids, weights)
    samples = {name: [] for name in methods}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for repeat in range(-arguments.warm_up, arguments.repeats):
        for name, graph in graphs.items():
            flush.sum()
            dist.all_reduce(word)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if repeat >= 0:
                samples[name].append(start.elapsed_time(stop) * 1e-3)
    figures = torch.tensor([samples[name] for name in methods] + [[error] * arguments.repeats],
                           dtype=torch.float64, device="cuda")
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    figures = figures.tolist()
    return {name: figures[i] for i, name in enumerate(methods)}, figures[-1][0]


def work(rank, arguments, port):
    ranks = arguments.ranks
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))
    torch.manual_seed(1000 + rank)
    library = Library(arguments.library)
    flush = torch.ones(128 << 20, dtype=torch.float32, device="cuda")
    word = torch.zeros(1, device="cuda")
    dist.all_reduce(word)
    out = open(arguments.json, "w") if rank == 0 else None
    if out:
        setting = {"schema": 1, "command": " ".join(os.path.basename(a) for a in sys.argv),
                   "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
                   "nccl": ".".join(map(str, torch.cuda.nccl.version())), "ranks": ranks,
                   "repeats": arguments.repeats, "seed": arguments.seed}
        print(json.dumps({"setting": setting}), file=out, flush=True)
    for name, shape in library.shapes().items():
        if arguments.models and name not in arguments.models.split(","):
            continue
        model = Model(shape, ranks)
        for router in arguments.routers.split(","):
            for tokens in map(int, arguments.tokens.split(",")):
                began = time.time()
                ids, weights = library.route(router, arguments.seed, ranks, shape, tokens)
                layer = Layer(model, shape, rank, ranks, ids, weights)
                pool = torch.cuda.graph_pool_handle()
                samples, error = measure(layer, arguments, flush, word, pool, ids, weights)
                row = {"model": name, "tokens": tokens, "router": router, "max_relative_error": error,
                       **{f"{m}_s": statistics.median(v) for m, v in samples.items()},
                       "layer_samples_s": samples["layer"]}
                if out:
                    print(json.dumps(row), file=out, flush=True)
                    print(name, router, tokens, *(f"{m} {statistics.median(v) * 1e6:.0f}" for m, v in samples.items()),
                          f"us, error {error:.1e}, took {time.time() - began:.2f} s", flush=True)
                del layer, pool
                gc.collect()
                torch.cuda.empty_cache()
        del model
        gc.collect()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default="")
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--tokens", default="128,512,1024,2048,4096,8192")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.start_processes(work, (arguments, port), nprocs=arguments.ranks, start_method="fork")


if __name__ == "__main__":
    main()
