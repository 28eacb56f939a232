import json
from pathlib import Path

import pytest
from gymfleet_contracts.formats.agentbench_os import AgentbenchOs
from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_env_server.catalogue import load_entry
from gymfleet_env_server.importing import import_benchmark
from gymfleet_envs.os.actions import Bash, Commit, bash, read_action
from gymfleet_envs.os.agentbench import agentbench_tasks
from gymfleet_envs.os.environment import OsInteraction
from gymfleet_envs.os.generate import LEVELS
from gymfleet_envs.os.observation import plain, shown
from gymfleet_envs.os.sandbox.base import Head, Ran
from gymfleet_envs.os.scoring import compare
from gymfleet_envs.os.task import Comparison, Match, Script
from gymfleet_envs.os.tasks import generated_tasks
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.paths import SHARED_DATA

FORMAT = AgentbenchOs(FormatOptions())

DATA = SHARED_DATA / "agentbench_os"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash\n\n```bash\nls -la\n```", Bash("ls -la")),
        ("```bash\nls\npwd\n```", Bash("ls\npwd")),
        ("bash ls /etc | wc -l", Bash("ls /etc | wc -l")),
        ("Think: look.\n\nAct: bash\n\n```bash\nls\n```", Bash("ls")),
        ("Think: two.\n\nAct: bash\n\n```bash\na\n```\nand\n```bash\nb\n```", Bash("a\n\nb")),
        ("Think: done.\n\nAct: answer(220)", Commit("220")),
        ("answer(f(x) = (1))", Commit("f(x) = (1)")),
        ("answer()", Commit("")),
        ("Answer( 42 )", Commit(" 42 ")),
        ("finish", Commit(None)),
        ("Finish.", Commit(None)),
        ("Think: yes.\n\nAct: finish", Commit(None)),
        ("bash", None),
        ("bashful", None),
        ("answer 42", None),
        ("answer)42(", None),
        ("finish the file now please", None),
        ("ls -la", None),
        ("", None),
        ("```bash\nls", None),
    ],
)
def test_what_an_action_means(text: str, expected: Bash | Commit | None) -> None:
    assert read_action(text) == expected


@pytest.mark.parametrize(
    ("text", "action", "well_formed"),
    [
        ("Think: a\n\nAct: bash\n\n```bash\nls\n```", "bash\n\n```bash\nls\n```", True),
        ("Think: a\n\nAct: answer(4)", "answer(4)", True),
        ("Think: a\n\nAct: finish", "finish", True),
        ("Act: finish", "finish", False),
        ("Think: a\nAct: answer(1)\nAct: answer(2)", "answer(2)", False),
        ("Think: a\nAct: ANSWER (4) or so", "answer(4)", False),
        ("Think: a\nAct: bash\nlike so:\n```bash\nls\n```\nI hope.", "bash\n\n```bash\nls\n```", False),
        ("Think: a\nAct: think more", None, False),
        ("Thought: a Action: finish", None, False),
        ("", None, False),
    ],
)
def test_format_reads_replies_as_agentbench_does(text: str, action: str | None, well_formed: bool) -> None:
    parsed = FORMAT.parse(text)

    assert (parsed.action, parsed.well_formed) == (action, well_formed)


@pytest.mark.parametrize(
    "action", [bash("ls\n\necho 'Act: x'"), bash("for f in *; do\n  cat $f\ndone"), "answer(a (b))"]
)
def test_format_reads_what_it_wrote(action: str) -> None:
    parsed = FORMAT.parse(FORMAT.render("I think.", action))

    assert read_action(parsed.action or "") == read_action(action)


def test_hostile_replies_are_read_in_linear_time() -> None:
    for text in ("```bash\n" * 20_000, "Act: bash\n" * 20_000, "Act: bash\n\n```bash\n" + "`" * 100_000):
        FORMAT.parse(text)
        read_action(text)


