"""Calls that are read and never run, BFCL's rules worked out by hand, and dialogues in the depot."""

import json
import random
import time
from pathlib import Path
from typing import Any, cast

import pytest
from gymfleet_envs.environment import Outcome
from gymfleet_envs.function_calling.benchmark import unpack
from gymfleet_envs.function_calling.calls import Call, read_calls, written
from gymfleet_envs.function_calling.checker import Kind, is_right
from gymfleet_envs.function_calling.classes import UnknownSource, load_class
from gymfleet_envs.function_calling.depot import Depot
from gymfleet_envs.function_calling.dialogue import Play
from gymfleet_envs.function_calling.environment import FunctionCalling
from gymfleet_envs.function_calling.task import Dialogue, GoldStep, Question, Questions, Turn
from gymfleet_envs.function_calling.wording import INSTRUCTIONS
from gymfleet_envs.tasks import TaskDataError

BOOK: dict[str, Any] = {
    "name": "table.book",
    "description": "Book a table.",
    "parameters": {
        "type": "dict",
        "properties": {
            "place": {"type": "string"}, "people": {"type": "integer"}, "price": {"type": "float"},
            "dishes": {"type": "array", "items": {"type": "string"}},
            "seats": {"type": "tuple", "items": {"type": "integer"}},
            "guest": {"type": "dict"}, "guests": {"type": "array", "items": {"type": "dict"}},
            "outdoors": {"type": "boolean"},
        },
        "required": ["place"],
    },
}  # fmt: skip
CALL: dict[str, Any] = {"name": "call", "description": "Call.", "parameters": {
    "type": "dict", "properties": {"number": {"type": "integer"}}, "required": ["number"]}}  # fmt: skip


def judged(text: str, possible: dict[str, list[Any]], kind: Kind = "simple") -> bool:
    return is_right(kind, [BOOK, CALL], read_calls(text), [{"table.book": {"place": ["Old Mill"], **possible}}])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[f(a=1, b="x")]', [Call("f", {"a": 1, "b": "x"})]),
        ("f(a=-1.5), g.h(b=[True, None, (1, 2)], c={'k': 'v'})",
         [Call("f", {"a": -1.5}), Call("g.h", {"b": [True, None, (1, 2)], "c": {"k": "v"}})]),
        ("```\n[f()]\n```", [Call("f")]),
        ("[f(a=b, c=d[0], e=g(), h=i(j=1))]",
         [Call("f", {"a": "b", "c": "d[0]", "e": "g()", "h": {"i": {"j": 1}}})]),
        ("[f(1, 'x', a=2)]", [Call("f", {"a": 2}, unnamed=(1, "x"))]),
        ('{"name": "f", "arguments": {"a": [1, null]}}', [Call("f", {"a": [1, None]})]),
        ('[{"name": "f", "arguments": {}}, {"function": "g", "parameters": {"b": true}}]',
         [Call("f"), Call("g", {"b": True})]),
        ("[f(a=1)", [Call("f", {"a": 1})]), ("f(a=1)]", [Call("f", {"a": 1})]),
        ("[f(a=1, a=2)]", [Call("f", {"a": 2})]),
        ("[]", []), ("", []),
        ("I cannot do that.", None),
        ("None", None), ("[f(a=1), 2]", None), ("[f(a=b.c)]", None),
        ("[f(a=not x)]", None), ('{"name": "f"}', None), ("[f(a=[x for x in y])]", None),
        ("[f(a=lambda: 1)]", None), ("[f(a={[1]: 2})]", None), ('[{"name": "f", "arguments": {"a": NaN}}]', None),
    ],
)  # fmt: skip
def test_reading(text: str, calls: list[Call] | None) -> None:
    assert read_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=2**10**9)]", "[f(a='a' * 10**10)]", "[f(**{'a': 1})]", "[f(a=0x" + "f" * 2000 + ")]",
        f"[f(a={'[' * 60}{']' * 60})]", '{"name": "f", "arguments": {"a": ' + "[" * 60 + "]" * 60 + "}}",
    ],
)  # fmt: skip
def test_what_would_have_to_be_computed_is_a_call_that_is_wrong(text: str) -> None:
    """Else nobody would be the worse for trying it where nothing is to be called."""
    begun = time.perf_counter()
    calls = read_calls(text)

    assert calls is not None
    assert calls[0].fault
    assert not is_right("irrelevance", [], calls, [])
    assert not is_right("simple", [{**CALL, "name": "f"}], calls, [{"f": {"number": [1]}}])
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')", "[f(a=__import__('os').system('id'))]", "[().__class__.__base__(a=1)]",
        "[" * 5000, "-" * 16000 + "1", "f(" * 3000, "[f(a=" + "9" * 5000 + ")]", "f" + ".a" * 8000 + "()",
        "[f(a=" + "not " * 4000 + "1)]", '{"a":' * 5000, "\x00", "[f(a='\ud800')]", "((" * 90 + "))" * 90,
    ],
)  # fmt: skip
def test_hostile_texts_are_read_or_not(text: str) -> None:
    calls = read_calls(text[:16384])

    assert calls is None or all(isinstance(call, Call) for call in calls)


