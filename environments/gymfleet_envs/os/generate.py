"""Generates OS tasks. Python code here computes the right answers from the data that the files are made of."""

import random
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Final

from gymfleet_envs.os.task import Match, OsTask, Script

LEVELS: Final = ("count", "filter", "text", "change")
"""Easiest first: count files; count files or lines that meet a condition; work on texts; change files."""

_PLACES: Final = ("data", "docs", "work", "notes", "files", "store", "inbox", "drafts", "plans", "items")
_WORDS: Final = (
    "apple", "river", "stone", "cloud", "maple", "tiger", "piano", "lemon", "robot", "candle", "garden", "bridge",
    "window", "pencil", "rocket", "basket", "violin", "harbor", "meadow", "pepper", "salmon", "velvet", "walnut",
    "zebra", "anchor", "button", "castle", "dragon", "engine", "falcon",
)  # fmt: skip
_PEOPLE: Final = ("anna", "boris", "clara", "david", "elena", "felix", "greta", "hugo", "irma", "jonas")
_ENDINGS: Final = ("txt", "log", "csv", "md", "sh", "cfg")
_MTIME: Final = 1_700_000_000

_Plan = tuple[tuple[str, str], ...]
_Make = Callable[[random.Random], OsTask]


def generate(rng: random.Random, level: str) -> OsTask:
    """A task of a level; equal draws give equal tasks."""
    return rng.choice(_MAKERS[level])(rng)


def _count_files(rng: random.Random) -> OsTask:
    place = f"/root/{rng.choice(_PLACES)}"
    names = rng.sample(_WORDS, rng.randint(1, 9))
    return _question(
        f"How many files are in {place}?",
        _written({f"{place}/{name}": f"{name}\n" for name in names}),
        (("I count the files.", f"ls {place} | wc -l"),),
        len(names),
    )


def _count_ending(rng: random.Random) -> OsTask:
    place, ending = _place(rng), rng.choice(_ENDINGS)
    names = _named(rng, rng.randint(6, 14))
    count = sum(name.endswith(f".{ending}") for name in names)
    return _question(
        f"How many files whose name ends with .{ending} are in {place} and the directories in it?",
        _written({f"{place}/{rng.choice(('', 'old/', 'new/'))}{name}": f"{name}\n" for name in names}),
        (("I find the files with that ending and count them.", f"find {place} -type f -name '*.{ending}' | wc -l"),),
        count,
    )


