#!/usr/bin/env python3
"""One MoE layer under PyTorch, a process a GPU, through the C library: random weights, a forward on torch's current
stream and its replay from a torch.cuda.CUDAGraph must give the same bits, and what torch computes from all weights.

    torchrun --standalone --nproc-per-node 2 moe_layer_torch.py

libdraintile.so.0 is looked for as every library (LD_LIBRARY_PATH). Where there is no Hopper GPU a process exits with
77, which torchrun calls a failure.
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist

EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, TOP_K, REPLAYS = 8, 1024, 512, 600, 4, 3  # experts of a rank
TOLERANCE = 1e-2  # of a token's norm: rows and activations are rounded to bf16 on the way
i32, i64, f32, f64, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_double, ctypes.c_void_p


class Config(ctypes.Structure):  # dt_cuda_moe_config
    _fields_ = [("size", ctypes.c_size_t), ("comm", pointer), ("hidden", i64), ("intermediate", i64),
                ("experts_per_rank", i32), ("top_k", i32), ("max_tokens", i64), ("max_rows", i64),
                ("activation", i32), ("activation_alpha", f32), ("activation_limit", f32), ("schedule", i32),
                ("order", i32), ("raster_bands", i32), ("group_tasks", i32), ("lead", i32), ("wave_experts", i32),
                ("consumers", i32), ("segment_bands", i32), ("dedup", i32), ("head", i32), ("send_sms", i32),
                ("ahead", i32), ("sms", i32), ("timestamps", i32), ("timeout_s", f64)]


class Weights(ctypes.Structure):  # dt_cuda_moe_weights
    _fields_ = [("gate", pointer), ("up", pointer), ("down", pointer), ("gate_bias", pointer), ("up_bias", pointer),
                ("down_bias", pointer)]


class Input(ctypes.Structure):  # dt_cuda_moe_input
    _fields_ = [("tokens", i64), ("hidden", pointer), ("ids", pointer), ("weights", pointer), ("output", pointer)]


library = ctypes.CDLL("libdraintile.so.0")
library.dt_error_detail.restype = library.dt_status_name.restype = ctypes.c_char_p
for name in ("dt_comm_destroy", "dt_cuda_moe_destroy"):
    getattr(library, name).argtypes = [pointer]
AllGather = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, ctypes.c_size_t)


def must(status):
    if status:
        raise RuntimeError(f"{library.dt_status_name(status).decode()}: {library.dt_error_detail().decode()}")


@AllGather
def all_gather(_context, send, receive, count):
    """The ranks meet through torch; called while the fabric is made, not afterwards."""
    own = torch.frombuffer(bytearray(ctypes.string_at(send, count)), dtype=torch.uint8)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    everything = bytes(torch.cat(parts).numpy())
    ctypes.memmove(receive, everything, len(everything))
    return 0


def connect(rank, ranks, device):
    control, comm = pointer(), pointer()
    must(library.dt_comm_create_shm(rank, ranks, all_gather, None, None, ctypes.byref(control)))
    must(library.dt_comm_create_cuda(control, device, ctypes.byref(comm)))  # takes control over
    return comm


class Layer:
    """Holds what the library borrows: the weights' tensors."""

    def __init__(self, comm, gate, up, down):
        config = Config()
        library.dt_cuda_moe_config_init(ctypes.byref(config))
        config.comm, config.hidden, config.intermediate = comm, gate.shape[2], gate.shape[1]
        config.experts_per_rank, config.top_k, config.max_tokens = gate.shape[0], TOP_K, TOKENS
        self.weights, self.handle = (gate, up, down), pointer()
        borrowed = Weights(gate.data_ptr(), up.data_ptr(), down.data_ptr())
        must(library.dt_cuda_moe_create(ctypes.byref(config), ctypes.byref(borrowed), ctypes.byref(self.handle)))

    def forward(self, hidden, ids, weights, output):
        """Queued on the current stream, as torch's own operators are; nothing waits."""
        tensors = Input(hidden.shape[0], hidden.data_ptr(), ids.data_ptr(), weights.data_ptr(), output.data_ptr())
        must(library.dt_cuda_moe_forward(self.handle, ctypes.byref(tensors), self.stream()))

    def check(self):
        """Waits for the current stream; raises what the device met."""
        must(library.dt_cuda_moe_check(self.handle, self.stream()))

    def stream(self):
        return pointer(torch.cuda.current_stream().cuda_stream)

    def close(self):
        library.dt_cuda_moe_destroy(self.handle)


def reference(hidden, ids, weights, gate, up, down):
    result = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    x = hidden.float()
    for expert in range(gate.shape[0]):
        token, choice = (ids == expert).nonzero(as_tuple=True)
        act = torch.nn.functional.silu(x[token] @ gate[expert].float().T) * (x[token] @ up[expert].float().T)
        result.index_add_(0, token, weights[token, choice, None] * (act @ down[expert].float().T))
    return result


def main():
    if torch.cuda.device_count() == 0 or torch.cuda.get_device_capability(0)[0] != 9:
        print("no Hopper GPU here: skipped")
        return 77
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False

    generator = torch.Generator("cuda").manual_seed(1)  # all ranks' weights, for the reference
    shapes = [(ranks * EXPERTS, INTERMEDIATE, HIDDEN)] * 2 + [(ranks * EXPERTS, HIDDEN, INTERMEDIATE)]
    gate, up, down = (torch.randn(s, generator=generator, device="cuda").mul_(s[2] ** -0.5).bfloat16() for s in shapes)
    generator.manual_seed(2 + rank)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, device="cuda").bfloat16()
    scores, chosen = torch.rand(TOKENS, ranks * EXPERTS, generator=generator, device="cuda").topk(TOP_K)
    ids, weights = chosen.int(), scores.softmax(1)
    output, replayed = torch.empty_like(hidden), torch.full_like(hidden, float("nan"))

    comm = connect(rank, ranks, device)
    own = slice(rank * EXPERTS, (rank + 1) * EXPERTS)
    layer = Layer(comm, gate[own], up[own], down[own])
    layer.forward(hidden, ids, weights, output)
    layer.check()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.forward(hidden, ids, weights, replayed)
    for _ in range(REPLAYS):  # every rank as often as the others
        graph.replay()
    layer.check()

    expected = reference(hidden, ids, weights, gate, up, down)
    error = ((output.float() - expected).norm(dim=1) / expected.norm(dim=1)).max().item()
    equal = torch.equal(output.view(torch.int16), replayed.view(torch.int16))
    print(f"rank {rank}, GPU {device}: graph {'equal to the bit to' if equal else 'DIFFERS from'} the call, "
          f"largest error of a token {error:.1e} (allowed {TOLERANCE:.0e})", flush=True)
    dist.barrier()
    layer.close()
    library.dt_comm_destroy(comm)
    dist.destroy_process_group()
    return 0 if equal and error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