def test_an_import_as_an_argument_stays_a_text() -> None:
    assert read_calls("[f(a=__import__('os'))]") == [Call("f", {"a": "__import__('os')"})]


@pytest.mark.parametrize(
    ("arguments", "possible", "right"),
    [
        ("place='Old Mill'", {}, True),
        ("place='old-mill.'", {}, True),
        ("place='Old  M,i/l*l^_'", {}, True),
        ("place='Old Mills'", {}, False),
        ("place=['Old Mill']", {}, False),
        ("people=2", {"people": [2]}, False),
        ("place='Old Mill', people=2", {"people": [2]}, True),
        ("place='Old Mill', people=2.0", {"people": [2]}, False),
        ("place='Old Mill', people=True", {"people": [1]}, False),
        ("place='Old Mill', people='2'", {"people": [2]}, False),
        ("place='Old Mill', people=count", {"people": ["count"]}, True),
        ("place='Old Mill', people=Count", {"people": ["count"]}, False),
        ("place='Old Mill', people=3", {"people": [2, 3]}, True),
        ("place='Old Mill', strange=1", {}, False),
        ("place='Old Mill', people=2", {}, False),
        ("place='Old Mill'", {"people": [2]}, False),
        ("place='Old Mill'", {"people": [2, ""]}, True),
        ("place='Old Mill', people=4", {"people": [2, ""]}, False),
        ("place='Old Mill', price=5", {"price": [5.0]}, True),
        ("place='Old Mill', price=5", {"price": [5]}, True),
        ("place='Old Mill', price='5'", {"price": [5.0]}, False),
        ("place='Old Mill', outdoors=True", {"outdoors": [True]}, True),
        ("place='Old Mill', outdoors=1", {"outdoors": [True]}, False),
        ("place='Old Mill', dishes=['Stew', 'PIE']", {"dishes": [["stew", "pie"]]}, True),
        ("place='Old Mill', dishes=['pie', 'stew']", {"dishes": [["stew", "pie"]]}, False),
        ("place='Old Mill', dishes=('stew', 'pie')", {"dishes": [["stew", "pie"]]}, False),
        ("place='Old Mill', dishes=['stew', 2]", {"dishes": [["stew", "pie"]]}, False),
        ("place='Old Mill', dishes=[]", {"dishes": [["stew"], ""]}, True),
        ("place='Old Mill', dishes=[1]", {"dishes": [["stew"], ""]}, False),
        ("place='Old Mill', seats=(1, 2)", {"seats": [[1, 2]]}, True),
        ("place='Old Mill', seats=[1, 2]", {"seats": [[1, 2]]}, True),
        ("place='Old Mill', seats=[1, '2']", {"seats": [[1, 2]]}, False),
        ("place='Old Mill', guest={'name': 'ADA', 'age': 3}", {"guest": [{"name": ["Ada"], "age": [3]}]}, True),
        ("place='Old Mill', guest={'name': 'Ada'}", {"guest": [{"name": ["Ada"], "age": [3]}]}, False),
        ("place='Old Mill', guest={'name': 'Ada'}", {"guest": [{"name": ["Ada"], "age": [3, ""]}]}, True),
        ("place='Old Mill', guest={'name': 'Ada', 'x': 1}", {"guest": [{"name": ["Ada"]}]}, False),
        ("place='Old Mill', guest={'name': 'Ben'}", {"guest": [{"name": ["Ada"]}, {"name": ["Ben"]}]}, True),
        ("place='Old Mill', guests=[{'n': 'a'}, {'n': 'b'}]", {"guests": [[{"n": ["A"]}, {"n": ["B"]}]]}, True),
        ("place='Old Mill', guests=[{'n': 'b'}, {'n': 'a'}]", {"guests": [[{"n": ["A"]}, {"n": ["B"]}]]}, False),
        ("place='Old Mill', guests=[{'n': 'a'}]", {"guests": [[{"n": ["A"]}, {"n": ["B"]}]]}, False),
    ],
)  # fmt: skip
def test_rules_of_bfcl(arguments: str, possible: dict[str, list[Any]], right: bool) -> None:
    assert judged(f"[table.book({arguments})]", possible) is right


