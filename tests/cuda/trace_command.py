#!/usr/bin/env python3
"""moe --device cuda --trace on one or two ranks: slices nest, every tile is there once, JSON says what was lost.

usage: trace_command.py DRAINTILE        exit 77 without a GPU
"""
import collections
import json
import os
import subprocess
import sys
import tempfile

command = os.path.abspath(sys.argv[1])
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 512, 256, 8, 2, 600
SCHEDULES = ["serial", "signal", "direct", "interleave"]


def run(*arguments):
    result = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode == 77:
        print(result.stderr.strip())
        sys.exit(77)
    assert result.returncode == 0, f"{arguments}: exit {result.returncode}: {result.stderr}"


def nest(slices):
    open_ends = []
    for begin, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{name} at {begin} ns ends behind what is around it"
        open_ends.append(end)


def check(folder, ranks):
    trace, figures = folder + "/trace.json", folder + "/figures.json"
    run("moe", "--checkpoint", folder + "/model", "--layer", 0, "--input", folder + "/tokens",
        "--output", folder + "/out", "--ranks", ranks, "--device", "cuda", "--schedule", ",".join(SCHEDULES),
        "--repeat", 2, "--check",
        "--trace", trace, "--json", figures)
    events = json.load(open(trace))["traceEvents"]
    processes = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert sorted(processes) == sorted(f"{s} rank {r}" for s in SCHEDULES for r in range(ranks)), processes
    names = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert "kernels" in names and any(n.startswith("SM ") and n.endswith(" consumer 1") for n in names), names
    tracks, kinds, tiles = collections.defaultdict(list), collections.Counter(), collections.Counter()
    for e in events:
        if e["ph"] != "X":
            continue
        assert e["ts"] >= 0 and e["dur"] >= 0, e
        begin, duration = round(1000 * e["ts"]), round(1000 * e["dur"])  # ns: sums of fractions would be rounded
        tracks[e["pid"], e["tid"]].append((begin, begin + duration, e["name"]))
        kinds[e["name"]] += 1
        if e["name"] in ("L1", "L2"):
            tiles[e["pid"], (e["tid"] - 1) % 8, e["name"], e["args"]["index"], e["args"]["column"]] += 1
    for slices in tracks.values():
        nest(slices)
    assert max(tiles.values()) == 1, "a tile twice"
    for kind in ("plan", "dispatch", "L1", "L2", "store", "reduce", "publish", "segment"):
        assert kinds[kind] > 0, f"no {kind}"
    per_process = len(processes)
    assert kinds["plan"] == per_process and kinds["reduce"] == per_process, kinds
    assert kinds["store"] == kinds["L2"], kinds
    for r in json.load(open(figures))["runs"]:
        assert r["spans_lost"] == 0 and r["busy"]["L1_s"] > 0 and r["bit_equal"], r
    print(f"ok   {ranks} ranks: {sum(kinds.values())} slices on {len(tracks)} tracks")


with tempfile.TemporaryDirectory() as directory:
    run("synth", "checkpoint", "--arch", "qwen3_moe", "--hidden", HIDDEN, "--intermediate", INTERMEDIATE,
        "--experts", EXPERTS, "--top-k", TOP_K, "--layers", 1, "--dtype", "bf16", "--seed", 1, directory + "/model")
    run("synth", "tokens", "--count", TOKENS, "--hidden", HIDDEN, "--dtype", "bf16", "--seed", 2, directory + "/tokens")
    for ranks in (1, 2):
        check(directory, ranks)
