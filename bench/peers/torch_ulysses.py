#!/usr/bin/env python3
"""Times Ulysses attention as libraries do it on two or more GPUs: pack, all-to-all of q, k, v (NCCL), cuDNN attention,
all-to-all of the output, unpack; each part alone, the whole live and replayed from a CUDA graph, and one GPU's cuDNN
attention over all heads.

Rank r holds q, k, v [rows][heads][dim] of its block of the sequence. They are packed to [peer][rows][3][heads a
rank][dim], so that what arrives, [tokens][3][heads a rank][dim], is read by cuDNN in place. Times are those of the
slowest rank, between two events, behind a kernel that keeps the queue full and an all-reduce that aligns the ranks;
all candidates take turns on the same data.

  torch_ulysses.py --json FILE [--ranks 2] [--shapes flux,sd35] [--repeats 20] [--seconds 2]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# name: heads, head dim, image tokens, text tokens; the names of `draintile bench attention`
SHAPES = {
    "flux": (24, 128, 4096, 512), "qwen-image": (24, 128, 4096, 126), "sd35": (38, 64, 4096, 333),
    "ltx": (32, 64, 6144, 0), "z-image": (30, 128, 4096, 256), "qwen-image-large": (24, 128, 6889, 126),
    "flux2": (48, 128, 16384, 512), "cogvideox": (48, 64, 17550, 226), "wan-1.3b": (12, 128, 32760, 0),
    "wan-480p": (40, 128, 32760, 0), "ltx-long": (32, 64, 37632, 0), "wan-720p": (40, 128, 75600, 0),
    "hunyuan": (24, 128, 118800, 256),
}
SPIN_CYCLES = 300_000  # about 0.2 ms: with the flush, while the host queues what is timed


def smi(fields):
    out = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True,
                         text=True)
    return out.stdout.strip().splitlines()


class Ulysses:
    """One rank's buffers and the five parts."""

    def __init__(self, rank, ranks, shape):
        heads, dim, image, text = shape
        self.tokens, self.heads, self.dim, self.ranks = image + text, heads, dim, ranks
        self.share = heads // ranks
        assert heads % ranks == 0, f"{heads} heads on {ranks} ranks"
        base, extra = divmod(self.tokens, ranks)
        self.all_rows = [base + (r < extra) for r in range(ranks)]
        self.rows = self.all_rows[rank]
        make = lambda *size: torch.randn(*size, dtype=torch.bfloat16, device="cuda")
        self.q, self.k, self.v = (make(self.rows, heads, dim) for _ in range(3))
        self.packed = torch.empty(ranks, self.rows, 3, self.share, dim, dtype=torch.bfloat16, device="cuda")
        self.arrived = torch.empty(self.tokens, 3, self.share, dim, dtype=torch.bfloat16, device="cuda")
        self.returned = torch.empty(ranks, self.rows, self.share, dim, dtype=torch.bfloat16, device="cuda")
        self.out = torch.empty(self.rows, heads, dim, dtype=torch.bfloat16, device="cuda")
        self.attended = None

    def pack(self):
        for i, t in enumerate((self.q, self.k, self.v)):
            self.packed[:, :, i].copy_(t.view(self.rows, self.ranks, self.share, self.dim).transpose(0, 1))

    def send(self):
        each = 3 * self.share * self.dim
        dist.all_to_all_single(self.arrived.view(-1), self.packed.view(-1), [r * each for r in self.all_rows],
                               [self.rows * each] * self.ranks)

    def attend(self):
        q, k, v = (self.arrived[:, i].transpose(0, 1).unsqueeze(0) for i in range(3))
        out = scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        self.attended = out if out.is_contiguous() else out.contiguous()

    def give_back(self):
        each = self.share * self.dim
        dist.all_to_all_single(self.returned.view(-1), self.attended.view(-1), [self.rows * each] * self.ranks,
                               [r * each for r in self.all_rows])

    def unpack(self):
        self.out.view(self.rows, self.ranks, self.share, self.dim).copy_(self.returned.transpose(0, 1))

    def whole(self):
        self.pack()
        self.send()
        self.attend()
        self.give_back()
        self.unpack()


def sample(call, align, events):
    """The cache is evicted before each."""
    word, flush = align
    torch.cuda._sleep(SPIN_CYCLES)
    flush.sum()
    dist.all_reduce(word)
    events[0].record()
    call()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) * 1e-3


def slowest(samples):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, samples)
    return [max(values) for values in zip(*every)]


