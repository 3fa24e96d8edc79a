#!/usr/bin/env python3
"""Times our attention kernel against torch's cuDNN SDPA on the same inputs, in one job.

Candidates run in turn: before each launch a 512 MB read leaves the cache cold and keeps the queue full; the median of
the repeats counts. Ours reads and writes [tokens][heads][D]; cuDNN gets [1, heads, tokens, D], contiguous. Both are
held against float64 on sampled rows, on the CPU.

  torch_attention.py --library libdraintile.so --json FILE [--repeats 20]
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Owner(ctypes.Structure):
    """dt_cuda_attention_owner."""
    _fields_ = [("first", ctypes.c_int64), ("rows", ctypes.c_int64), ("out", ctypes.c_void_p),
                ("row_stride", ctypes.c_int64), ("remote", ctypes.c_int32), ("away", ctypes.c_int32)]


class Attention(ctypes.Structure):
    """dt_cuda_attention of draintile/cuda_attention.h."""
    _fields_ = [("size", ctypes.c_size_t), ("q", ctypes.c_void_p), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p),
                ("q_row_stride", ctypes.c_int64), ("kv_row_stride", ctypes.c_int64), ("dtype", ctypes.c_int),
                ("tokens", ctypes.c_int64), ("kv_tokens", ctypes.c_int64), ("heads", ctypes.c_int32),
                ("kv_heads", ctypes.c_int32), ("head_to_kv", ctypes.c_void_p), ("head_dim", ctypes.c_int32),
                ("causal", ctypes.c_int32), ("scale", ctypes.c_float), ("owners", Owner * 16),
                ("owners_count", ctypes.c_int32), ("arrived", ctypes.c_void_p), ("arrived_target", ctypes.c_uint32),
                ("arrived_target_from", ctypes.c_void_p), ("arrived_gates_stores", ctypes.c_int32),
                ("lead_rows", ctypes.c_int64), ("lead_heads", ctypes.c_int32), ("paced", ctypes.c_int32),
                ("sms", ctypes.c_int32), ("timeout_s", ctypes.c_double)]


# name, heads, head_dim, tokens, causal, dtype. Two GPUs have half of a model's heads each.
SHAPES = [("FLUX.1, half of the heads", 12, 128, 4608, 0, "bf16"), ("D128, S 16384", 12, 128, 16384, 0, "bf16"),
          ("Qwen-Image, half of the heads", 12, 128, 4222, 0, "bf16"), ("FLUX.1", 24, 128, 4608, 0, "bf16"),
          ("Z-Image, half of the heads", 15, 128, 4352, 0, "bf16"),
          ("Z-Image", 30, 128, 4224, 0, "bf16"), ("Wan-1.3B", 12, 128, 32760, 0, "bf16"),
          ("SD3.5-L, half of the heads", 19, 64, 4429, 0, "bf16"), ("LTX, half of the heads", 16, 64, 6144, 0, "bf16"),
          ("CogVideoX-5B, half of the heads", 24, 64, 17776, 0, "bf16"), ("D128 causal", 12, 128, 8192, 1, "bf16"),
          ("D128 causal", 12, 128, 16384, 1, "bf16"), ("D64 causal", 16, 64, 8192, 1, "bf16"),
          ("D256", 8, 256, 8192, 0, "bf16"), ("D256 causal", 8, 256, 8192, 1, "bf16"),
          ("fp16", 12, 128, 8192, 0, "fp16")]


def smi(fields):
    out = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True,
                         text=True)
    return out.stdout.strip().split("\n")[0]


class Ours:
    def __init__(self, library):
        self.c = ctypes.CDLL(library)
        self.c.dt_error_detail.restype = ctypes.c_char_p
        self.workspace = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")

    def must(self, status):
        if status != 0:
            sys.exit(f"status {status}: {self.c.dt_error_detail().decode()}")

    def prepare(self, q, k, v, out, causal):
        a = Attention()
        self.c.dt_cuda_attention_init(ctypes.byref(a))
        assert a.size == ctypes.sizeof(Attention)
        a.q, a.k, a.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        a.tokens, a.heads, a.head_dim = q.shape
        a.kv_tokens, a.kv_heads = k.shape[0], k.shape[1]
        a.dtype, a.causal, a.owners_count = (1 if q.dtype == torch.bfloat16 else 2), causal, 1
        a.owners[0] = Owner(0, a.tokens, out.data_ptr(), a.heads * a.head_dim, 0)
        need = ctypes.c_size_t()
        self.must(self.c.dt_cuda_attention_workspace(ctypes.byref(a), ctypes.byref(need)))
        assert need.value <= self.workspace.numel()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        memory = ctypes.c_void_p(self.workspace.data_ptr())
        return lambda: self.must(self.c.dt_cuda_attention_forward(ctypes.byref(a), memory, stream))

    def check(self):
        self.must(self.c.dt_cuda_attention_check(ctypes.c_void_p(self.workspace.data_ptr()),
                                                 ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))


class Reference:
    """64 rows of three heads in float64, on the CPU."""

    def __init__(self, q, k, v, causal):
        tokens, heads, dim = q.shape
        self.rows = torch.linspace(0, tokens - 1, 64).long()
        self.heads = {}
        for h in {0, heads // 2, heads - 1}:
            one_q, one_k, one_v = (x[:, h].cpu().double() for x in (q, k, v))
            s = one_q[self.rows] @ one_k.t() / math.sqrt(dim)
            if causal:
                s.masked_fill_(torch.arange(tokens)[None, :] > self.rows[:, None], float("-inf"))
            self.heads[h] = s.softmax(-1) @ one_v

    def error(self, out):
        """Largest relative error of these rows of out [tokens][heads][D]; infinite where one is no number."""
        worst = 0.0
        for h, y in self.heads.items():
            e = ((out[:, h].cpu()[self.rows].double() - y).norm(dim=-1) / y.norm(dim=-1)).max().item()
            worst = max(worst, e) if e == e else float("inf")
        return worst


def measure(ours, shape, repeats, flush):
    name, heads, dim, tokens, causal, dtype = shape
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    q, k, v = (torch.randn(tokens, heads, dim, dtype=kind, device="cuda") for _ in range(3))
    out = torch.full_like(q, float("nan"))
    tq, tk, tv = (x.transpose(0, 1).contiguous()[None] for x in (q, k, v))

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(tq, tk, tv, is_causal=bool(causal))

    candidates = {"draintile": ours.prepare(q, k, v, out, causal)}
    reference = Reference(q, k, v, causal)
    errors = {}
    for candidate, launch in candidates.items():
        out.fill_(float("nan"))
        launch()
        ours.check()
        assert not bool(out.isnan().any()), f"{name} {candidate}: rows are missing"
        errors[candidate] = reference.error(out)
    candidates["cudnn"] = cudnn
    errors["cudnn"] = reference.error(cudnn()[0].transpose(0, 1))
    samples = {c: [] for c in candidates}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for repeat in range(repeats + 3):
        for candidate, launch in candidates.items():
            flush.sum()
            start.record()
            launch()
            stop.record()
            stop.synchronize()
            if repeat >= 3:
                samples[candidate].append(start.elapsed_time(stop) * 1e-3)
    flops = 4 * tokens * tokens * heads * dim * (0.5 if causal else 1)
    median = {c: statistics.median(x) for c, x in samples.items()}
    return {"name": name, "heads": heads, "head_dim": dim, "tokens": tokens, "causal": causal, "dtype": dtype,
            "over_cudnn": median["cudnn"] / median["draintile"],
            "error_over_torch": errors["draintile"] / errors["cudnn"],
            "candidates": [{"name": c, "median_s": median[c], "flop_per_s": flops / median[c],
                            "max_relative_error": errors[c], "samples_s": samples[c]} for c in candidates]}


def summarize(records):
    least = lambda keep: min((r["over_cudnn"] for r in records if keep(r)), default=None)
    return {"kernel_over_cudnn_min_d128": least(lambda r: r["head_dim"] == 128 and not r["causal"]
                                                and r["tokens"] >= 4096),
            "kernel_over_cudnn_min_d64": least(lambda r: r["head_dim"] == 64 and not r["causal"]),
            "kernel_over_cudnn_min_causal": least(lambda r: r["causal"]),
            "kernel_over_cudnn_min_d256": least(lambda r: r["head_dim"] == 256),
            "max_error_over_torch": max(r["error_over_torch"] for r in records)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    ours, flush = Ours(arguments.library), torch.ones(128 << 20, dtype=torch.float32, device="cuda")
    records = []
    for shape in SHAPES:
        records.append(measure(ours, shape, arguments.repeats, flush))
        r = records[-1]
        print(*shape, f"over cuDNN {r['over_cudnn']:.3f}, error {r['error_over_torch']:.3f};",
              *(f"{c['name']} {c['median_s'] * 1e6:.1f} us {c['flop_per_s'] * 1e-12:.0f};" for c in r["candidates"]),
              flush=True)
        result = {"schema": 1, "command": " ".join(os.path.basename(a) for a in sys.argv), "commit": arguments.commit,
                  "device": smi("name"),
                  "driver": smi("driver_version"), "torch": torch.__version__, "cuda": torch.version.cuda,
                  "sm_clock": smi("clocks.sm"), "repeats": arguments.repeats, "summary": summarize(records),
                  "shapes": records}
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
