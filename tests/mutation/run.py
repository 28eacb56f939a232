"""Mutation testing: what fraction of small changes to a module its tests notice (`make mutation`).

Each process works on a copy of the tree. What was tried is kept in `runs/mutation/results.jsonl`, so that a run that
was interrupted goes on.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("contracts", "environments", "kit", "clients/cli", "clients/conformance", "clients/python", "services/*")
TIMEOUT_FACTOR = 3.0
TIMEOUT_MORE_S = 30.0
IN_ANNOTATIONS = "BitOr"
"""`X | None` is a union of types nearly everywhere: mutants of it are broken annotations, not broken behaviour."""
BINARY = "ReplaceBinaryOperator"
ARITHMETIC = frozenset({"arith_expr", "term", "power", "shift_expr", "and_expr", "xor_expr", "expr"})
"""Where a sign is an operator: the star of a signature or of an unpacked argument is none."""


@dataclass(frozen=True)
class Mutant:
    """One change to one module, and the tests that should notice it."""

    module: str
    operator: str
    occurrence: int
    line: int
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.module}:{self.operator}:{self.occurrence}"


@dataclass(frozen=True)
class Tried:
    """What became of it."""

    key: str
    module: str
    line: int
    outcome: str
    diff: str
    seconds: float


def mutants() -> Iterator[Mutant]:
    """Every mutant of every target."""
    targets = tomllib.loads((ROOT / "tests/mutation/targets.toml").read_text())["target"]
    for target in targets:
        for place in target["modules"]:
            path = ROOT / place
            for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
                yield from _of(str(module.relative_to(ROOT)), tuple(target["tests"]))


def _of(module: str, tests: tuple[str, ...]) -> Iterator[Mutant]:
    tree = get_ast_from_path(ROOT / module)
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments() or IN_ANNOTATIONS in name:
            continue
        operator = kind()
        places = ((node, start) for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, (node, (line, _)) in enumerate(places):
            if BINARY not in name or node.parent.type in ARITHMETIC:
                yield Mutant(module, name, occurrence, line, tests)


def nearest_first(module: str, tests: tuple[str, ...]) -> list[Path]:
    """The files of the tests: those named after the module, and then those that speak of it most often, come first."""
    name = Path(module).parent.name if module.endswith("__init__.py") else Path(module).stem
    word = re.compile(rf"(?<![a-zA-Z0-9]){name}(?![a-zA-Z0-9])")
    given = [ROOT / test for test in tests]
    files = [file for one in given for file in ([one] if one.is_file() else sorted(one.rglob("test_*.py")))]
    near = {file: (bool(word.search(file.stem)), len(word.findall(file.read_text()))) for file in files}
    return [file.relative_to(ROOT) for file in sorted(near, key=near.__getitem__, reverse=True)]


def command(tests: Iterable[object]) -> str:
    """The tests, in order, up to the first failure."""
    return f"{ROOT}/.venv/bin/python -m pytest -x -q -p no:cacheprovider -p no:randomly {' '.join(map(str, tests))}"


def into_a_copy(work: str) -> None:
    """Begin a worker process: with a copy of the tree, in which it works."""
    copy = Path(tempfile.mkdtemp(dir=work)) / "main"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, files)):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    if (ROOT.parent / "shared").exists():
        (copy.parent / "shared").symlink_to(ROOT.parent / "shared")
    os.chdir(copy)
    paths = [str(path) for place in PLACES for path in sorted(copy.glob(place))]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    python, by_hash = f"{ROOT}/.venv/bin/python", ("--invalidation-mode", "checked-hash")
    subprocess.run([python, "-m", "compileall", "-q", *by_hash, *paths], env=os.environ, check=True)


def baseline(tests: tuple[str, ...]) -> tuple[tuple[str, ...], float, str]:
    """How long the tests take on sound sources, and what they print if they fail."""
    began = time.monotonic()
    done = subprocess.run(command(tests).split(), capture_output=True, text=True, check=False)
    return tests, time.monotonic() - began, "" if done.returncode == 0 else done.stdout[-2000:]


def attempt(work: tuple[Mutant, float]) -> Tried:
    """Make the change, run the tests, take it back."""
    mutant, timeout_s = work
    began = time.monotonic()
    spec = MutationSpec(Path(mutant.module), mutant.operator, mutant.occurrence, (mutant.line, 0), (mutant.line, 1))
    tests = nearest_first(mutant.module, mutant.tests)
    result = mutate_and_test([spec], command(tests), timeout_s)
    sound = result.worker_outcome is WorkerOutcome.NORMAL
    outcome = str(result.test_outcome.value) if sound and result.test_outcome else "no mutant"
    if outcome == TestOutcome.INCOMPETENT.value:
        outcome = TestOutcome.KILLED.value
    return Tried(mutant.key, mutant.module, mutant.line, outcome, changed(result.diff or ""), time.monotonic() - began)


def changed(diff: str) -> str:
    """The changed lines of a diff, without their indentation."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


