"""AgentGym's todo."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.agentgym_tools.wording import FORMAT_ERROR
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.todo.account import Account, Item, Project
from gymfleet_envs.todo.environment import ENVIRONMENT, Todo
from gymfleet_envs.todo.published import published_tasks
from gymfleet_envs.todo.task import TodoTask

from tests.fixtures.paths import SHARED_DATA

PUBLISHED = SHARED_DATA / "tool_agentgym"
CLEAN = Item("7896000001", 1, "Clean", "- Place: Home", 2, "2015-06-20", 45, "minute")
WATER = Item("7896000002", 2, "Water", "- Place: Garden", 4, "2015-06-24", 1, "day")
ACCOUNT = Account((
    Project("2331000001", 1, "Chores", False, (CLEAN, WATER)),
    Project("2331000002", 2, "School", False, ()),
))  # fmt: skip
QUESTION = TodoTask("When?", "2015-06-01", "New York", ACCOUNT, '"2015-06-20"', ACCOUNT.status(), ())
SHOWN = {"id": "7896000001", "order": 1, "content": "Clean", "is_completed": False, "priority": 2,
         "due_date": "2015-06-20"}  # fmt: skip


def opened(task: TodoTask = QUESTION) -> Todo:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def call(environment: Todo, tool: str, **arguments: Any) -> Outcome:
    return environment.step(f"{tool} with Action Input: {json.dumps(arguments)}")


def result(outcome: Outcome) -> Any:
    """What a tool returned; Python's own text of it, as AgentGym shows it."""
    begin, end = "Observation: ", "\nGive me one action."
    assert outcome.observation.startswith(begin)
    assert outcome.observation.endswith(end)
    text = outcome.observation[len(begin) : -len(end)]
    return ast.literal_eval(text) if text[:1] in "[{" else text


def test_the_first_observation_is_agentgyms() -> None:
    assert ENVIRONMENT().reset(QUESTION, 0) == (
        "Now new trial starts.\nYou should perform actions to accomplish the goal: When?\nGive me one action."
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("get_user_current_date", {}, "2015-06-01"),
        ("get_user_current_location", {}, "New York"),
        ("get_projects", {}, [
            {"id": "2331000001", "order": 1, "color": "charcoal", "name": "Chores", "is_favorite": False},
            {"id": "2331000002", "order": 2, "color": "charcoal", "name": "School", "is_favorite": False}]),
        ("get_tasks", {"project_id": "2331000002"}, []),
        ("get_tasks", {"project_id": 2331000002}, []),
        ("get_tasks", {"project_id": "1"}, "Project not found"),
        ("get_tasks", {}, "ERROR | KeyError('project_id')"),
        ("get_task_description", {"task_id": "7896000001"},
         {"id": "7896000001", "content": "Clean", "description": "- Place: Home"}),
        ("get_task_duration", {"task_id": "7896000002"},
         {"id": "7896000002", "content": "Water", "duration": "1(day)"}),
        ("get_task_duration", {"task_id": "x"}, "Task not found"),
        ("complete_task", {"task_id": "x"}, "Task x is not exists."),
        ("delete_task", {"task_id": "x"}, "Task x is not exists."),
        ("update_task", {"task_id": "7896000001", "due_date": "tomorrow"},
         "Date is invalid, a due_date has the form YYYY-MM-DD"),
        ("update_task", {"task_id": "7896000001", "due_date": "2015-02-30"},
         "Date is invalid, a due_date has the form YYYY-MM-DD"),
        ("update_project", {"project_id": "2331000001", "is_favorite": "maybe"},
         "ERROR | ValueError(is_favorite is 'maybe'; True or False would be right)"),
        ("x", {}, "ERROR | Invalid action: x."),
    ],
)  # fmt: skip
def test_what_tools_show(tool: str, arguments: dict[str, Any], shown: Any) -> None:
    environment = opened()

    assert result(call(environment, tool, **arguments)) == shown
    assert environment.state_key() == opened().state_key(), "nothing has changed"


