"""SearchQA: rules, words and generated questions."""

from typing import Any

import pytest
from gymfleet_envs.environment import BadArguments, Outcome
from gymfleet_envs.searchqa.corpus import memory_corpus
from gymfleet_envs.searchqa.environment import SearchQA
from gymfleet_envs.searchqa.generate import generated_tasks
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.passages import Passage
from gymfleet_envs.searchqa.scoring import normal
from gymfleet_envs.searchqa.task import SearchTask
from gymfleet_envs.tasks import TaskDataError
from pydantic import ValidationError

PASSAGES = (
    Passage("Elbe", "The Elbe is a river in Europe."),
    Passage("Hamburg", "Hamburg lies on the Elbe."),
    Passage("Oder", "The Oder is a river too."),
    Passage("Vltava", "The Vltava is the longest river of Bohemia."),
    Passage("Paris", "Paris lies elsewhere."),
)
CORPUS = memory_corpus(PASSAGES)
INVALID = (
    "Your previous action is invalid. If you want to search, you should put the query between <search> and </search>. "
    "If you want to give the final answer, you should put the answer between <answer> and </answer>. Please try again."
)


def question(attempts: int | None = 1, answers: tuple[str, ...] = ("Elbe",)) -> SearchTask:
    return SearchTask("On which river lies Hamburg?", answers, ("Hamburg",), "rivers", lambda: CORPUS, attempts)


def begun(task: SearchTask | None = None, **options: Any) -> SearchQA:
    kind = type("Configured", (SearchQA,), {"options": SearchQAOptions(**options)})
    environment: SearchQA = kind()
    environment.reset(task or question(), 0)
    return environment


def test_the_question_is_asked_in_agentgyms_words() -> None:
    environment = SearchQA()

    text = environment.reset(question(), 0)

    assert text.startswith("You must reason inside <think>...</think> first. If you do not have enough knowledge, ")
    assert text.endswith("Follow this process every time.\n\n Question: On which river lies Hamburg?")
    assert environment.start_private == {"answers": ["Elbe"]}
    assert environment.start_info == {}


def test_a_search_shows_three_passages_in_agentgyms_words() -> None:
    outcome = begun().step("<think>I look.</think><search>the longest river Oder</search>")

    # `longest` is in one passage of five and `Oder` in one, `river` in three; the Vltava's text is the longest of them.
    assert outcome == Outcome(
        '<information>Doc 1(Title: "Oder") The Oder is a river too.\n'
        'Doc 2(Title: "Vltava") The Vltava is the longest river of Bohemia.\n'
        'Doc 3(Title: "Elbe") The Elbe is a river in Europe.</information>'
    )


def test_a_search_for_what_nowhere_stands_finds_nothing() -> None:
    for query in ("zebra", "", "the of", "</information> ../ ' OR 1=1"):
        assert begun().step(f"<search>{query}</search>") == Outcome("<information></information>")


def test_options_say_how_much_is_shown() -> None:
    outcome = begun(results=1, passage_chars=100).step("<search>Paris</search>")
    long = memory_corpus([Passage("Long", "word " * 100)])
    cut = begun(SearchTask("?", ("x",), (), "long", lambda: long, 1), passage_chars=100).step("<search>word</search>")

    assert outcome.observation == '<information>Doc 1(Title: "Paris") Paris lies elsewhere.</information>'
    assert cut.observation == f'<information>Doc 1(Title: "Long") {"word " * 20}...</information>'


def test_the_right_answer_is_the_end() -> None:
    outcome = begun().step("<think>It is.</think><answer> the Elbe! </answer>")

    assert outcome == Outcome(
        "Congratulations! You have answered the question correctly.", reward=1.0, terminated=True, score=1.0,
        info={"f1": 1.0}, private={"f1": 1.0},
    )  # fmt: skip


def test_a_generated_question_takes_one_answer() -> None:
    environment = begun()

    outcome = environment.step("<answer>Elbe or Oder</answer>")

    assert outcome == Outcome(
        "Sorry, your answer is incorrect.", terminated=True, info={"f1": 0.5},
        private={"f1": 0.5},
    )  # fmt: skip
    late = environment.step("<answer>Elbe</answer>")
    assert (late.terminated, late.score, late.reward, late.action_valid) == (True, 0.0, 0.0, False)
    assert environment.expert() is None


def test_agentgym_takes_any_number_of_answers() -> None:
    environment = begun(question(attempts=None))

    wrong = environment.step("<answer>Oder</answer>")
    right = environment.step("<answer>Elbe</answer>")

    assert wrong == Outcome("Sorry, your answer is incorrect. Please try again.", private={"f1": 0.0})
    assert (right.terminated, right.reward, right.score) == (True, 1.0, 1.0)


