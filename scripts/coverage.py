#!/usr/bin/env python3
"""Writes and checks docs/coverage.md: what each op has on each backend, and how far off it is.

  scripts/coverage.py measure DEVICE [--build build]   runs the cases on cpu or cuda and writes their
                                      columns; those of cuda with the card and the date
  scripts/coverage.py check FOLDER    fails where a test run and the table disagree
  scripts/coverage.py render          writes the table again from what is recorded

Any test run leaves in FOLDER what it measured if the environment names it, as .ci/run does:

  mkdir -p build/coverage && GRADUS_COVERAGE=$PWD/build/coverage scripts/test -L cpu

What is recorded lies in bench/results/coverage_cpu.json and coverage_cuda.json. The check compares
ops, functions, dtypes and promises of the CPU exactly. Errors may be twice the recorded ones, and 2
ulp in any case, since another processor rounds elsewhere; beyond that the table must be written
again, on purpose.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
TABLE = ROOT / "docs/coverage.md"
DTYPES = ["f32", "f64", "f16", "bf16"]
DIRECTIONS = ["forward", "backward", "parameters"]

# Ops without cases: why, and what tests them.
NO_CASES = {
    "copy": "moves and converts values, which the tests compare exactly (copy_test, tensor_test, "
            "dtype_test)",
    "gather_batch": "copies chosen images; compared exactly, augmentation included (loader_test)",
    "random": "draws have no value to be off from; integers, uniforms and normals are compared with "
              "a second implementation (random_test)",
    "schedule_step": "advances one learning rate; compared with PyTorch's schedules "
                     "(schedule_test, sgd_test)",
    "sgd": "changes parameters in place, no gradient flows through it; compared with PyTorch's steps "
           "and the formula in f64 (sgd_test)",
    "adam": "as sgd (adam_test); AdamW too",
    "muon": "as sgd (muon_test)",
    "clip_grad": "changes gradients in place, no gradient flows through it; compared with the formula "
                 "in f64 (clip_grad_test)",
    "track_metrics": "adds up counters; compared exactly (track_metrics_test, trainer_test)",
}
# Ops that do (part of) their work by the launches of another.
LAUNCHED_AS = {"instance_norm": "group_norm"}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def three_digits(value):
    return float(f"{value:.3g}")


def measured(folder, device):
    """What a test run left in the folder, in the form that is recorded."""
    launches = {line["name"]: line for line in read_lines(folder / "launches.jsonl")}
    functions = {}
    for line in read_lines(folder / "cases.jsonl"):
        if line["device"] != device:
            continue
        key = f'{line["op"]}/{line["function"]}'
        cell = functions.setdefault(key, {}).setdefault(line["dtype"], {})
        if "ulp" not in line:
            cell.setdefault(line["direction"], None)
            continue
        worst = cell.get(line["direction"]) or {"ulp": 0.0, "relative": 0.0}
        cell[line["direction"]] = {name: max(worst[name], three_digits(line[name]))
                                   for name in ("ulp", "relative")}
    return {"launches": list(launches.values()), "functions": dict(sorted(functions.items()))}


def recorded(device):
    path = RESULTS / f"coverage_{device}.json"
    return json.loads(path.read_text()) if path.exists() else {"launches": [], "functions": {}}


def record(device, content):
    path = RESULTS / f"coverage_{device}.json"
    path.write_text(json.dumps({"schema": 1, **content}, indent=1, sort_keys=True) + "\n")
    TABLE.write_text(render(recorded("cpu"), recorded("cuda")))
    print(f"{path.relative_to(ROOT)} and {TABLE.relative_to(ROOT)} written, "
          f"{len(content['functions'])} functions")


def ops_of(content):
    """The ops in their order, each with its launches."""
    ops = {}
    for launch in content["launches"]:
        ops.setdefault(launch["op"], []).append(launch)
    return {op: launches + ops.get(LAUNCHED_AS.get(op), []) for op, launches in ops.items()}


def tested_ops(content):
    return {key.split("/")[0] for key in content["functions"]}


def accumulator(launches, dtype):
    names = {launch["accumulator"] for launch in launches} - {"none"}
    wide = "f64" if dtype == "f64" else "f32"
    return ", ".join(sorted(name.replace("acc_t", wide) for name in names)) or "nothing added"


def error_text(error):
    return "exact" if error["ulp"] == 0 else f'{error["ulp"]:.2g} ulp, {error["relative"]:.1g}'


def cell(content, key, dtype, direction, missing):
    cells = content["functions"].get(key, {})
    if dtype not in cells:
        return missing
    if cells[dtype].get(direction) is None:
        return "has no gradient"
    text = error_text(cells[dtype][direction])
    if direction == "backward" and "parameters" in cells[dtype]:
        text += f'; parameters {error_text(cells[dtype]["parameters"])}'
    return text


def render(cpu, cuda):
    card = f'{cuda["card"]}, {cuda["date"]}' if "card" in cuda else "not recorded yet"
    lines = [
        "# Coverage",
        "",
        "Written by `scripts/coverage.py` from what the tests measure; not to be edited.",
        "",
        "Each cell is the largest error of all cases of a function against its naive f64 reference: "
        "in units in the last place of the dtype, and relative. Both are taken at the value itself "
        "where nothing is added up, and at the largest term where a sum may cancel. Gradients of "
        "biases and of the parameters of norms (`parameters`) are stored, and judged, in the type that "
        "sums are kept in; losses are too. "
        "Errors among subnormal values count in ulp only. The last two columns are what an op "
        "declares: the type that sums are kept in, and whether two runs, and on the CPU any number "
        "of threads, give the same bits, which its Repeat tests hold it to.",
        "",
        f"CUDA: {card}.",
        "",
        "| function | dtype | CPU forward | CPU backward | CUDA forward | CUDA backward | sums in | "
        "repeatable |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for op, launches in ops_of(cpu).items():
        for key in [key for key in cpu["functions"] if key.split("/")[0] == op]:
            function = key.split("/")[1]
            name = f"`{op}`" if function == op else f"`{op}`: {function}"
            repeatable = "yes" if all(launch["deterministic"] for launch in launches) else "no"
            for dtype in DTYPES:
                cells = [cell(cpu, key, dtype, direction, "not supported")
                         for direction in DIRECTIONS[:2]]
                cells += [cell(cuda, key, dtype, direction, "not recorded yet")
                          for direction in DIRECTIONS[:2]]
                lines.append("| " + " | ".join([name, dtype, *cells, accumulator(launches, dtype),
                                                repeatable]) + " |")
    lines += ["", "## Ops without cases", "",
              "| op | launches | CPU | CUDA | why, and what tests it |",
              "| --- | --- | --- | --- | --- |"]
    for op, launches in ops_of(cpu).items():
        if op in tested_ops(cpu):
            continue
        names = ", ".join(f'`{launch["name"]}`' for launch in launches)
        dtypes = [" ".join(sorted({d for launch in launches for d in launch[device]}))
                  for device in ("cpu", "cuda")]
        lines.append("| " + " | ".join([f"`{op}`", names, *dtypes, NO_CASES.get(op, "**no reason**")])
                     + " |")
    return "\n".join(lines) + "\n"


def compare_cells(key, got, want):
    """Where the cells of one function differ."""
    problems = []
    for dtype in sorted(set(got) | set(want)):
        for direction in DIRECTIONS:
            here, there = (side.get(dtype, {}).get(direction, "missing") for side in (got, want))
            where = f"{key}, {dtype}, {direction}"
            if "missing" in (here, there) or (here is None) != (there is None):
                if here != there:
                    problems.append(f"{where}: measured {here}, recorded {there}")
            elif here is not None and here["ulp"] > 2 * max(there["ulp"], 1.0):
                problems.append(f"{where}: {here['ulp']:.3g} ulp, recorded {there['ulp']:.3g}")
    return problems


def check(folder):
    got, want = measured(folder, "cpu"), recorded("cpu")
    problems = []
    if not got["launches"]:
        problems.append(f"{folder}: no launches.jsonl; was GRADUS_COVERAGE set for the test run?")
    if got["launches"] != want["launches"]:
        differing = {launch["name"] for side in (got, want) for launch in side["launches"]
                     if launch not in got["launches"] or launch not in want["launches"]}
        problems.append("the argument structs differ from the recorded ones: "
                        + (", ".join(sorted(differing)) or "another order"))
    for key in sorted(set(got["functions"]) | set(want["functions"])):
        problems += compare_cells(key, got["functions"].get(key, {}), want["functions"].get(key, {}))
    for op, launches in ops_of(got).items():
        has_cases = op in tested_ops(got)
        if has_cases == (op in NO_CASES):
            problems.append(f"{op}: " + ("has cases now, and a reason for having none"
                                         if has_cases else "neither cases nor a reason for that"))
        for key, cells in got["functions"].items():
            for dtype in DTYPES:
                listed = any(dtype in launch["cpu"] for launch in launches)
                if key.split("/")[0] == op and listed != (dtype in cells):
                    problems.append(f"{key}: {dtype} is listed as "
                                    f"{'supported' if listed else 'unsupported'} and was "
                                    f"{'not tested' if listed else 'tested'}")
    if TABLE.read_text() != render(want, recorded("cuda")):
        problems.append("docs/coverage.md is not what is recorded: scripts/coverage.py render")
    missing = [key for key in want["functions"] if key not in recorded("cuda")["functions"]]
    print(f"coverage: {len(got['functions'])} functions, {len(problems)} disagreements; "
          f"{len(missing)} functions without CUDA columns")
    print("\n".join(f"  {problem}" for problem in problems))
    return 1 if problems else 0


def card():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def measure(device, build):
    note = {"date": datetime.date.today().isoformat()}
    if device == "cuda":
        note["card"] = card()
    tests = "Reference" if device == "cpu" else "CudaReference"
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GRADUS_COVERAGE": folder}
        for program in sorted((build / "tests").glob("*_test")):
            arguments = [program, f"--gtest_filter=*_cases.{tests}/*:Launches.*", "--gtest_brief=1"]
            if subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL).returncode:
                failed.append(program.name)
        content = measured(pathlib.Path(folder), device)
    if failed:
        print("nothing written; failed: " + ", ".join(failed))
        return 1
    record(device, {**content, **note})
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("folder", type=pathlib.Path)
    measuring = commands.add_parser("measure")
    measuring.add_argument("device", choices=["cpu", "cuda"])
    measuring.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    commands.add_parser("render")
    arguments = parser.parse_args()
    if arguments.command == "check":
        return check(arguments.folder)
    if arguments.command == "measure":
        return measure(arguments.device, arguments.build.resolve())
    TABLE.write_text(render(recorded("cpu"), recorded("cuda")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
