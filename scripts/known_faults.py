#!/usr/bin/env python3
"""Checks that each family of docs/known_faults.md has a test whose name holds its number.

  scripts/known_faults.py            fails where a family has no test, or a test no family
  scripts/known_faults.py --tests    lists the tests of each family
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNT = 107


def families():
    return re.findall(r"^\| (D\d{3}) \|", (ROOT / "docs/known_faults.md").read_text(), re.M)


def tests():
    """number -> names of its tests"""
    found = {}
    for path in sorted((ROOT / "tests").glob("*.cpp")):
        for suite, name in re.findall(r"^TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\)", path.read_text(), re.M):
            for number in re.findall(r"D\d{3}", name):
                found.setdefault(number, []).append(f"{path.stem}: {suite}.{name}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true")
    listed, found = families(), tests()
    if parser.parse_args().tests:
        for number in listed:
            print("\n  ".join([number, *found.get(number, ["none"])]))
    problems = []
    if listed != [f"D{number:03}" for number in range(1, COUNT + 1)]:
        problems.append(f"docs/known_faults.md does not list D001 to D{COUNT} once and in order")
    problems += [f"{number}: no test" for number in listed if number not in found]
    problems += [f"{number}: not in docs/known_faults.md" for number in sorted(found)
                 if number not in listed]
    count = sum(len(names) for names in found.values())
    print(f"known faults: {len(listed)} families, {count} tests, {len(problems)} problems")
    print("\n".join(f"  {problem}" for problem in problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