def test_counts_names_and_order() -> None:
    functions = [CALL, BOOK]
    answers: list[Any] = [{"call": {"number": [1]}}, {"call": {"number": [2]}}, {"table.book": {"place": ["x"]}}]

    def right(text: str, kind: Kind, wanted: list[Any] = answers) -> bool:
        return is_right(kind, functions, read_calls(text), wanted)

    assert right("[table.book(place='x'), call(number=2), call(number=1)]", "parallel")
    assert not right("[call(number=2), call(number=2), table.book(place='x')]", "parallel")
    assert not right("[call(number=2), call(number=1)]", "parallel")
    assert not right("[call(number=1), call(number=2), table.book(place='x'), call(number=1)]", "parallel")
    assert right("[table.book(place='x')]", "multiple", answers[2:])
    assert not right("[call(number=1)]", "multiple", answers[2:])
    assert not right("[table_book(place='x')]", "multiple", answers[2:])
    assert right("[call(number=1)]", "simple", answers[:1])
    assert not right("[call(number=1), call(number=1)]", "simple", answers[:1])
    assert not right("call one, please", "simple", answers[:1])
    assert right("call one, please", "irrelevance", [])
    assert not right("[call(number=1)]", "irrelevance", [])
    assert right("[anything()]", "relevance", [])
    assert not right("no", "relevance", [])


def played(task: Questions | Dialogue, *replies: str) -> list[Outcome]:
    environment = FunctionCalling()
    environment.reset(task, 0)
    return [environment.step(reply) for reply in replies]


def test_the_first_observation_is_that_of_bfcls_prompting_mode() -> None:
    task = Questions(json.dumps([CALL]), (Question("Call 7.", "simple", '[{"call": {"number": [7]}}]'),))
    environment = FunctionCalling()

    assert environment.reset(task, 0) == (
        "Here is a list of functions in json format that you can invoke.\n" + json.dumps([CALL], indent=4)
        + "\n\n\nCall 7."
    )  # fmt: skip
    assert "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]" in INSTRUCTIONS
    outcome = environment.step("[call(number=7)]")
    assert (outcome.reward, outcome.score, outcome.terminated) == (1.0, 1.0, True)
    assert not outcome.info