def check(u):
    """Sampled output rows against float64 of the gathered inputs."""
    gathered = []
    for t in (u.q, u.k, u.v):
        parts = [torch.empty(r, u.heads, u.dim, dtype=t.dtype, device="cuda") for r in u.all_rows]
        dist.all_gather(parts, t)
        gathered.append(torch.cat(parts))
    _, k, v = gathered
    worst = 0.0
    for row in (0, u.rows // 2, u.rows - 1):
        for head in (0, u.heads - 1):
            scores = (k[:, head].double() @ u.q[row, head].double()) / u.dim**0.5
            expected = torch.softmax(scores, 0) @ v[:, head].double()
            error = float((u.out[row, head].double() - expected).norm() / expected.norm())
            worst = max(worst, error) if error == error else float("inf")
    return worst


def graphed(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure(rank, ranks, name, arguments, align):
    shape = SHAPES[name]
    u = Ulysses(rank, ranks, shape)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    u.whole()
    u.out.fill_(float("nan"))
    u.whole()
    error = max(slowest([check(u)]))
    assert error < 8e-3, f"{name}: relative error {error}"
    # Parts from graphs too: a slow host then adds nothing to what a part takes.
    candidates = {"pack": graphed(u.pack), "qkv_all_to_all": graphed(u.send), "attention": graphed(u.attend),
                  "out_all_to_all": graphed(u.give_back), "unpack": graphed(u.unpack), "whole": u.whole,
                  "whole_graph": graphed(u.whole)}
    big = None
    if arguments.one_gpu:
        q, k, v = (torch.randn(1, u.tokens, u.heads, u.dim, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
                   for _ in range(3))
        big = lambda: scaled_dot_product_attention(q, k, v)
        big()
        candidates["one_gpu"] = graphed(big)  # every rank runs it, as a GPU by itself would
    guess = max(slowest([sample(u.whole, align, events)]))
    repeats = int(min(arguments.repeats, max(5, arguments.seconds / (5 * guess))))
    samples = {c: [] for c in candidates}
    for i in range(repeats + 2):
        for c, call in candidates.items():
            seconds = sample(call, align, events)
            if i >= 2:
                samples[c].append(seconds)
    samples = {c: slowest(values) for c, values in samples.items()}
    median = {c: statistics.median(values) for c, values in samples.items()}
    flops = 4 * u.tokens**2 * u.share * u.dim
    return {"shape": name, "heads": u.heads, "head_dim": u.dim, "tokens": u.tokens, "text_tokens": shape[3],
            "repeats": repeats, "max_relative_error": error, "attention_flop_per_s": flops / median["attention"],
            "library_s": median["attention"] + median["out_all_to_all"] + median["unpack"],
            "median_s": median, "samples_s": samples}


def write(arguments, rows):
    version = ".".join(map(str, torch.cuda.nccl.version()))
    result = {"schema": "draintile-torch-ulysses", "version": 1,
              "command": " ".join(os.path.basename(a) for a in sys.argv),
              "commit": arguments.commit, "devices": smi("name"), "driver": smi("driver_version")[0],
              "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
              "nccl": version, "sm_clock": smi("clocks.sm"), "sm_clock_max": smi("clocks.max.sm"),
              "ranks": arguments.ranks, "rows": rows}
    with open(arguments.json, "w") as file:
        json.dump(result, file, indent=1)


def run(rank, ranks, arguments, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    torch.manual_seed(1 + rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    align = torch.ones(1, device="cuda"), torch.ones(128 << 20, dtype=torch.float32, device="cuda")
    rows = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
        for name in arguments.shapes.split(","):
            rows.append(measure(rank, ranks, name, arguments, align))
            torch.cuda.empty_cache()
            if rank == 0:
                text = " ".join(f"{c} {s * 1e6:.1f}" for c, s in rows[-1]["median_s"].items())
                print(name, text, f"us; {rows[-1]['attention_flop_per_s'] * 1e-12:.0f} TFLOP/s", flush=True)
                write(arguments, rows)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=20, help="samples of each candidate, at most")
    parser.add_argument("--seconds", type=float, default=6, help="of a shape, about; at least 5 samples are taken")
    parser.add_argument("--no-one-gpu", dest="one_gpu", action="store_false")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    if torch.cuda.device_count() < arguments.ranks:
        print(f"skipped: {arguments.ranks} GPUs needed")
        sys.exit(77)
    mp.spawn(run, (arguments.ranks, arguments, 29400 + os.getpid() % 500), arguments.ranks)


if __name__ == "__main__":
    main()
