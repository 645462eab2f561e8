#!/usr/bin/env python3
"""DRAM bytes of each layer, counted by Nsight Compute, beside the fewest that it can move.

    python3 bench/dram_bytes.py --gradus build/gradus [--layer NAME]... [--case PATTERN]
                                [--dtype f32,bf16] [--json FILE]

Runs every cold benchmark case whose name matches PATTERN (large) once under `ncu` and sums what its
kernels read and wrote, forward and backward apart. Needs a GPU whose counters may be read.
"""
import argparse
import csv
import json
import subprocess
import tempfile

METRICS = "dram__bytes_read.sum,dram__bytes_write.sum"


def bench_command(args, row=None):
    command = [args.gradus, "bench", "layers", "--device", "cuda", "--cold", "--repeats", "0"]
    if row:
        case = f"^{row['case']}$"
        return command + ["--layer", row["layer"], "--case", case, "--dtype", row["dtype"]]
    for layer in args.layer or []:
        command += ["--layer", layer]
    return command + ["--case", args.case, "--dtype", args.dtype]


def list_rows(args):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/rows.json"
        subprocess.run(bench_command(args) + ["--json", path], check=True,
                       stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def counted_bytes(args, row, launches):
    """Of the kernels inside these launches, each of which opens an NVTX range of its name."""
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
               "--metrics", METRICS, "--nvtx"]
    for name in sorted(set(launches)):
        command += ["--nvtx-include", name + "/"]
    output = subprocess.run(command + bench_command(args, row), check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    table = [line for line in output.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(table))[1:]  # the first holds the units
    return sum(float(r[metric].replace(",", "")) for r in rows for metric in METRICS.split(","))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--layer", action="append")
    parser.add_argument("--case", default="large")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--json")
    args = parser.parse_args()
    result = list_rows(args)
    for row in result["rows"]:
        for key in ("forward", "backward"):
            if key not in row:
                continue
            side = row[key]
            side["dram_bytes"] = counted_bytes(args, row, side["launches"])
            print(f"{row['layer'] + ' ' + row['case']:<44} {row['shape']:<18} {row['dtype']:<5} "
                  f"{key:<9} {side['dram_bytes'] / 1e6:9.1f} MB of {side['bytes'] / 1e6:9.1f} "
                  f"{side['dram_bytes'] / side['bytes']:6.3f}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
