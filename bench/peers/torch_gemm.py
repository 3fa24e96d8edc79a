#!/usr/bin/env python3
"""Times our grouped GEMM against torch's grouped_mm, cuBLAS's grouped GEMM and cuBLAS dense, in one job.

All candidates run in turn on the same operands: launches are spaced, a 512 MB read goes before each one so that the
cache is cold and the queue is full, and the median of the repeats counts. Results are compared bit by bit with one
cuBLAS GEMM an expert.

  torch_gemm.py --library libdraintile.so --json FILE [--repeats 20] [--quick]
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import sys
import time

import torch


class Gemm(ctypes.Structure):
    """dt_cuda_gemm of draintile/gemm.h."""
    _fields_ = [("size", ctypes.c_size_t), ("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("out", ctypes.c_void_p),
                ("counts", ctypes.c_void_p), ("experts", ctypes.c_int32), ("rows_max", ctypes.c_int64),
                ("n", ctypes.c_int64), ("k", ctypes.c_int64), ("row_target", ctypes.c_void_p),
                ("owners", ctypes.c_int32), ("owner_out", ctypes.c_void_p * 8), ("owner_rows", ctypes.c_int64 * 8),
                ("ready", ctypes.c_void_p), ("order", ctypes.c_int32), ("paced_units", ctypes.c_int32),
                ("remote_rows", ctypes.c_void_p), ("raster_bands", ctypes.c_int32), ("tensor_stores", ctypes.c_int32),
                ("sms", ctypes.c_int32), ("link_k", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("timeout_s", ctypes.c_double)]


class Ours:
    def __init__(self, library):
        self.c = ctypes.CDLL(library)
        self.c.dt_error_detail.restype = ctypes.c_char_p
        for name in ("dt_cuda_grouped_gemm", "dt_cuda_gemm_check"):
            getattr(self.c, name).argtypes = None
        self.workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

    def must(self, status):
        if status != 0:
            sys.exit(f"status {status}: {self.c.dt_error_detail().decode()}")

    def prepare(self, a, b, out, counts, **options):
        gemm = Gemm()
        self.c.dt_cuda_gemm_init(ctypes.byref(gemm))
        assert gemm.size == ctypes.sizeof(Gemm), "dt_cuda_gemm has other fields than Gemm"
        gemm.a, gemm.b, gemm.out, gemm.counts = a.data_ptr(), b.data_ptr(), out.data_ptr(), counts.data_ptr()
        gemm.experts, gemm.rows_max, gemm.n, gemm.k = b.shape[0], a.shape[0], b.shape[1], a.shape[1]
        for name, value in options.items():
            setattr(gemm, name, value)
        need = ctypes.c_size_t()
        self.must(self.c.dt_cuda_gemm_workspace(ctypes.byref(gemm), ctypes.byref(need)))
        assert need.value <= self.workspace.numel()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        memory = ctypes.c_void_p(self.workspace.data_ptr())
        return lambda: self.must(self.c.dt_cuda_grouped_gemm(ctypes.byref(gemm), memory, stream))

    def check(self):
        self.must(self.c.dt_cuda_gemm_check(ctypes.c_void_p(self.workspace.data_ptr()),
                                            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))


def cublas_grouped(a, b, out, sizes):
    """cublasGemmGroupedBatchedEx of the library that torch has loaded; None where it is not there."""
    try:
        c = ctypes.CDLL("libcublas.so.13")
        call = c.cublasGemmGroupedBatchedEx
    except (OSError, AttributeError):
        return None
    n, k = b.shape[1], b.shape[2]
    groups = [(e, r) for e, r in enumerate(sizes) if r > 0]
    first = [sum(sizes[:e]) for e, _ in groups]
    count = len(groups)
    ints = lambda values: (ctypes.c_int * count)(*values)
    pointers = torch.tensor([[b.data_ptr() + e * n * k * 2 for e, _ in groups],
                             [a.data_ptr() + f * k * 2 for f in first],
                             [out.data_ptr() + f * n * 2 for f in first]], dtype=torch.int64).cuda()
    p = [ctypes.c_void_p(pointers.data_ptr() + i * count * 8) for i in range(3)]
    m_of, n_of, k_of, one = ints([n] * count), ints([r for _, r in groups]), ints([k] * count), ints([1] * count)
    t, plain = ints([1] * count), ints([0] * count)
    alpha, beta = (ctypes.c_float * count)(*[1.0] * count), (ctypes.c_float * count)(*[0.0] * count)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    bf16, compute = 14, 68  # CUDA_R_16BF, CUBLAS_COMPUTE_32F

    def launch(keep=pointers):
        status = call(handle, t, plain, m_of, n_of, k_of, alpha, p[0], bf16, k_of, p[1], bf16, k_of, beta, p[2], bf16,
                      m_of, count, one, compute)
        assert status == 0, f"cublasGemmGroupedBatchedEx: {status}"
    return launch


def group_sizes(kind, rows, experts):
    generator = torch.Generator().manual_seed(77)
    if kind == "even":
        weights = torch.ones(experts)
    elif kind == "uniform":
        weights = torch.rand(experts, generator=generator)
    else:  # zipf: rank^-0.5, shuffled
        weights = torch.arange(1, experts + 1).float().pow(-0.5)[torch.randperm(experts, generator=generator)]
    ends = (weights.double().cumsum(0) / weights.double().sum() * rows).round().long()
    ends[-1] = rows
    return torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long)).tolist()


def shapes(quick):
    if quick:
        return [(16384, 8192, 2048, 8, "even"), (16384, 8192, 2048, 64, "even"), (16384, 8192, 2048, 64, "uniform"),
                (16384, 8192, 2048, 64, "zipf"), (32768, 8192, 2048, 4, "even"), (16384, 2048, 512, 8, "even"),
                (16384, 2048, 768, 64, "even"), (16384, 7168, 512, 64, "even"), (16384, 4096, 1024, 8, "even"),
                (16384, 4096, 7168, 8, "even")]
    grid = [(m, 8192, 2048, e, "even") for m in (16384, 32768) for e in (4, 8, 16, 32, 64)]
    grid += [(m, 8192, 2048, 64, kind) for m in (16384, 32768) for kind in ("uniform", "zipf")]
    grid += [(16384, n, k, e, "even") for n in (7168, 4096, 2048) for k in (512, 768, 1024, 1536) for e in (8, 64)]
    return grid + [(16384, 4096, 7168, e, "even") for e in (8, 64)]


DEVICE = {}


class Card:
    """The device in use, through NVML: nvidia-smi takes longer than most shapes."""
    SM = 1  # NVML_CLOCK_SM

    def __init__(self):
        self.c, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.c.nvmlInit_v2()
        uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
        status = self.c.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.handle))
        assert status == 0, f"nvmlDeviceGetHandleByUUID: {status}"

    def clock(self, call="nvmlDeviceGetClockInfo"):
        mhz = ctypes.c_uint()
        status = getattr(self.c, call)(self.handle, self.SM, ctypes.byref(mhz))
        return f"{mhz.value} MHz" if status == 0 else "unknown"

    def driver(self):
        text = ctypes.create_string_buffer(80)
        self.c.nvmlSystemGetDriverVersion(text, 80)
        return text.value.decode()


def measure(ours, shape, variants, repeats, flush, card):
    rows, n, k, experts, kind = shape
    sizes = group_sizes(kind, rows, experts)
    a = torch.randn(rows, k, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(experts, n, k, dtype=torch.bfloat16, device="cuda")
    out, other = (torch.empty(rows, n, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    counts = torch.tensor(sizes, dtype=torch.int32, device="cuda")
    ends = counts.cumsum(0).to(torch.int32)
    dense_b, grouped_b = b[0].t(), b.transpose(-2, -1)
    candidates = {name: ours.prepare(a, b, out, counts, **options) for name, options in variants.items()}
    candidates["torch_grouped_mm"] = lambda: torch._grouped_mm(a, grouped_b, offs=ends)
    candidates["cublas_dense"] = lambda: torch.mm(a, dense_b, out=other)
    grouped = cublas_grouped(a, b, other, sizes)
    if grouped is not None:
        candidates["cublas_grouped"] = grouped

    expected, first = torch.empty_like(out), 0
    for e, size in enumerate(sizes):
        if size:
            torch.mm(a[first:first + size], b[e].t(), out=expected[first:first + size])
        first += size
    differ = {}
    for name in variants:
        out.fill_(float("nan"))
        candidates[name]()
        ours.check()
        differ[name] = int((out.view(torch.int16) != expected.view(torch.int16)).sum())
        assert differ[name] <= 0.02 * out.numel(), f"{shape} {name}: {differ[name]} elements differ from cuBLAS"
    del expected

    samples = {name: [] for name in candidates}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for repeat in range(repeats + 3):
        for name, launch in candidates.items():
            flush.sum()
            start.record()
            launch()
            stop.record()
            stop.synchronize()
            if repeat >= 3:
                samples[name].append(start.elapsed_time(stop) * 1e-3)
            time.sleep(0.0002)
    clock = card.clock()
    flops = 2 * rows * n * k
    results = []
    for name, values in samples.items():
        median = statistics.median(values)
        results.append({"name": name, "median_s": median, "flop_per_s": flops / median, "samples_s": values})
        if name in differ:
            results[-1]["elements_that_differ_from_cublas"] = differ[name]
    return {"rows": rows, "n": n, "k": k, "experts": experts, "sizes": kind, "sm_clock": clock,
            "candidates": results}


def summarize(records, mine):
    over_library, over_dense, rate = [], {}, {}
    for r in records:
        median = {c["name"]: c["median_s"] for c in r["candidates"]}
        library = min(median[x] for x in ("torch_grouped_mm", "cublas_grouped") if x in median)
        r["over_best_library"] = library / median[mine]
        r["over_cublas_dense"] = median["cublas_dense"] / median[mine]
        over_library.append(r["over_best_library"])
        key = (r["rows"], r["n"], r["k"], r["experts"])
        rate[key + (r["sizes"],)] = median[mine]
        if r["n"] == 8192 and r["k"] == 2048 and r["sizes"] == "even":
            over_dense[f"rows_{r['rows']}_experts_{r['experts']}"] = r["over_cublas_dense"]
    uneven = {f"rows_{k[0]}_{k[4]}": t / rate[k[:4] + ("even",)] for k, t in rate.items() if k[4] != "even"}
    return {"variant": mine, "gemm_over_best_library_min": min(over_library),
            "gemm_over_best_library_geomean": math.exp(statistics.fmean(map(math.log, over_library))),
            "over_cublas_dense": over_dense, "uneven_over_even_time": uneven}


def save(arguments, records):
    command = " ".join(os.path.basename(a) for a in sys.argv)
    result = {"schema": 1, "command": command, "commit": arguments.commit, **DEVICE, "repeats": arguments.repeats,
              "summary": summarize(records, "draintile_" + arguments.variants.split(":")[0]), "shapes": records}
    with open(arguments.json, "w") as file:
        json.dump(result, file, indent=1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--variants", default="tensor:tensor_stores=1;rows:tensor_stores=0",
                        help="name:field=value,...; the first is the one that the summary is about")
    arguments = parser.parse_args()
    variants = {}
    for text in arguments.variants.split(";"):
        name, options = text.split(":")
        variants["draintile_" + name] = {k: int(v) for k, v in (o.split("=") for o in options.split(",") if o)}
    torch.manual_seed(1)
    card = Card()
    DEVICE.update({"device": torch.cuda.get_device_name(0), "driver": card.driver(), "torch": torch.__version__,
                   "cuda": torch.version.cuda, "sm_clock_max": card.clock("nvmlDeviceGetMaxClockInfo")})
    ours, flush = Ours(arguments.library), torch.ones(128 << 20, dtype=torch.float32, device="cuda")
    records = []
    for shape in shapes(arguments.quick):
        records.append(measure(ours, shape, variants, arguments.repeats, flush, card))
        print(*shape, *(f"{c['name']} {c['median_s'] * 1e6:.1f} us {c['flop_per_s'] * 1e-12:.0f};"
                        for c in records[-1]["candidates"]), flush=True)
        save(arguments, records)  # so that a run that is cut off leaves its shapes
    print(json.dumps(save(arguments, records)["summary"], indent=1))


if __name__ == "__main__":
    main()
