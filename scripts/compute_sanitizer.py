#!/usr/bin/env python3
"""Runs the tests with Cuda in their name under NVIDIA's compute-sanitizer, all four tools.

  scripts/compute_sanitizer.py [--build build] [--tool memcheck]... [--jobs 10] [--minutes M]
                               [--logs DIR] [TEST_PROGRAM...]

Needs a GPU. A job is one tool over a share of the tests of a program. DIR (build/sanitizer) gets the
output of each job that reports anything, whose tests fail or that was stopped: after the time that a
job has, or when all of them have taken M minutes. Any of that makes the exit status 1.
"""

import argparse
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time

TOOLS = {
    # Errors that tests provoke are not its business.
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": [],
    "initcheck": [],
    # As many as a cluster's blocks may open: counted by the tool they are too few.
    "synccheck": ["--num-cuda-barriers", "65536"],
}

# Each of these either takes minutes without a tool, repeats what another test runs, needs most of
# the card's memory, or breaks the device on purpose.
LEFT_OUT = ["*Slow*", "*LongSums*", "*CudaRepeat*", "*Beyond*", "*OutOfMemory*", "*Sticky*",
            "*AFailedLaunch*"]
FILTER = "*Cuda*:-" + ":".join(LEFT_OUT)

# Tests of a job; one test of the heavy programs, which tries many shapes.
USUAL_SHARE = {"memcheck": 60, "racecheck": 25, "initcheck": 60, "synccheck": 60}
HEAVY = ("conv2d_matrix_test", "conv2d_wgmma_test", "conv2d_autotune_test",
         "activation_accuracy_test", "compare_test", "golden_training_test")
SECONDS = 420  # of a job, at most

# Its tables take gigabytes of the card's memory.
AT_ONCE = {"synccheck": 2}


def tests_of(program):
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={FILTER}"],
                            check=True, capture_output=True, text=True).stdout
    return sum(line.startswith("  ") for line in listed.splitlines())


def jobs_of(programs, tools):
    """(tool, program, shard, shards), those of heavy programs first."""
    jobs = []
    for program in programs:
        count = tests_of(program)
        for tool in tools if count else []:
            share = 1 if program.name in HEAVY else USUAL_SHARE[tool]
            shards = -(-count // share)
            jobs += [(tool, program, shard, shards) for shard in range(shards)]
    return sorted(jobs, key=lambda job: job[1].name not in HEAVY)


def run(job, logs, end):
    """What is wrong, or None."""
    tool, program, shard, shards = job
    left = min(SECONDS, end - time.monotonic())
    if left <= 0:
        return "not begun"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "77",
               "--require-cuda-init", "no", *TOOLS[tool], program, f"--gtest_filter={FILTER}",
               "--gtest_brief=1"]
    environment = os.environ | {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
    log = logs / f"{tool}.{program.name}.{shard}.log"
    with open(log, "w", encoding="utf-8") as file:
        tree = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT,
                                start_new_session=True)
        try:
            status = tree.wait(left)
        except subprocess.TimeoutExpired:
            os.killpg(tree.pid, signal.SIGKILL)  # the tool and the tests
            tree.wait()
            return f"stopped after {left:.0f} s, see {log}"
    if status != 0:
        return f"status {status}, see {log}"
    log.unlink()
    return None


def run_all(jobs, options, logs):
    """(job, what is wrong or None) of each as it ends."""
    end = time.monotonic() + 60 * options.minutes
    pools = {tool: concurrent.futures.ThreadPoolExecutor(at_once)
             for tool, at_once in AT_ONCE.items()}
    others = concurrent.futures.ThreadPoolExecutor(options.jobs)
    running = {pools.get(job[0], others).submit(run, job, logs, end): job for job in jobs}
    for future in concurrent.futures.as_completed(running):
        yield running[future], future.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("programs", nargs="*", metavar="TEST_PROGRAM")
    options = parser.parse_args()
    logs = options.logs or options.build / "sanitizer"
    logs.mkdir(parents=True, exist_ok=True)
    folder = options.build / "tests"
    programs = [folder / name for name in options.programs] or sorted(folder.glob("*_test"))
    jobs = jobs_of(programs, options.tool or list(TOOLS))
    wrong = {tool: 0 for tool in TOOLS}
    for job, problem in run_all(jobs, options, logs):
        if problem:
            wrong[job[0]] += 1
            print(f"{job[0]} {job[1].name} {job[2] + 1} of {job[3]}: {problem}", flush=True)
    for tool in options.tool or TOOLS:
        count = sum(job[0] == tool for job in jobs)
        print(f"{tool}: {count} jobs, {wrong[tool]} not clean")
    return 1 if any(wrong.values()) or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