def run(options: argparse.Namespace) -> list[Tried]:
    """Try a sample of all mutants; those that were tried before are not tried again."""
    chosen = [mutant for mutant in mutants() if options.only in mutant.module]
    if 0 < options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    results = options.out / "results.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    lines = results.read_text().splitlines() if results.exists() else []
    known = {tried.key: tried for tried in (Tried(**json.loads(line)) for line in lines)}
    left = [mutant for mutant in chosen if mutant.key not in known]
    print(f"mutation: {len(chosen)} mutants, {len(chosen) - len(left)} tried before", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as work, _pool(options.jobs, work) as pool:
        times: dict[tuple[str, ...], float] = {}
        for tests, seconds, fault in pool.imap_unordered(baseline, {mutant.tests for mutant in left}):
            if fault:
                sys.exit(f"mutation: the tests fail without any change: {' '.join(tests)}\n{fault}")
            times[tests] = seconds
            print(f"mutation: {seconds:.0f} s for {' '.join(tests)}", flush=True)
        work_list = [(mutant, TIMEOUT_FACTOR * times[mutant.tests] + TIMEOUT_MORE_S) for mutant in left]
        with results.open("a") as file:
            for number, tried in enumerate(pool.imap_unordered(attempt, work_list), 1):
                known[tried.key] = tried
                file.write(json.dumps(asdict(tried)) + "\n")
                file.flush()
                print(f"[{number}/{len(left)}] {tried.outcome} {tried.seconds:.0f} s {tried.key}", flush=True)
    return [known[mutant.key] for mutant in chosen]


def _pool(jobs: int, work: str) -> Pool:
    return multiprocessing.Pool(jobs, initializer=into_a_copy, initargs=(work,))


def report(tried: list[Tried]) -> float:
    """Print what survived, and return the share that was killed of those that can be noticed."""
    explained: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mutation/survivors.toml").read_text())["survivors"]
    reasons = {(each["module"], each["diff"].strip()): each["why"] for each in explained}
    counts: Counter[str] = Counter()
    by_module: dict[str, Counter[str]] = {}
    for each in tried:
        outcome = each.outcome
        if outcome == TestOutcome.SURVIVED.value and (why := reasons.get((each.module, each.diff))):
            outcome = "explained"
            print(f"\n{each.module}:{each.line}: {why}\n{each.diff}")
        elif outcome == TestOutcome.SURVIVED.value:
            print(f"\n{each.module}:{each.line}: SURVIVED\n{each.diff}")
        counts[outcome] += 1
        by_module.setdefault(each.module, Counter())[outcome] += 1
    print()
    for module, found in sorted(by_module.items()):
        print(f"{module}: {', '.join(f'{number} {outcome}' for outcome, number in sorted(found.items()))}")
    told = counts["killed"] + counts["survived"]
    share = counts["killed"] / told if told else 1.0
    print(f"\n{counts['killed']} of {told} killed ({share:.1%}); {counts['explained']} more cannot be noticed")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=400, help="how many mutants; 0 is all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="modules whose path holds this")
    parser.add_argument("--least", type=float, default=0.9, help="below this share the exit code is 1")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutation")
    options = parser.parse_args()
    sys.exit(report(run(options)) < options.least)


if __name__ == "__main__":
    main()
