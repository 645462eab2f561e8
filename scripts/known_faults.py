#!/usr/bin/env python3
"""Checks that each family of docs/known_faults.md has tests whose names hold its number.

  scripts/known_faults.py [--build build]            fails where a family has no test on the CPU or
                                                     on CUDA, or a test no family
  scripts/known_faults.py [--build build] --tests    lists the tests of each family

The tests are those that the programs in the build's tests/ list. Tests of CUDA have Cuda in their
names. Families that no kernel has a part in need none, those too large for the CPU only these.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNT = 107
# The tape's depth, files: code of the host.
HOST_ONLY = {f"D{number:03}" for number in [74, 75, *range(87, 101)]}
CUDA_ONLY = {"D104", "D105"}


def families():
    lists = (ROOT / "docs/known_faults.md").read_text().split("## Normalization")[1]
    return re.findall(r"^\| (D\d{3}) \|", lists, re.M)


def tests(build):
    """number -> names of its tests"""
    found = {}
    for program in sorted((build / "tests").glob("*_test")):
        listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True,
                                text=True).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.split("#")[0].strip()
            if not line.startswith(" "):
                suite = name
                continue
            for number in re.findall(r"D\d{3}", name.split("/")[0]):
                found.setdefault(number, []).append(suite + name)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--tests", action="store_true")
    arguments = parser.parse_args()
    listed, found = families(), tests(arguments.build.resolve())
    problems = []
    if listed != [f"D{number:03}" for number in range(1, COUNT + 1)]:
        problems.append(f"docs/known_faults.md does not list D001 to D{COUNT} once and in order")
    for number in listed:
        names = found.get(number, [])
        if arguments.tests:
            print("\n  ".join([number, *names]))
        on_cuda = [name for name in names if "Cuda" in name]
        if len(on_cuda) == len(names) and number not in CUDA_ONLY:
            problems.append(f"{number}: no test on the CPU")
        if not on_cuda and number not in HOST_ONLY:
            problems.append(f"{number}: no test on CUDA")
    problems += [f"{number}: tested, but not in docs/known_faults.md" for number in sorted(found)
                 if number not in listed]
    count = sum(len(names) for names in found.values())
    print(f"known faults: {len(listed)} families, {count} tests, {len(problems)} problems")
    print("\n".join(f"  {problem}" for problem in problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
