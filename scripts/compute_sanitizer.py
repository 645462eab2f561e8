#!/usr/bin/env python3
"""Runs the tests with Cuda in their name under NVIDIA's compute-sanitizer, all four tools.

  scripts/compute_sanitizer.py [--build build] [--tool memcheck]... [--jobs 10] [--gpus 1]
                               [--minutes M] [--logs DIR] [--sanitizer PROGRAM] [TEST_PROGRAM...]

Needs a GPU; compute-sanitizer 2026.4 (CUDA 13.5) or later, since earlier ones do not see what bulk
copies write. A job is one tool over a share of the tests of a program. DIR (build/sanitizer) gets
the output of each job that reports anything, whose tests fail or that was stopped: after the time
that a job has, or when all of them have taken M minutes; any of that makes the exit status 1. What
was clean is listed in DIR/clean and not done again: remove DIR after a change.
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
    "synccheck": [],
}
# Of a block's barriers, a loop over stages may start many at one place of the code, where the tools
# count one. Of all kernels ours are checked, those of add_an_op too: cuBLAS's have other names.
OPTIONS = ["--num-cuda-barriers", "64", "--kernel-name", "regex=gradus|snake",
           "--error-exitcode", "77", "--require-cuda-init", "no"]

# Each of these either takes minutes without a tool, repeats what another test runs (from CliTrain
# on by longer training or in other programs), needs most of the card's memory, breaks the device or
# races on purpose, or rests on launches that take as long as they do without a tool.
LEFT_OUT = ["*Slow*", "*LongSums*", "*CudaRepeat*", "*CliTrain*", "*TrainChoices*",
            "QuickstartCuda*", "CompareCli.*", "CompareTrainingCuda*", "*IndicesBeyond32Bits*",
            "*OutOfMemory*", "*Sticky*", "*AFailedLaunch*", "*AKernelThatDies*", "*IsSeenTooEarly*",
            "*Overlapping*Cuda*"]
# initcheck does not see what the copy engine stores by a tensor map, as wgmma's kernels do.
# racecheck runs out of the host's memory where kernels are timed in graphs, and would take many
# minutes for trainings, the comparison of all ops, what the tape does with each, finite differences,
# the gradients of biases, windows of 49 taps and softmax's D04x (D038 with other values), whose
# kernels it sees in other tests. Large maps have no shared memory.
LEFT_OUT_OF = {"initcheck": ["*OfManyChannels*", "*OfSmallNetworks*", "*Conv2dWgmma*",
                             "*Conv2dAutotune*", "CompareCuda*"],
               "racecheck": ["Conv2dAutotuneCuda.TheSameTable*", "Conv2dAutotuneCuda.ATrace*",
                             "Conv2dAutotuneCuda.AWayOf*", "CompareCuda*",
                             "*BiasGradientsHaveTheSameBits*", "*TrainerTest*", "TrainerCuda*",
                             "*TapeOps*", "*Views.Gradients/*", "*k7x7*", "SoftmaxCudaFaults.D04*",
                             "*LargerThanL2Cuda*Relu*", "*LargerThanL2Cuda*Hardsigmoid*",
                             "*LargerThanL2Cuda*Gelu*"]}

# Of the heavy programs racecheck leaves out the kernels of their reference in f64, which would take
# most of the time; conv2d_test has those kernels.
REFERENCE = ["--kernel-name-exclude", "regex=conv2d_[a-z_]*Id"]

# Tests of a job; one test of the heavy programs, which tries many shapes.
SHARE = 60
HEAVY = ("conv2d_matrix_test", "conv2d_wgmma_test", "conv2d_autotune_test",
         "activation_accuracy_test", "compare_test", "golden_training_test", "trainer_test",
         "views_test", "cuda_copy_test", "larger_than_l2_test", "softmax_faults_test")
SECONDS = 540  # of a job, at most
# Of the host's memory that a job of racecheck may come to need.
HUNGRY_BYTES = 16 << 30


def tests_for(tool):
    return "--gtest_filter=*Cuda*:-" + ":".join(LEFT_OUT + LEFT_OUT_OF.get(tool, []))


def count_tests(program, tool):
    listed = subprocess.run([program, "--gtest_list_tests", tests_for(tool)], check=True,
                            capture_output=True, text=True).stdout
    return sum(line.startswith("  ") for line in listed.splitlines())


def jobs_of(programs, tools):
    """(tool, program, shard, shards), those of heavy programs first."""
    jobs = []
    for program in programs:
        for tool in tools:
            shards = -(-count_tests(program, tool) // (1 if program.name in HEAVY else SHARE))
            jobs += [(tool, program, shard, shards) for shard in range(shards)]
    return sorted(jobs, key=lambda job: job[1].name not in HEAVY)


def name_of(job):
    tool, program, shard, shards = job
    return f"{tool} {program.name} {shard + 1} of {shards}"


def run(job, gpu, options, end):
    """What is wrong, or None."""
    tool, program, shard, shards = job
    left = min(SECONDS, end - time.monotonic())
    if left <= 0:
        return "not begun"
    without = REFERENCE if tool == "racecheck" and program.name in HEAVY else []
    command = [options.sanitizer, "--tool", tool, *TOOLS[tool], *OPTIONS, *without, program,
               tests_for(tool), "--gtest_brief=1"]
    environment = os.environ | {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
    if options.gpus > 1:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    log = options.logs / f"{tool}.{program.name}.{shard}.log"
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


def run_all(jobs, options):
    """(job, what is wrong or None, seconds) of each as it ends."""
    end = time.monotonic() + 60 * options.minutes

    def timed(job, gpu):
        start = time.monotonic()
        return job, run(job, gpu, options, end), time.monotonic() - start

    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    few = concurrent.futures.ThreadPoolExecutor(min(max(1, memory // HUNGRY_BYTES), options.jobs))
    with pool, few:
        futures = [(few if job[0] == "racecheck" else pool).submit(timed, job, i % options.gpus)
                   for i, job in enumerate(jobs)]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--gpus", type=int, default=1, help="jobs take turns on so many")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("programs", nargs="*", metavar="TEST_PROGRAM")
    options = parser.parse_args()
    options.logs = options.logs or options.build / "sanitizer"
    options.logs.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options = parse_arguments()
    tests = options.build / "tests"
    programs = [tests / name for name in options.programs] or sorted(tests.glob("*_test"))
    clean = options.logs / "clean"
    clean.touch()
    done = clean.read_text(encoding="utf-8").splitlines()
    jobs = jobs_of(programs, options.tool or list(TOOLS))
    wrong = 0
    with open(clean, "a", encoding="utf-8") as list_of_clean:
        for job, problem, seconds in run_all([j for j in jobs if name_of(j) not in done], options):
            print(f"{name_of(job)}: {problem or f'clean, {seconds:.0f} s'}", flush=True)
            if problem:
                wrong += 1
            else:
                print(name_of(job), file=list_of_clean, flush=True)
    print(f"{len(jobs)} jobs, {wrong} not clean")
    return 1 if wrong or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