def test_what_completes_and_deletes_is_gone() -> None:
    environment = opened()
    left = {key: value for key, value in SHOWN.items() if key != "is_completed"}

    assert result(call(environment, "complete_task", task_id=CLEAN.id)) == {
        "message": "Complete task successfully.", "task": left
    }  # fmt: skip
    assert result(call(environment, "delete_task", task_id=WATER.id))["message"] == "Delete the task successfully."
    assert result(call(environment, "get_tasks", project_id="2331000001")) == []
    assert result(call(environment, "get_task_duration", task_id=CLEAN.id)) == "Task not found"
    assert [len(project.items) for project in ACCOUNT.projects] == [2, 0], "the task's own account is as it was"


def test_what_updates_is_shown_as_it_is_now() -> None:
    environment = opened()

    updated = result(call(environment, "update_task", task_id=CLEAN.id, due_date="2015-07-01"))
    favourite = result(call(environment, "update_project", project_id="2331000002", is_favorite=True))

    assert updated == {"message": "Update the task successfully", "task": SHOWN | {"due_date": "2015-07-01"}}
    assert (favourite["message"], favourite["project"]["is_favorite"]) == ("Update the project successfully.", True)
    assert result(call(environment, "get_projects"))[1]["is_favorite"] is True


def test_texts_that_are_no_calls_are_answered_as_agentgym_does() -> None:
    environment = opened()

    nothing = environment.step("I think about it.")
    unreadable = environment.step("finish with Action Input: {answer: yes}")
    unsorted = call(environment, "finish", answer=[{"a": 1}, {"b": 2}])

    assert nothing == Outcome(FORMAT_ERROR, action_valid=False)
    assert result(unreadable) == (
        "ERROR | Exception(Parameters in action input are not valid, please change your action input.)"
    )
    assert result(unsorted) == "ERROR | TypeError('<' not supported between instances of 'dict' and 'dict')"
    assert not any(outcome.terminated or outcome.action_valid for outcome in (nothing, unreadable, unsorted))
    assert result(call(environment, "check_valid_actions")).startswith(
        "You can use following valid actions: ['get_user_current_date', 'get_user_current_location', 'get_projects', "
    )


def test_a_question_is_won_by_its_answer_in_an_untouched_account() -> None:
    right, wrong, touched, restored = (opened() for _ in range(4))
    call(touched, "delete_task", task_id=WATER.id)
    call(restored, "update_task", task_id=WATER.id, due_date="2016-01-01")
    call(restored, "update_task", task_id=WATER.id, due_date=WATER.due_date)

    ends = [call(one, "finish", answer="2015-06-20") for one in (right, touched, restored)]
    ends.append(call(wrong, "finish", answer="2015-06-21"))

    assert [(end.terminated, end.reward, end.score) for end in ends] == [
        (True, 1, 1), (True, 0, 0), (True, 1, 1), (True, 0, 0)
    ]  # fmt: skip
    again = call(right, "finish", answer="x")
    assert (again.terminated, again.score, again.reward, again.action_valid) == (True, 1, 0, False)


def test_a_change_is_won_by_the_account_and_the_word_done() -> None:
    task = replace(QUESTION, answer='"done"', status=ACCOUNT.without(CLEAN.id).status())
    done, deleted, unsaid, more = (opened(task) for _ in range(4))
    call(done, "complete_task", task_id=CLEAN.id)
    call(deleted, "delete_task", task_id=CLEAN.id)
    for one in (unsaid, more):
        call(one, "complete_task", task_id=CLEAN.id)
    call(more, "update_project", project_id="2331000001", is_favorite="True")

    assert [call(one, "finish", answer="done").score for one in (done, deleted, more)] == [1, 1, 0]
    assert call(unsaid, "finish", answer="yes").score == 0