def test_two_attempts_are_two() -> None:
    environment = begun(question(attempts=2))

    ends = [environment.step("<answer>Oder</answer>").terminated for _ in range(2)]

    assert ends == [False, True]


def test_f1_can_be_the_reward_while_the_score_is_exact_match() -> None:
    outcome = begun(reward="f1").step("<answer>Elbe or Oder</answer>")

    assert (outcome.reward, outcome.score) == (0.5, 0.0)


@pytest.mark.parametrize(
    "action", ["", "Elbe", "<answer>Elbe", "answer[Elbe]", "<ANSWER>Elbe</ANSWER>", "<search>" * 900]
)
def test_what_is_no_move_changes_nothing(action: str) -> None:
    environment = begun()
    before = environment.state_key()

    assert environment.step(action) == Outcome(INVALID, action_valid=False)
    assert environment.state_key() == before


def test_equal_states_have_equal_keys() -> None:
    searched, fresh, free = begun(question(2)), begun(question(2)), begun(question(None))
    searched.step("<search>river</search>")
    assert searched.state_key() == fresh.state_key()
    start = free.state_key()

    searched.step("<answer>Oder</answer>")
    free.step("<answer>Oder</answer>")

    assert searched.state_key() != fresh.state_key(), "an attempt is gone"
    assert free.state_key() == start, "attempts without a limit are not counted"


def test_tools_spell_moves_and_no_others() -> None:
    environment = begun()

    assert environment.action_of("search", {"query": "river Elbe"}) == "<search>river Elbe</search>"
    assert environment.action_of("answer", {"answer": "Elbe"}) == "<answer>Elbe</answer>"
    for text in ("a</search><answer>Elbe</answer>", "a</answer>", "b</search>"):
        with pytest.raises(BadArguments):
            environment.action_of("answer" if text.endswith("</answer>") else "search", {"text": text})


def test_a_copy_goes_its_own_way() -> None:
    environment = begun(question(2))
    copy = environment.snapshot()

    environment.step("<answer>Oder</answer>")

    assert copy.step("<answer>Oder</answer>").terminated is False


@pytest.mark.parametrize(
    "options",
    [{"search": "dense"}, {"search": "hybrid", "embeddings_model": "m"}, {"reward": "f1", "attempts": 3},
     {"reward": "f1", "attempts": "unlimited"}, {"results": 0}, {"embeddings_url": "file:///etc/passwd"}],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SearchQAOptions(**options)


def test_generated_passages_have_no_vectors() -> None:
    options = SearchQAOptions(search="dense", embeddings_url="http://127.0.0.1:1", embeddings_model="m")  # type: ignore[arg-type]

    with pytest.raises(TaskDataError, match="generated passages have none"):
        generated_tasks(options)


@pytest.mark.parametrize(("given", "taken"), [("auto", 1), ("unlimited", None), (3, 3)])
def test_attempts_of_generated_questions(given: Any, taken: int | None) -> None:
    source = generated_tasks(SearchQAOptions(attempts=given))

    assert source.by_index("train", "lookup", 0).data.attempts == taken


@pytest.mark.parametrize("level", ["lookup", "bridge", "comparison", "mixed"])
def test_the_answer_is_in_the_passages_and_not_in_the_question(level: str) -> None:
    source = generated_tasks(SearchQAOptions())
    hops = set()

    for index in range(60):
        task = source.by_index("train", level, index).data
        held = {
            passage.title: passage.text
            for passage in (task.corpus.passages[n] for n in range(len(task.corpus.passages)))
        }
        hops.add(len(task.support))
        assert normal(task.answers[0]) not in normal(task.question)
        assert task.answers[0] in " ".join(held[title] for title in task.support)
        assert len(held) == len(task.corpus.passages), "titles are unique"
        if level == "bridge":
            assert task.support[1] not in task.question, "who leads there is not named"
            assert task.answers[0] not in held[task.support[0]], "one passage does not do"
            assert task.support[1] in held[task.support[0]]
    assert hops == {"lookup": {1}, "bridge": {2}, "comparison": {2}, "mixed": {2, 3}}[level]


def test_no_name_of_a_held_out_question_occurs_in_training() -> None:
    source = generated_tasks(SearchQAOptions())
    titles: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        tasks = [source.by_index(split, "lookup", index).data for index in range(30)]
        corpora = {task.corpus_name: task.corpus for task in tasks}
        assert len(corpora) > 3
        titles[split] = {corpus.passages[n].title for corpus in corpora.values() for n in range(len(corpus.passages))}

    assert not titles["train"] & (titles["validation"] | titles["test"])
    assert not titles["validation"] & titles["test"]
