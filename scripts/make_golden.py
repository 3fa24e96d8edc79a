#!/usr/bin/env python3
"""Makes tests/golden: small random checkpoints of every family, and what transformers computes with them.

Made with Python 3.11 and
    pip install torch==2.9.1 transformers==5.24.0 safetensors==0.8.0 numpy==2.4.6
    python3 scripts/make_golden.py tests/golden

A case is the MoE block of layer 1 of a random model, as `save_pretrained` writes it (only that block's tensors are
kept). Weights and input are rounded to the case's type first; the block's own forward then runs in float32, so that the
expected output carries no rounding of the case's type. tests/golden/README.md describes the files.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

LAYER = 1
TOKENS = 37  # not a multiple of any rank count
HIDDEN, INTERMEDIATE, EXPERTS = 64, 32, 8
FP8_BLOCK = (24, 40)  # divides neither side, so that ragged edges are covered
MODEL = dict(
    hidden_size=HIDDEN,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=16,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)
FAMILIES = {
    "mixtral": dict(intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS, num_experts_per_tok=2),
    "qwen2_moe": dict(
        intermediate_size=48,
        moe_intermediate_size=INTERMEDIATE,
        shared_expert_intermediate_size=48,
        num_experts=EXPERTS,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        mlp_only_layers=[0],
    ),
    "qwen3_moe": dict(
        intermediate_size=48,
        moe_intermediate_size=INTERMEDIATE,
        num_experts=EXPERTS,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        decoder_sparse_step=2,
    ),
    "olmoe": dict(intermediate_size=INTERMEDIATE, num_experts=EXPERTS, num_experts_per_tok=3, norm_topk_prob=False),
    "deepseek_v3": dict(
        intermediate_size=48,
        moe_intermediate_size=INTERMEDIATE,
        n_shared_experts=2,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    "gpt_oss": dict(intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS, num_experts_per_tok=2),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {"f32": 1e-5, "bf16": 8e-3}


def make_model(family, generator):
    values = {**MODEL, **FAMILIES[family]}
    if family == "deepseek_v3":
        del values["head_dim"]
    config = AutoConfig.for_model(family, **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    block = model.model.layers[LAYER].mlp
    # gpt_oss: wide enough that the clamp at 7 acts on some values
    scale = 0.5 if family == "gpt_oss" else 0.2
    for name, value in list(block.named_parameters()) + list(block.named_buffers()):
        bias = name.endswith("bias")
        value.data.copy_(torch.randn(value.shape, generator=generator) * (0.1 if bias else scale))
    return model.eval(), block


def quantize_fp8(weight):
    """One float32 scale a block; returns codes, scales and what they stand for."""
    rows, cols = weight.shape
    block_rows, block_cols = FP8_BLOCK
    scales = torch.empty(-(-rows // block_rows), -(-cols // block_cols))
    spread = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * block_rows, (i + 1) * block_rows), slice(j * block_cols, (j + 1) * block_cols))
            scales[i, j] = weight[part].abs().max() / 448
            spread[part] = scales[i, j]
    codes = (weight / spread).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * spread


def quantize_mxfp4(weight):
    """[E, in, out] to blocks [E, out, in/32, 16] and scales [E, out, in/32]; the value grid is the format's own."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    rows = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    exponent = torch.floor(torch.log2(rows.abs().amax(-1))) - 2
    scaled = rows / torch.exp2(exponent)[..., None]
    codes = (scaled[..., None] - grid).abs().argmin(-1).to(torch.uint8)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks, (exponent + 127).to(torch.uint8)


def round_parameters(block, dtype):
    for name, value in list(block.named_parameters()) + list(block.named_buffers()):
        if not name.endswith("e_score_correction_bias"):
            value.data.copy_(value.data.to(dtype).float())


def saved_tensors(model, dtype, fused):
    """What save_pretrained writes for the block, and the config beside it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=not fused)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
    config["dtype"] = str(dtype).removeprefix("torch.")
    kept = {}
    for name, value in tensors.items():
        if f"layers.{LAYER}.mlp." in name or f"layers.{LAYER}.block_sparse_moe." in name:
            kept[name] = value if name.endswith("e_score_correction_bias") else value.to(dtype)
    return kept, config


def route(family, block, hidden):
    """The block's own router: ids and weights, by descending choice; and the smallest gap that decides an id."""
    if family == "gpt_oss":
        logits, weights, ids = block.router(hidden)
        choice = logits
    else:
        logits, weights, ids = block.gate(hidden)
        choice = logits
        if family == "deepseek_v3":
            choice = logits.sigmoid() + block.gate.e_score_correction_bias
    order = choice.gather(1, ids).argsort(dim=-1, descending=True, stable=True)
    ids, weights = ids.gather(1, order), weights.gather(1, order)
    gaps = choice.sort(dim=-1, descending=True)[0].diff(dim=-1).abs()
    return ids, weights, gaps.min().item() if len(hidden) else 1.0


def forward(block, hidden):
    output = block(hidden[None])
    return (output[0] if isinstance(output, tuple) else output)[0]


