"""A million records through `gymfleet data`: how fast each command reads them, and how much memory it takes.

The records are generated, as long as published ones: AgentTraj-L's form, six messages, a kilobyte. Rates count the
bytes of JSON read, and include the start of the command and its processes.
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.processes import family, resident_bytes
from benchmarks.record import Row, record

SIZES: Final = {"records": Size(1_000_000, smoke=2000), "workers": Size(2, smoke=2)}
RATE_GOAL: Final = 20.0
"""MB/s."""
MEMORY_GOAL: Final = 1000.0
"""MB."""
_SAMPLE_S: Final = 0.05
_WORDS: Final = ("go", "look", "take", "open", "key", "door", "left", "right", "a red ball", "the böx", "inventory")


def main() -> None:
    """Measure every command on the same records, and record the figures."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    with tempfile.TemporaryDirectory(prefix="bench-records-") as directory:
        rows = measure(Path(directory), options.records, options.workers)
    record("records", rows, options)


def measure(directory: Path, count: int, workers: int) -> list[Row]:
    """Convert, filter, split, export and inspect `count` records."""
    given, ours, table = directory / "given.jsonl", directory / "ours.jsonl", directory / "ours.parquet"
    write(given, count)
    shared = ["--workers", str(workers)]
    steps: tuple[tuple[str, Path, list[str]], ...] = (
        ("convert to JSON", given, ["convert", str(given), str(ours), "--from", "agentgym", *shared]),
        ("convert to Parquet", given, ["convert", str(given), str(table), "--from", "agentgym", *shared]),
        ("filter by length and duplicates", ours, ["filter", str(ours), str(directory / "kept.jsonl"),
                                                   "--filter", "length", "--filter", "duplicates"]),
        ("split", ours, ["split", str(ours), str(directory / "part.jsonl"), *shared]),
        ("export to ShareGPT", ours, ["export", str(ours), str(directory / "chats.jsonl"),
                                      "--to", "sharegpt", *shared]),
        ("inspect", ours, ["inspect", str(ours), *shared]),
    )  # fmt: skip
    rows = [Row.of("records", count, ""), Row.of("  their size", given.stat().st_size / 1e6, "MB")]
    for name, read, command in steps:
        size = read.stat().st_size / 1e6
        seconds, peak = timed(command)
        rows.append(Row.of(name, size / seconds, "MB/s", goal=RATE_GOAL))
        rows.append(Row.of("  memory of all its processes", peak / 1e6, "MB", goal=MEMORY_GOAL, lower_is_better=True))
    return rows


def write(path: Path, count: int) -> None:
    """Write records of AgentTraj-L's form; one in a hundred repeats another."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps(_record(number if number % 100 else number // 2, draw), ensure_ascii=False) + "\n")


def _record(number: int, draw: random.Random) -> dict[str, object]:
    said = [{"from": "human", "loss": None, "value": "You are in a maze. Reply with one action. " * 4},
            {"from": "gpt", "loss": False, "value": "OK. I'll follow your instructions."}]  # fmt: skip
    for turn in range(2):
        seen, thought = (" ".join(draw.choices(_WORDS, k=count)) for count in (30, 20))
        said.append({"from": "human", "loss": None, "value": f"Room {number}.{turn}: {seen}"})
        said.append({"from": "gpt", "loss": True, "value": f"Thought:\n{thought}\n\nAction:\ngo {number % 7}"})
    return {"item_id": f"lmrlgym_maze_{number}", "conversations": said}


def timed(command: list[str]) -> tuple[float, int]:
    """Return how long a command takes, and the peak memory of all its processes together."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("gymfleet")), "data", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with _watched(process.pid) as peak:
        _, told = process.communicate()
    if process.returncode:
        raise RuntimeError(f"gymfleet data {command[0]}: {told.decode().strip()[-300:]}")
    return time.perf_counter() - started, max(peak)


@contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    seen, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_S):
            try:
                seen.append(resident_bytes(family(pid)))
            except psutil.Error:  # one of them has just ended
                continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