def test_neither_to_call_nothing_nor_to_call_always_solves_a_generated_irrelevance_task() -> None:
    source = FunctionCalling.task_source(None)
    for index in range(30):
        task = cast(Questions, source.by_index("test", "irrelevance", index).data)
        assert sorted(question.kind for question in task.questions) == ["irrelevance", "multiple"]
        gold = [written_gold(task, number) for number in range(2)]
        always = next(reply for reply in gold if reply.startswith("["))
        assert played(task, "I cannot.", "I cannot.")[-1].score == 0
        assert played(task, always, always)[-1].score == 0
        assert [outcome.score for outcome in played(task, *gold)] == [0, 1]


def written_gold(task: Questions, number: int) -> str:
    environment = FunctionCalling()
    environment.reset(task, 0)
    for _ in range(number):
        environment.step(cast(Any, environment.expert()).action)
    return str(cast(Any, environment.expert()).action)


def depot(*turns: Turn) -> Dialogue:
    names = {"find_item": "find", "move_item": "move", "reserve": "reserve", "cancel": "cancel", "label": "label"}
    state = {"shelves": {"A1": {"lamps": 5}, "B2": {}}, "labels": {}, "reservations": {}, "next": 41}
    parameters = (("find_item", ("item",)), ("move_item", ("item", "source", "target", "count")))
    return Dialogue("[]", parameters, turns, "depot", json.dumps({"names": names, **state}))


FIND = "find_item(item='lamps')"
MOVE = "move_item(item='lamps', source='A1', target='B2', count=5)"
TURN = Turn("Move all lamps to B2.", (GoldStep((FIND,), counts=False), GoldStep((MOVE,))))


@pytest.mark.parametrize(
    ("replies", "score"),
    [
        ([f"[{FIND}]", f"[{MOVE}]", "Done."], 1),
        ([f"[{MOVE}]", "Done."], 1),
        ([f"[{FIND}, {MOVE}]", ""], 1),
        ([f"[{FIND}]", "Done."], 0),
        (["Done."], 0),
        ([f"[{MOVE.replace('5', '4')}]", "Done."], 0),
        (["[move_item(item='lamps', source='A1', target='B2', count=2)]",
          "[move_item(item='lamps', source='A1', target='B2', count=3)]", "Done."], 0),
        ([f"[{MOVE}, label(shelf='B2', label='x')]", "Done."], 0),
    ],
)  # fmt: skip
def test_a_turn_is_right_by_its_state_and_its_results(replies: list[str], score: float) -> None:
    """Two moves of 2 and 3 lead to the right state, but never to the result `moved: 5` that is asked for."""
    last = played(depot(TURN), *replies)[-1]

    assert (last.terminated, last.score) == (True, score)


def test_results_of_earlier_turns_count_but_a_turn_needs_a_call() -> None:
    task = depot(Turn("Where are the lamps?", (GoldStep((FIND,)),)), Turn("And now?", (GoldStep((FIND,)),)))

    assert played(task, f"[{FIND}]", "Done.", "Still A1.")[-1].score == 0
    assert played(task, f"[{FIND}]", "Done.", "[find_item(item='fans')]", "Done.")[-1].score == 1
    assert played(task, "[find_item(item='fans')]", "Done.", f"[{FIND}]", "Done.")[-1].score == 0, "too late"


def test_what_is_given_later_cannot_be_called_before() -> None:
    task = depot(Turn("Move all lamps to B2.", ()), Turn("And now?", (GoldStep((MOVE,)),), gives=("move_item",)))

    first, *_, last = played(task, f"[{MOVE}]", "I cannot.", f"[{MOVE}]", "Done.")

    assert "name 'move_item' is not defined" in first.observation
    assert last.score == 1


def test_a_turn_takes_twenty_replies_with_calls() -> None:
    results = played(depot(TURN), *[f"[{FIND}]"] * 19, f"[{MOVE}]", "Done.")
    assert (results[-2].terminated, results[-1].score) == (False, 1)

    results = played(depot(TURN), f"[{MOVE}]", *[f"[{FIND}]"] * 20)
    assert (results[-2].terminated, results[-1].terminated, results[-1].score) == (False, True, 0)