@pytest.mark.parametrize(
    ("kind", "given", "printed", "expected"),
    [
        ("integer-match", "3", "3\n", True),
        ("integer-match", " 03 ", "3\n", True),
        ("integer-match", "4", "3\n", False),
        ("integer-match", "three", "3\n", False),
        ("integer-match", "3", "", False),
        ("integer-match", "9" * 100_000, "9" * 100_000, False),
        ("string-match", "a b\r\n", " a b\n", True),
        ("string-match", "A", "a", False),
        ("size-match", "4K", "4096\n", True),
        ("size-match", "1M", "1024K", True),
        ("size-match", "4KB", "4K", False),  # upstream reads "4K" before the "B" as a number, and fails
        ("size-match", "4.0K", "4.0K", False),
        ("size-match", "None", "4K", False),
    ],
)
def test_comparisons(kind: Comparison, given: str, printed: str, expected: bool) -> None:
    assert compare(kind, [given, printed]) is expected


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (Ran(b"220\n", 0), "The output of the OS:\n\n220"),
        (Ran(b"", 0), "The output of the OS is empty."),
        (Ran(b"x" * 800, 0), "The output of the OS:\n\n" + "x" * 800),
        (Ran(b"x" * 801, 0), f"The output of the OS:\n\n{'x' * 780}\n[truncated because the output is too long]"),
        (
            Ran(b"a\n", None, timed_out=True),
            "The output of the OS:\n\na\n[stopped: the command ran for more than 10 seconds]",
        ),
        (
            Ran(b"", None, shell_ended=True),
            "The output of the OS:\n\n[the shell ended; the next command gets a new one in /]",
        ),
    ],
)
def test_output_is_shown_as_agentbench_does(ran: Ran, expected: str) -> None:
    assert shown(ran, 10) == expected


def test_control_characters_do_not_pass() -> None:
    assert plain(b"\x1b[31mred\x1b[0m \x1b]0;title\x07a\x00b\x08\r\nc\xff\x9b\x7f\n\n") == "red ab\nc\ufffd\ufffd"


def test_head_keeps_the_beginning_and_says_that_there_was_more() -> None:
    head = Head(4)

    for chunk in (b"abc", b"de", b"f" * 1000):
        head.add(chunk)

    assert (bytes(head.data), head.cut) == (b"abcd", True)


def test_there_is_something_to_change_in_every_chore() -> None:
    tasks = generated_tasks()

    for index in range(400):
        task = tasks.by_index("train", "change", index).data
        written = task.init[0].code.splitlines()
        if task.description.startswith("Delete the empty files"):
            assert any(line.startswith("printf %s '' > ") for line in written)
        if task.description.startswith("Replace the word"):
            old = task.description.split('"')[1]
            assert any(f" {old} " in f" {line} ".replace("'", " ") for line in written), task.description


@pytest.mark.parametrize("level", LEVELS)
def test_generated_tasks_hold_no_answer_in_what_is_shown(level: str) -> None:
    tasks = generated_tasks()
    for index in range(30):
        task = tasks.by_index("train", level, index).data

        assert task == tasks.by_index("train", level, index).data
        assert task.plan
        assert (task.match is None) == task.chore == bool(task.check)
        assert len(task.description) < 200


def write(directory: Path, content: object, name: str = "training.json") -> Path:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


CHECKED = {
    "description": "How many?",
    "create": {"init": "touch a"},
    "evaluation": {"check": [None, {"language": "python", "file": "check/integer-match.py"}], "example": "ls | wc -l"},
}


