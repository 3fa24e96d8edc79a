#!/usr/bin/env python3
"""The golden layers of every family through `draintile moe --device cuda`: all schedules equal to the bit, and what the
command writes within 8e-3 of what Hugging Face computed; within 1.2e-2 where tokens or weights are of another type and
were rounded to bf16 first. So much passes the command's own check against float64, too. Ranks are processes, on as many
GPUs as there are.

    moe_golden.py COMMAND [RANKS...]

Exit code 77 without a GPU.
"""
import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TOLERANCE, ROUNDED_TOLERANCE = 8e-3, 1.2e-2


def tensor(path, name):
    """Rows of a tensor, as floats."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])[name]
    first, end = (8 + length + offset for offset in entry["data_offsets"])
    if entry["dtype"] == "F32":
        values = array.array("f", data[first:end])
    elif entry["dtype"] == "BF16":
        halves = array.array("H", data[first:end])
        values = array.array("f", array.array("I", (half << 16 for half in halves)).tobytes())
    else:
        sys.exit(f"{path}: {name} is {entry['dtype']}")
    rows, columns = entry["shape"]
    return [values[i * columns : (i + 1) * columns] for i in range(rows)]


def worst_error(output, expected):
    worst = 0.0
    for y, reference in zip(output, expected, strict=True):
        difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(y, reference, strict=True)))
        norm = math.sqrt(sum(b * b for b in reference))
        error = difference / norm if norm else (0.0 if difference == 0 else math.inf)
        worst = max(worst, error if not math.isnan(error) else math.inf)
    return worst


def run(command, case, ranks, folder):
    """What is wrong, or None; the worst error. Exits where there is no GPU."""
    output, report = folder / "output.safetensors", folder / "report.json"
    exact = case["name"].endswith(("-bf16", "-bf16-fused"))
    called = subprocess.run(
        [command, "moe", "--device", "cuda", "--checkpoint", GOLDEN / case["checkpoint"], "--layer", str(case["layer"]),
         "--input", GOLDEN / case["input"], "--output", output, "--ranks", str(ranks), "--schedule", "all",
         "--check", "--repeat", "1", "--timeout", "20s", "--json", report],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    if called.returncode == 77:
        print("skipped:", called.stderr.strip())
        sys.exit(77)
    if called.returncode != 0:
        return f"exit {called.returncode}: {called.stderr.strip()}", math.inf
    results = json.loads(report.read_text())
    runs, allowed = results["runs"], TOLERANCE if exact else ROUNDED_TOLERANCE
    if not math.isclose(results["tolerance"], allowed):
        return f"the command allows {results['tolerance']}, not {allowed}", math.inf
    schedules = {entry["schedule"] for entry in runs}
    if schedules != {"serial", "signal", "direct", "wave", "interleave", "alternate"}:
        return f"schedules {sorted(schedules)}", math.inf
    if not all(entry["bit_equal"] for entry in runs):
        return "schedules differ", math.inf
    error = worst_error(tensor(output, "hidden_states"), tensor(GOLDEN / case["expected"], "output"))
    return (None if error <= allowed else f"allowed: {allowed}"), error


def main():
    command = sys.argv[1]
    counts = [int(argument) for argument in sys.argv[2:]] or [1, 2]
    failed = 0
    for case in json.loads((GOLDEN / "cases.json").read_text()):
        for ranks in counts:
            with tempfile.TemporaryDirectory() as folder:
                wrong, error = run(command, case, ranks, pathlib.Path(folder))
            print("FAIL" if wrong else "ok  ", case["name"], f"ranks {ranks}: error {error:.2e}", wrong or "",
                  flush=True)
            failed += wrong is not None
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