def test_the_depot_answers_in_bfcls_form() -> None:
    outcome = played(depot(TURN), "[find_item(item='lamps'), move_item(item='fans', source='A1', target='B2', count=1),"
                     " find_item(), find_item(item=3), nothing(), find_item(thing='a')]")[0]  # fmt: skip

    assert outcome.observation == repr([
        {"role": "tool", "name": "find_item(item='lamps')", "content": '{"shelves": {"A1": 5}}'},
        {"role": "tool", "name": "move_item(item='fans', source='A1', target='B2', count=1)",
         "content": '{"error": "shelf A1 has 0 fans"}'},
        {"role": "tool", "name": "find_item()",
         "content": "Error during execution: find_item() missing 1 required argument: 'item'"},
        {"role": "tool", "name": "find_item(item=3)",
         "content": "Error during execution: find_item() needs item to be of type string"},
        {"role": "tool", "name": "nothing()", "content": "Error during execution: name 'nothing' is not defined"},
        {"role": "tool", "name": "find_item(thing='a')",
         "content": "Error during execution: find_item() got an unexpected keyword argument 'thing'"},
    ])  # fmt: skip


def test_unnamed_arguments_of_a_reply_are_dropped() -> None:
    """BFCL drops them, and the limits on arguments go by their names."""
    made: list[Call] = []

    class Noted(Depot):
        def call(self, call: Call) -> str:
            made.append(call)
            return ""

    play = Play(depot(TURN), Noted.of(depot(TURN)))
    play.reply("[power(9, 99999999), power(9, exponent=2)]")

    assert made == [Call("power"), Call("power", {"exponent": 2})]


def test_reservations_are_of_what_is_there_and_free() -> None:
    world = Depot.of(depot(TURN))
    reserve = Call("reserve", {"item": "lamps", "count": 3, "customer": "Ada"})

    assert world.call(reserve) == '{"reservation_id": 42}'
    assert world.call(reserve) == '{"error": "2 lamps can be reserved"}'
    assert world.call(Call("cancel", {"reservation_id": 41})) == '{"error": "there is no reservation 41"}'
    assert world.call(Call("cancel", {"reservation_id": 42})) == '{"cancelled": 42}'
    assert world.call(reserve) == '{"reservation_id": 43}'


def test_copies_of_an_episode_go_their_own_ways() -> None:
    environment = FunctionCalling()
    environment.reset(depot(TURN), 0)
    environment.step(f"[{FIND}]")
    key = environment.state_key()
    twin = environment.snapshot()

    twin.step(f"[{MOVE}]")

    assert environment.state_key() == key != twin.state_key()
    assert twin.step("Done.").score == 1
    assert environment.step("Done.").score == 0


def test_every_generated_dialogue_lacks_something_once() -> None:
    source = FunctionCalling.task_source(None)
    held_out = 0
    for index in range(40):
        task = cast(Dialogue, source.by_index("train", "multi_turn", index).data)
        assert len(task.turns) == 4
        assert sum(not turn.steps for turn in task.turns) == 1
        given = [name for turn in task.turns for name in turn.gives]
        held_out += len(given)
        assert not any(f'"{name}"' in task.functions for name in given)
    assert 5 < held_out < 35


def test_tools_spell_calls_and_texts() -> None:
    environment = FunctionCalling()
    calls = [{"name": "call", "arguments": {"number": 7}}]

    assert read_calls(environment.action_of("call", {"calls": cast(Any, calls)})) == [Call("call", {"number": 7})]
    assert read_calls(environment.action_of("say", {"text": "[call(number=7)]"})) is None
    assert read_calls(environment.action_of("say", {"text": '", f(), "'})) is None