def test_agentbench_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, [CHECKED, CHECKED | {"start": "sleep 1 &", "evaluation": {"match": "7"}}])
    scripted = {"check": {"file": "check/0.sh"}, "example": {"file": "gone.sh"}}
    known = {"check": [{"language": "python", "file": "check/0.py"}]}
    write(tmp_path, [{"description": "d", "evaluation": {"match": {"regex": "^a+$"}}}], "other.json")
    write(tmp_path, [CHECKED | {"evaluation": scripted}, CHECKED | {"evaluation": known}], "dev.json")
    (tmp_path / "scripts" / "dev" / "check").mkdir(parents=True)
    (tmp_path / "scripts" / "dev" / "check" / "0.py").write_text("exit(0)")

    tasks = agentbench_tasks(tmp_path)

    first, second = (tasks.by_id(f"training-0000{place}").data for place in range(2))
    assert (first.init, first.check, first.example) == (
        (Script("touch a"),),
        (None, "integer-match"),
        Script("ls | wc -l"),
    )
    assert first.plan[0][1] == "ls | wc -l"
    assert (second.start, second.match, second.plan) == ("sleep 1 &", Match("7", strip=True), ())
    assert tasks.by_id("other-00000").split == "test"
    assert tasks.count("validation", "default") == 1, "the task whose script is not there is left out"
    assert tasks.by_id("dev-00001").data.check == (Script("exit(0)", "python"),)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "training.json is not JSON"),
        ("7", "must hold a list"),
        ([7], r"training.json\[0\]: the task is not an object"),
        ([{"description": "d"}], "evaluation is not an object"),
        ([{"description": "d", "evaluation": {}}], "neither match nor check"),
        ([{"description": "d", "evaluation": {"check": [None]}}], "no example"),
        ([{"description": 7, "evaluation": {"match": "a"}}], "description is not a text"),
        ([{"description": "d", "evaluation": {"match": {}}}], "one of answer and regex"),
        ([{"description": "d", "evaluation": {"match": {"regex": "("}}}], "evaluation.match.regex"),
        ([{"description": "d", "evaluation": {"check": [{"language": "c++", "code": ""}]}}], "'c\\+\\+'; known"),
        ([{"description": "a\0b", "evaluation": {"match": "a"}}], "without NUL"),
    ],
    ids=str,
)
def test_damaged_files_are_refused_with_their_fault(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(TaskDataError, match=complaint):
        agentbench_tasks(write(tmp_path, content))


def published(tree: Path) -> Path:
    """AgentBench's `os_interaction` in small: two numbered sets, dev, training, and a file that is in no set."""
    scripted = {"description": "d", "evaluation": {"check": {"file": "check/a.sh"}}}
    files: dict[str, object] = {
        "data/1/stock.json": [CHECKED, scripted],
        "data/4/Q09.json": scripted,
        "data/4/N11.json": [CHECKED | {"create": {"init": {"file": "init/i.sh"}}}],
        "data/6-backup.json": [CHECKED] * 3,
        "data/dev.json": [scripted],
        "train_0317/training.json": [CHECKED, scripted],
    }
    scripts = {"1/check/a.sh": "exit 1", "4/check/a.sh": "exit 4", "7/check/a.sh": "exit 7", "dev/check/a.sh": "exit 0"}
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(json.dumps(content))
    for name, code in scripts.items():
        (tree / "scripts" / name).parent.mkdir(parents=True)
        (tree / "scripts" / name).write_text(code)
    return tree


@pytest.mark.parametrize("place", ["", "data", ".."], ids=["os_interaction", "its data", "above"])
@pytest.mark.parametrize("imported", [False, True], ids=["read", "imported"])
def test_the_published_tree_is_read_from_any_place_in_it(tmp_path: Path, place: str, imported: bool) -> None:
    tree = published(tmp_path / "data" / "os_interaction")
    source = (tree / place).resolve()
    if imported:
        (tmp_path / "home").mkdir()
        OsInteraction.import_data(source, tmp_path / "home")
        source = tmp_path / "home"

    tasks = agentbench_tasks(source)

    assert [tasks.by_index("test", "default", place).task_id for place in range(tasks.count("test", "default"))] == [
        "std-001-stock-00000", "std-001-stock-00001", "std-004-Q09-00000",
    ]  # fmt: skip
    assert tasks.by_id("std-001-stock-00001").data.check == (Script("exit 1"),), "each set has its own scripts"
    assert tasks.by_id("std-004-Q09-00000").data.check == (Script("exit 4"),)
    assert tasks.by_id("dev-001-dev-00000").data.check == (Script("exit 0"),)
    assert tasks.by_id("training-00001").data.check == (Script("exit 7"),)
    assert (tasks.count("train", "default"), tasks.count("validation", "default")) == (2, 1)
    assert tasks.left_out == (
        "data/6-backup.json: AgentBench's configuration does not name it",
        "std-004-N11-00000: no file init/i.sh in scripts/4",
    )


def test_the_repository_is_a_place_too(tmp_path: Path) -> None:
    published(tmp_path / "data" / "os_interaction")

    assert agentbench_tasks(tmp_path).count("test", "default") == 3


def test_import_says_what_it_left_out(tmp_path: Path) -> None:
    tree = published(tmp_path / "os_interaction")

    found = import_benchmark("os", tree, tmp_path / "home")

    assert found["tasks"] == {"default": {"train": 2, "validation": 1, "test": 3}}
    assert found["left_out"][1] == "std-004-N11-00000: no file init/i.sh in scripts/4"
    load_entry("os", {})


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"no \.json file"):
        agentbench_tasks(tmp_path)


def test_a_script_outside_of_the_directory_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret").write_text("secret")
    write(tmp_path / "data", [CHECKED | {"evaluation": {"check": [{"file": "../secret"}]}}, CHECKED])

    tasks = agentbench_tasks(tmp_path / "data")

    assert tasks.count("train", "default") == 1


@pytest.mark.parametrize("data", [DATA] if DATA.is_dir() else [], ids=["upstream"])
def test_all_training_tasks_load(data: Path) -> None:
    tasks = agentbench_tasks(data)

    assert tasks.count("train", "default") == 1000
    assert tasks.count("validation", "default") >= 23
    assert {tasks.by_index("train", "default", i).data.check[0] for i in range(1000)} == {None}
