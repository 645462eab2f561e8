#!/usr/bin/env python3
"""Which ops have passed their GPU tests in their present form.

  scripts/gpu_results.py record [--build build] [OP...]   on a machine with a GPU: runs the tests
                                                          with Cuda in their name, notes those ops
                                                          that pass in bench/results/cuda.json
  scripts/gpu_results.py stale                            lists the ops whose sources have changed
                                                          since, or that never passed

The sources of an op are cuda/OP.cu and the further .cu files of its line in CMakeLists.txt, its
contract core/ops/OP.h, and whatever of cuda/ and core/ they include, directly or not, that holds
device code: .cuh files with their .cu, contracts, what lies in cuda/device, *_kernels.h, and .h files
that say GRADUS_HD or __device__. Other .h files, plans above all, are tested on the CPU. A note holds
the hash of the sources, the card, the date and the number of tests.
"""

import argparse
import datetime
import functools
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/cuda.json"

# Where an op is tested on the GPU, if not by OP_test alone.
TESTED_BY = {"gather_batch": ["loader_test"], "schedule_step": ["sgd_test"],
             "track_metrics": ["track_metrics_test", "trainer_test"],
             "batch_norm": ["batch_norm_test", "batch_norm_waves_test"],
             **{op: [f"{op}_test", "larger_than_l2_test"]
                for op in ("activation", "group_norm", "layer_norm", "rms_norm", "softmax")}}


def ops():
    listed = re.findall(r"^gradus_add_op\((\w+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    return [op for op in listed if (ROOT / f"cuda/{op}.cu").exists()]


def holds_device_code(path, text):
    return (path.endswith((".cu", ".cuh", "_kernels.h"))
            or path.startswith(("core/ops/", "cuda/device/"))
            or "GRADUS_HD" in text or "__device__" in text)


def sources(op):
    """The op's own files and the device code that they include, sorted."""
    line = re.search(rf"^gradus_add_op\({op}\b([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    further = [f"cuda/{name}" for name in re.findall(r"\S+\.cu\b", line[1])]
    found, seen, waiting = set(), set(), [f"cuda/{op}.cu", f"core/ops/{op}.h", *further]
    while waiting:
        path = waiting.pop()
        if path in seen or not (ROOT / path).exists():
            continue
        seen.add(path)
        text = (ROOT / path).read_text()
        if holds_device_code(path, text):
            found.add(path)
        included = re.findall(r'^\s*#\s*include "([^"]+)"', text, re.M)
        waiting += [i for i in included if i.startswith(("cuda/", "core/"))]
        if path.endswith(".cuh"):
            waiting.append(path.removesuffix("h"))  # such as launch_kernel.cu
    return sorted(found)


def hash_of(op):
    digest = hashlib.sha256()
    for path in sources(op):
        digest.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def read_results():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"schema": 1, "ops": {}}


@functools.cache  # some test several ops
def run_program(program):
    """(tests that ran and passed, why the program does not count as passed or None)."""
    if not program.exists():
        return 0, "it has no test program"
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        status = subprocess.run([program, "--gtest_filter=*Cuda*", f"--gtest_output=json:{report}"],
                                stdout=subprocess.DEVNULL).returncode
        if not report.exists():
            return 0, f"its test program ended with status {status} and no report"
        suites = json.loads(report.read_text())["testsuites"]
    tests = [test for suite in suites for test in suite["testsuite"] if test["status"] == "RUN"]
    failed = [test["name"] for test in tests if "failures" in test]
    skipped = [test["name"] for test in tests if test["result"] == "SKIPPED"]
    if status != 0 or failed:
        return 0, f"status {status}, failed: {' '.join(failed)}"
    if skipped:
        return 0, f"skipped: {' '.join(skipped)}"
    return len(tests), None if tests else "no test with Cuda in its name"


def run_tests(programs):
    """As run_program, of several."""
    results = [run_program(program) for program in programs]
    return sum(count for count, _ in results), next((why for _, why in results if why), None)


def record(build, wanted):
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    card = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    results = read_results()
    missed = 0
    for op in wanted or ops():
        names = TESTED_BY.get(op, [f"{op}_test"])
        count, problem = run_tests([build / "tests" / name for name in names])
        print(f"{op}: {problem or f'{count} GPU tests passed on {card}'}", flush=True)
        if problem:
            missed += 1
            results["ops"].pop(op, None)
            continue
        results["ops"][op] = {"hash": hash_of(op), "card": card, "tests": count,
                              "date": datetime.date.today().isoformat()}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 1 if missed else 0


def stale():
    recorded = read_results()["ops"]
    lines = []
    for op in ops():
        note = recorded.get(op)
        if note is None:
            lines.append(f"  {op}: its GPU tests have never been recorded as passed")
        elif note["hash"] != hash_of(op):
            lines.append(f"  {op}: changed since it passed on {note['card']}, {note['date']}")
    print(f"GPU results: {len(lines)} of {len(ops())} ops are stale")
    print("\n".join(lines))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    recording.add_argument("ops", nargs="*", metavar="OP")
    commands.add_parser("stale")
    arguments = parser.parse_args()
    if arguments.command == "record":
        return record(arguments.build.resolve(), arguments.ops)
    return stale()


if __name__ == "__main__":
    sys.exit(main())