def _count_larger(rng: random.Random) -> OsTask:
    place, limit = _place(rng), rng.choice((100, 200, 500, 1000))
    sizes = {name: rng.choice((limit // 2, limit - 1, limit, limit + 1, 2 * limit)) for name in _named(rng, 10)}
    return _question(
        f"How many files in {place} are larger than {limit} bytes?",
        _written({f"{place}/{name}": "x" * size for name, size in sizes.items()}),
        (("I find the files by their size.", f"find {place} -type f -size +{limit}c | wc -l"),),
        sum(size > limit for size in sizes.values()),
    )


def _count_executable(rng: random.Random) -> OsTask:
    place = _place(rng)
    modes = {f"{place}/{name}": rng.choice((0o644, 0o755, 0o600, 0o744)) for name in _named(rng, 9)}
    return _question(
        f"How many files in {place} may their owner execute?",
        _written(dict.fromkeys(modes, "true\n"), modes),
        (("The owner's bit for executing is 100.", f"find {place} -type f -perm -100 | wc -l"),),
        sum(bool(mode & 0o100) for mode in modes.values()),
    )


def _count_lines(rng: random.Random) -> OsTask:
    place, word = _place(rng), rng.choice(_WORDS)
    texts = {f"{place}/{name}": _lines(rng, rng.randint(2, 6), word) for name in _named(rng, 4)}
    count = sum(word in line.split() for text in texts.values() for line in text.splitlines())
    return _question(
        f'How many lines of the files in {place} contain the word "{word}"?',
        _written(texts),
        (("I print the lines with that word and count them.", f"cat {place}/* | grep -c -w {word} || true"),),
        count,
    )


def _sum_column(rng: random.Random) -> OsTask:
    path, person = f"{_place(rng)}/sales.csv", rng.choice(_PEOPLE)
    rows = [(rng.choice((person, *rng.sample(_PEOPLE, 3))), rng.randint(1, 99)) for _ in range(rng.randint(8, 20))]
    text = "name,amount\n" + "".join(f"{name},{amount}\n" for name, amount in rows)
    return _question(
        f"In {path} each line has a name and an amount. What is the sum of the amounts of {person}?",
        _written({path: text}),
        (
            (
                "I add up the second column of those lines.",
                f"awk -F, '$1==\"{person}\"{{s+=$2}} END{{print s+0}}' {path}",
            ),
        ),
        sum(amount for name, amount in rows if name == person),
    )


def _most_frequent(rng: random.Random) -> OsTask:
    path = f"{_place(rng)}/visits.log"
    people = rng.sample(_PEOPLE, 5)
    counts = dict(zip(people, rng.sample(range(1, 9), 5), strict=True))
    visits = [person for person, count in counts.items() for _ in range(count)]
    rng.shuffle(visits)
    text = "".join(f"{hour % 24:02d}:00 {person} entered\n" for hour, person in enumerate(visits))
    return _question(
        f"Each line of {path} tells who entered. Who entered most often? Answer with the name.",
        _written({path: text}),
        (("I count the names and take the most frequent.",
          f"awk '{{print $2}}' {path} | sort | uniq -c | sort -rn | head -n 1 | awk '{{print $2}}'"),),
        max(counts, key=lambda person: counts[person]),
    )  # fmt: skip


def _count_distinct(rng: random.Random) -> OsTask:
    place = _place(rng)
    texts = {f"{place}/{name}": "".join(f"{rng.choice(_WORDS)}\n" for _ in range(8)) for name in _named(rng, 3)}
    return _question(
        f"How many different lines do the files in {place} have together?",
        _written(texts),
        (("I sort the lines of all files without repetitions and count them.", f"sort -u {place}/* | wc -l"),),
        len({line for text in texts.values() for line in text.splitlines()}),
    )


def _largest(rng: random.Random) -> OsTask:
    place = _place(rng)
    names = _named(rng, 8)
    sizes = dict(zip(names, rng.sample(range(50, 2000), len(names)), strict=True))
    return _question(
        f"What is the name of the largest file in {place}? Answer with the name alone.",
        _written({f"{place}/{name}": "x" * size for name, size in sizes.items()}),
        (("I list the files by size and take the first.", f"ls -S {place} | head -n 1"),),
        max(sizes, key=lambda name: sizes[name]),
    )


def _make_executable(rng: random.Random) -> OsTask:
    place = _place(rng)
    names = [*_named(rng, 6), "start.sh"]
    expected = {f"{place}/{name}": "755" if name.endswith(".sh") else "644" for name in names}
    return _chore(
        f"Give all files in {place} that end with .sh the permissions 755. Leave the others as they are.",
        _written(dict.fromkeys(expected, "true\n")),
        f"chmod 755 {place}/*.sh",
        [f'[ "$(stat -c %a {path})" = {mode} ]' for path, mode in expected.items()],
    )


def _rename(rng: random.Random) -> OsTask:
    place = _place(rng)
    before, after = rng.sample(("txt", "md", "log", "cfg"), 2)
    stems = rng.sample(_WORDS, rng.randint(2, 6))
    return _chore(
        f"Rename every file in {place} that ends with .{before} so that it ends with .{after} instead.",
        _written({f"{place}/{stem}.{before}": f"{stem}\n" for stem in stems} | {f"{place}/keep.csv": "keep\n"}),
        f'for f in {place}/*.{before}; do mv "$f" "${{f%.{before}}}.{after}"; done',
        [
            f'[ "$(ls {place} | wc -l)" = {len(stems) + 1} ]',
            *(f'[ "$(cat {place}/{stem}.{after})" = {stem} ]' for stem in stems),
        ],
    )


def _delete_empty(rng: random.Random) -> OsTask:
    place = _place(rng)
    contents = {name: rng.choice(("", f"{name}\n")) for name in _named(rng, 9)}
    contents |= {min(contents): ""}  # or, once in 500, doing nothing would be right
    kept = sorted(name for name, content in contents.items() if content)
    return _chore(
        f"Delete the empty files in {place}.",
        _written({f"{place}/{name}": content for name, content in contents.items()}),
        f"find {place} -type f -empty -delete",
        [f'[ "$(ls {place} | wc -l)" = {len(kept)} ]', *(f"[ -s {place}/{name} ]" for name in kept)],
    )


def _replace(rng: random.Random) -> OsTask:
    place = _place(rng)
    old, new = rng.sample(_WORDS, 2)
    texts = {f"{place}/{name}": _lines(rng, 3, old) for name in _named(rng, 3)}
    texts |= {f"{place}/{old}": f"{old}\n"}  # as above
    return _chore(
        f'Replace the word "{old}" by "{new}" in all files in {place}.',
        _written(texts),
        f"sed -i 's/\\b{old}\\b/{new}/g' {place}/*",
        [f'[ "$(cat {path})" = {quote(text.replace(old, new).rstrip())} ]' for path, text in texts.items()],
    )


_MAKERS: Final[Mapping[str, Sequence[_Make]]] = {
    "count": (_count_files,),
    "filter": (_count_ending, _count_larger, _count_executable, _count_lines),
    "text": (_sum_column, _most_frequent, _count_distinct, _largest),
    "change": (_make_executable, _rename, _delete_empty, _replace),
}


def _question(text: str, init: Script, plan: _Plan, answer: object) -> OsTask:
    return OsTask(text, (init,), match=Match(answer=str(answer), strip=True), plan=plan)


def _chore(text: str, init: Script, command: str, conditions: Sequence[str]) -> OsTask:
    check = Script("\n".join(f"{condition} || exit 1" for condition in conditions))
    return OsTask(text, (init,), check=(check,), plan=(("One command does it.", command),), chore=True)


def _place(rng: random.Random) -> str:
    return f"/root/{rng.choice(_PLACES)}/{rng.choice(_WORDS)}"


def _named(rng: random.Random, count: int) -> list[str]:
    return [f"{stem}.{rng.choice(_ENDINGS)}" for stem in rng.sample(_WORDS, count)]


def _lines(rng: random.Random, count: int, word: str) -> str:
    lines = [[*rng.sample(_WORDS, 3), *([word] if rng.random() < 0.5 else [])] for _ in range(count)]
    return "".join(" ".join(rng.sample(line, len(line))) + "\n" for line in lines)


def _written(files: Mapping[str, str], modes: Mapping[str, int] | None = None) -> Script:
    """Write the files, with fixed times so that two listings of equal tasks are equal."""
    folders = sorted({path.rpartition("/")[0] for path in files})
    lines = [f"mkdir -p {' '.join(folders)}"]
    lines += [f"printf %s {quote(content)} > {path}" for path, content in files.items()]
    lines += [f"chmod {mode:o} {path}" for path, mode in (modes or {}).items()]
    lines.append(f"find {folders[0]} -exec touch -d @{_MTIME} {{}} +")
    return Script("\n".join(lines))
