"""The conformance suite of reply formats: over all that come with gymfleet, and over broken ones."""

import gc
import re
import time
from pathlib import Path

import pytest
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_kit.formats import FORMATS, format_of
from gymfleet_rollout.format_checks import examine
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rollout.test_formats import MINE

MARKERS = (
    "Thought:", "Action:", "Think:", "Act:", "Final Answer:", "Answer\n", "Operation\n", "bash", "finish", "answer(",
    ")", "`", "```", "```sql", "```bash\n", "\n```", "<think>", "</think>", "<action>", "</action>", " ", "\n",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(MARKERS) | st.text(max_size=8), max_size=14).map("".join)
FORMATS_BY_NAME = {name: format_of(FormatSection(use=name)) for name in FORMATS.included()}
PARSE = "        action, mark, _ = text.partition(self.options.mark)\n"
READ = 'return ParsedReply("", action.strip() or None, bool(mark and action.strip()), bool(mark))'


@pytest.mark.parametrize("name", FORMATS.included())
def test_those_that_come_with_gymfleet_are_sound(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize("name", FORMATS.included())
@given(TEXTS)
def test_any_text_can_be_read(name: str, text: str) -> None:
    reply_format = FORMATS_BY_NAME[name]

    for end in {len(text), len(text) // 2}:
        parsed = reply_format.parse(text[:end])
        assert parsed.action is None or parsed.action.strip() == parsed.action


def test_collections_of_garbage_are_not_held_against_a_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.thread_time
    collecting: set[bool] = set()

    def watched() -> float:
        collecting.add(gc.isenabled())
        return clock()

    monkeypatch.setattr(time, "thread_time", watched)

    assert examine("plain") == []
    assert collecting == {False}, "a collection takes a second in a process of many objects"
    assert gc.isenabled()


def test_a_sound_one_of_somebodys_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)

    assert examine(str(path)) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param('"Shout."', '""', "the format mine has no complaint: ''", id="an empty complaint"),
        pytest.param("version = 3", "version = 0", "version is 0; it counts from 1", id="no version"),
        pytest.param("version = 3", "examples = ()", "examples is \\(\\)", id="no examples"),
        pytest.param(
            "version = 3", "examples = ('a!b',)", "writes the action 'a!b' as 'a!b!' and reads 'a'", id="lossy"
        ),
        pytest.param(
            "bool(mark and", "bool(not mark and", "it writes 'look!', which it does not read as", id="unformed"
        ),
        pytest.param(
            "bool(mark))", "True)", "'l', cut off from 'look!', is read as the complete action 'l'", id="halves"
        ),
        pytest.param("action.strip() or None", "action", "the action is ' '; .*, for ", id="blank actions"),
        pytest.param(PARSE, "        assert '[' not in text\n" + PARSE, "failed in parse: AssertionError", id="raises"),
        pytest.param(
            PARSE, "        text.encode('ascii')\n" + PARSE, "failed in parse: UnicodeEnc.*, for ", id="unicode"
        ),
        pytest.param(
            PARSE,
            "        self.n = getattr(self, 'n', 0) + 1\n        text = '' if self.n == 20 else text\n" + PARSE,
            "the same reply is read in different ways",
            id="keeps something",
        ),
        pytest.param(
            PARSE,
            "        import re\n        re.match(r'(\\s*\\w*)*#', text)\n" + PARSE,
            "parse takes .* s for .* characters, many of them ",
            id="exponential",
        ),
        pytest.param(
            PARSE,
            "        import re\n        re.search(r'\\s+!', text)\n" + PARSE,
            "parse takes .* s for .* characters, many of them '",
            id="quadratic",
        ),
    ],
)
def test_a_broken_one_is_caught(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in MINE
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace(old, new))

    told = examine(str(path))

    assert any(re.search(reason, line) for line in told), told
    assert all("\n" not in line for line in told)


def test_one_that_does_not_exist_is_a_line() -> None:
    (told,) = examine("morse")

    assert told.startswith("there is no format 'morse'")