def write_sharded(tensors, folder):
    names = sorted(tensors)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    for file in files:
        part = {name: tensors[name] for name in names if weight_map[name] == file}
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)


def quantize(form, family, block, tensors, config):
    """Replaces the block's expert weights by quantized ones, in the model and in what is saved."""
    if form == "fp8":
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": list(FP8_BLOCK),
        }
        dequantized = {}
        for name in [n for n in tensors if "expert" in n]:
            codes, scales, dequantized[name] = quantize_fp8(tensors[name].float())
            tensors[name], tensors[name + "_scale_inv"] = codes, scales
        stem = f"model.layers.{LAYER}.mlp."
        for e in range(EXPERTS):
            gate, up, down = (dequantized[f"{stem}experts.{e}.{p}_proj.weight"] for p in ("gate", "up", "down"))
            block.experts.gate_up_proj.data[e] = torch.cat([gate, up])
            block.experts.down_proj.data[e] = down
        for p in ("gate_proj", "up_proj", "down_proj"):
            getattr(block.shared_experts, p).weight.data.copy_(dequantized[f"{stem}shared_experts.{p}.weight"])
    else:
        config["quantization_config"] = {"quant_method": "mxfp4"}
        for p in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{LAYER}.mlp.experts.{p}"
            blocks, scales = quantize_mxfp4(tensors.pop(name).float())
            tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
            getattr(block.experts, p).data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))


def make_case(root, name, family, dtype_name, form, seed):
    """form: hub (a tensor per expert and matrix), sharded, fused, fp8, mxfp4."""
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[dtype_name]
    model, block = make_model(family, generator)
    round_parameters(block, dtype)
    tensors, config = saved_tensors(model, dtype, form == "fused")
    if form in ("fp8", "mxfp4"):
        quantize(form, family, block, tensors, config)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype)
    with torch.no_grad():
        ids, weights, gap = route(family, block, hidden.float())
        if gap < 1e-4:
            return False  # another float32 order of summation might choose otherwise
        output = forward(block, hidden.float())
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1, sort_keys=True)
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    if form == "sharded":
        write_sharded(tensors, folder)
    else:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file({"hidden_states": hidden}, os.path.join(folder, "input.safetensors"))
    expected = {"topk_ids": ids, "topk_weights": weights, "output": output}
    save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(folder, "expected.safetensors"))
    return True


CASES = [
    ("mixtral-f32", "mixtral", "f32", "hub"),
    ("mixtral-bf16-fused", "mixtral", "bf16", "fused"),
    ("qwen2_moe-f32", "qwen2_moe", "f32", "hub"),
    ("qwen2_moe-bf16", "qwen2_moe", "bf16", "hub"),
    ("qwen3_moe-f32", "qwen3_moe", "f32", "hub"),
    ("qwen3_moe-bf16", "qwen3_moe", "bf16", "hub"),
    ("olmoe-f32-sharded", "olmoe", "f32", "sharded"),
    ("olmoe-bf16-fused", "olmoe", "bf16", "fused"),
    ("deepseek_v3-f32", "deepseek_v3", "f32", "hub"),
    ("deepseek_v3-bf16", "deepseek_v3", "bf16", "hub"),
    ("deepseek_v3-fp8", "deepseek_v3", "f32", "fp8"),
    ("gpt_oss-f32", "gpt_oss", "f32", "hub"),
    ("gpt_oss-bf16", "gpt_oss", "bf16", "hub"),
    ("gpt_oss-mxfp4", "gpt_oss", "f32", "mxfp4"),
]


def make_empty(root, case):
    """No tokens at all, of an existing checkpoint."""
    top_k = FAMILIES[case["family"]]["num_experts_per_tok"]
    files = {key: f"{case['checkpoint']}/{key}-empty.safetensors" for key in ("input", "expected")}
    save_file({"hidden_states": torch.empty(0, HIDDEN)}, os.path.join(root, files["input"]))
    nothing = {
        "topk_ids": torch.empty(0, top_k, dtype=torch.int64),
        "topk_weights": torch.empty(0, top_k),
        "output": torch.empty(0, HIDDEN),
    }
    save_file(nothing, os.path.join(root, files["expected"]))
    return {**case, "name": case["name"] + "-empty", **files}


def main():
    root = sys.argv[1]
    torch.set_num_threads(1)
    cases = []
    for index, (name, family, dtype, form) in enumerate(CASES):
        seed = 1000 * index
        while not make_case(root, name, family, dtype, form, seed):
            seed += 1
        cases.append(
            dict(
                name=name,
                family=family,
                checkpoint=name,
                layer=LAYER,
                input=f"{name}/input.safetensors",
                expected=f"{name}/expected.safetensors",
                tolerance=TOLERANCES[dtype],
            )
        )
        print(f"{name}: seed {seed}")
    cases.append(make_empty(root, next(case for case in cases if case["name"] == "qwen3_moe-f32")))
    with open(os.path.join(root, "cases.json"), "w") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


main()