def test_the_expert_goes_on_where_it_is_and_a_copy_goes_its_own_way() -> None:
    plan = (Move.of("Look.", "get_projects"), Move.of("End.", "finish", answer="2015-06-20"))
    environment = opened(replace(QUESTION, plan=plan))

    call(environment, "get_tasks", project_id="2331000001")
    first = environment.expert()
    call(environment, "get_projects")
    copy = environment.snapshot()
    call(copy, "delete_task", task_id=WATER.id)
    second = environment.expert()

    assert first is not None
    assert first.action == "get_projects with Action Input: {}"
    assert second is not None
    assert environment.step(second.action).score == 1
    assert environment.expert() is None
    assert call(copy, "finish", answer="2015-06-20").score == 0


def test_generated_questions_have_one_answer_that_the_goal_does_not_say() -> None:
    tasks = load_entry("todo", {}).tasks
    for level in tasks.levels:
        for index in range(60):
            task = tasks.by_index("test", level, index).data
            answer = json.loads(task.answer)
            if answer == "done":
                assert task.status != task.account.status(), task.goal
            else:
                assert task.status == task.account.status()
                assert str(answer) not in task.goal
                assert answer != [item.content for item in task.account.items()]


def test_ids_differ_from_task_to_task() -> None:
    tasks = load_entry("todo", {}).tasks
    ids = [{item.id for item in tasks.by_index("train", "easy", index).data.account.items()} for index in range(20)]

    assert len(set().union(*ids)) >= sum(map(len, ids)) - 2


needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="AgentGym's tasks are not here")


@needs_published
def test_all_published_tasks_are_won_by_calls_and_lost_without() -> None:
    entry = load_entry("todo", {"todo": PUBLISHED})
    tasks = [entry.tasks.by_id(f"todo_{number}") for number in range(155)]

    assert [task.task_id for task in tasks] == [str(number) for number in range(155)]
    assert sum(task.split == "test" for task in tasks) == 20
    for task in tasks:
        environment = opened(task.data)
        outcomes = [environment.step(move.action) for move in task.data.plan]
        assert outcomes[-1].score == 1, task.task_id
        assert call(opened(task.data), "finish", answer="wrong").score == 0


@needs_published
@pytest.mark.parametrize(
    ("start", "fault"),
    [
        ("{", "Expecting property name"),
        ('{"a": 1}', "it is no list of projects with tasks"),
        ('[{"name": "a"}]', "it is no list of projects with tasks"),
        ('[{"name": "a", "tasks": [{"content": "b", "due_date": "soon"}]}]', "due_date 'soon' of 'b' is no day"),
        ('[{"name": "a", "tasks": [{"content": "b", "due_date": "2015-06-01", "description": "", "priority": 1e999}]}]',
         "cannot convert float infinity to integer"),
    ],
)  # fmt: skip
def test_damaged_accounts_are_refused_by_name(tmp_path: Path, start: str, fault: str) -> None:
    (tmp_path / "todo.jsonl").write_text((PUBLISHED / "todo.jsonl").read_text())
    with pytest.raises(TaskDataError, match=r"has no start/projects\.json"):
        published_tasks(tmp_path)
    (tmp_path / "projects.json").write_text(start)

    with pytest.raises(TaskDataError, match=r"projects\.json: ") as told:
        published_tasks(tmp_path)

    assert fault in str(told.value)


@needs_published
@pytest.mark.parametrize("due_date", ["1 June 2015", 20150601, None])
def test_a_gold_account_has_days_as_due_dates(tmp_path: Path, due_date: object) -> None:
    first = json.loads((PUBLISHED / "todo.jsonl").read_text().splitlines()[0])
    first["additional_info"]["answer"]["tasks"][0]["due_date"] = due_date
    (tmp_path / "todo.jsonl").write_text(json.dumps(first))
    (tmp_path / "projects.json").write_text((PUBLISHED / "start" / "projects.json").read_text())

    with pytest.raises(TaskDataError, match=r"^todo: .*todo\.jsonl: task 0: answer "):
        published_tasks(tmp_path)