def test_requests_say_what_the_answer_holds() -> None:
    """Each value that is right is in the words of its request; truth values are said by the words of their template."""
    source = FunctionCalling.task_source(None)
    for index in range(60):
        for level in ("simple", "multiple", "parallel"):
            question = cast(Questions, source.by_index("train", level, index).data).questions[0]
            for answer in json.loads(question.answers):
                for values in next(iter(answer.values())).values():
                    if "" in values or isinstance(values[0], bool):
                        continue
                    parts = values[0] if isinstance(values[0], list) else [values[0]]
                    assert all(str(part) in question.text for part in parts), (question.text, values)


def package(place: Path, rows: list[Any], answers: list[Any], category: str = "simple_python") -> Path:
    """A package with one category."""
    (place / "data" / "possible_answer").mkdir(parents=True)
    for folder, entries in (("data", rows), ("data/possible_answer", answers)):
        text = "".join(entry if isinstance(entry, str) else f"{json.dumps(entry)}\n" for entry in entries)
        (place / folder / f"BFCL_v4_{category}.json").write_text(text)
    return place


ROW: dict[str, Any] = {
    "id": "simple_python_0",
    "question": [[{"role": "user", "content": "Call 7."}]],
    "function": [CALL],
}
GOLD: dict[str, Any] = {"id": "simple_python_0", "ground_truth": [{"call": {"number": [7]}}]}


def test_rows_are_read_and_scored(tmp_path: Path) -> None:
    source = FunctionCalling.task_source(package(tmp_path, [ROW], [GOLD]))
    task = source.by_id("simple_python_0")

    assert (task.split, task.level) == ("test", "simple_python")
    assert played(cast(Questions, task.data), "[call(number=7)]")[0].score == 1
    assert played(cast(Questions, task.data), "[call(number=8)]")[0].score == 0
    assert "Call. Note that the provided function is in Python 3 syntax." in cast(Questions, task.data).functions


@pytest.mark.parametrize(
    ("rows", "answers", "said"),
    [
        (["{"], [GOLD], "line 1 is not JSON"),
        (["[1]\n"], [GOLD], "line 1 is not an object with a text 'id'"),
        ([ROW], [], "simple_python_0: no answer"),
        ([{**ROW, "function": []}], [GOLD], "function is not a list with something in it"),
        ([{**ROW, "function": [{"name": "f"}]}], [GOLD], "a function lacks name, description or parameters"),
        ([ROW], [{**GOLD, "ground_truth": [{"other": {}}]}], "not one call of a listed function"),
        ([ROW], [{**GOLD, "ground_truth": [{"call": {"number": 7}}]}], "not one call of a listed function"),
        ([{**ROW, "question": [[{"role": "user"}]]}], [GOLD], "no role and content"),
        ([ROW, ROW], [GOLD], "lists a task id twice"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path: Path, rows: list[Any], answers: list[Any], said: str) -> None:
    with pytest.raises(TaskDataError, match=said):
        FunctionCalling.task_source(package(tmp_path, rows, answers))


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match="neither a wheel"):
        unpack(tmp_path, tmp_path / "target")
    (tmp_path / "bfcl_eval-1-py3-none-any.whl").write_bytes(b"PK")
    with pytest.raises(TaskDataError, match="damaged"):
        unpack(tmp_path, tmp_path / "target")


def test_no_other_code_than_the_published_is_run(tmp_path: Path) -> None:
    (tmp_path / "long_context.py").write_text("raise SystemExit('run')")

    with pytest.raises(UnknownSource, match=r"long_context.py is not that of bfcl-eval 2026.3.23"):
        load_class("MathAPI", tmp_path)
    with pytest.raises(UnknownSource, match="class WebSearchAPI is not played"):
        load_class("WebSearchAPI", tmp_path)


def test_written_calls_are_read_again() -> None:
    rng = random.Random(3)
    source = FunctionCalling.task_source(None)
    for _ in range(20):
        task = cast(Questions, source.by_index("train", "parallel", rng.randrange(1000)).data)
        gold = read_calls(written_gold(task, 0))
        assert gold is not None
        assert read_calls(written(gold)) == gold
