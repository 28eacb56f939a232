"""The forms of published sets: what each record becomes, how it is written, and what is lost by name."""

from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, ConversationTask, Message
from gymfleet_contracts.data_records import DataRecord, Preference, RewardRule, TaskRow
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_kit.data import samples
from gymfleet_kit.data.conversion import in_form
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converter_checks import examine
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.replies import conversation_of

HUMAN, GPT, SKIPPED = (
    {"from": "human", "loss": None, "value": "q"}, {"from": "gpt", "loss": True, "value": "a"},
    {"from": "gpt", "loss": False, "value": "ok"},
)  # fmt: skip
CHAT = [HUMAN, SKIPPED, HUMAN, GPT]


def message(role: Any, content: str, learned: bool | None = None) -> Message:
    return Message(role=role, content=content, learned=learned)


def converted(use: Any, record: dict[str, Any]) -> DataRecord:
    (one,) = converter_of(use, table="converter").convert(record)
    return one


def conversation(use: Any, record: dict[str, Any]) -> Conversation:
    one = converted(use, record)
    assert isinstance(one, Conversation)
    return one


def task(env: str, task_id: str, split: Any = "train") -> ConversationTask:
    return ConversationTask(env=env, split=split, task_id=task_id)


@pytest.mark.parametrize(
    ("use", "record", "found"),
    [
        ("agentgym", {"item_id": "textcraft_12", "conversations": CHAT}, task("textcraft", "textcraft_12")),
        ("agentgym", {"item_id": "lmrlgym_maze_3", "conversations": CHAT}, task("maze", "lmrlgym_maze_3")),
        ("agentgym", {"item_id": "lmrlgym_wordle_3"}, task("wordle", "lmrlgym_wordle_3")),
        ("agentgym", {"item_id": "sqlgym_3", "conversations": None}, task("sql", "sqlgym_3")),
        (
            {"use": "agentgym", "split": "test"},
            {"item_id": "pick_and_place_simple-Mug-None-Desk-308/trial_T2019"},
            task("alfworld", "pick_and_place_simple-Mug-None-Desk-308/trial_T2019", "test"),
        ),
        ({"use": "agentgym", "env": "todo"}, {"item_id": "odd name"}, task("todo", "odd name")),
        ("agent_instruct", {"id": "os_3", "conversations": CHAT}, task("os", "os_3")),
        ("agent_instruct", {"id": "mind2web_9", "conversations": CHAT}, task("mind2web", "mind2web_9")),
    ],
)
def test_an_id_says_environment_and_task(use: Any, record: dict[str, Any], found: ConversationTask) -> None:
    one = converted(use, record)

    assert isinstance(one, Conversation | TaskRow)
    assert one.task == found
    assert isinstance(one, Conversation) is (record.get("conversations") is not None)


def test_an_id_that_says_no_environment_is_told_with_the_remedy() -> None:
    with pytest.raises(UnusableRecord, match=r"'odd name' does not say its environment, as in 'textcraft_12'; give it"):
        converter_of("agentgym", table="converter").convert({"item_id": "odd name"})


@pytest.mark.parametrize("use", ["agentgym", "agent_instruct"])
def test_only_what_has_a_loss_is_learned(use: str) -> None:
    name = "item_id" if use == "agentgym" else "id"

    one = conversation(use, {name: "os_1", "conversations": CHAT})

    assert [(m.role, m.content, m.teaches) for m in one.messages] == [
        ("user", "q", False), ("assistant", "ok", False), ("user", "q", False), ("assistant", "a", True),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "labels"), [("toolbench_negative_3", ("negative",)), ("toolbench_react_10p_3", ())])
def test_negatives_of_agent_flan_are_marked(name: str, labels: tuple[str, ...]) -> None:
    said = [{"role": "user", "content": "q", "loss": False}, {"role": "assistant", "content": "a", "loss": True}]

    one = conversation("agent_flan", {"id": name, "conversation": said})

    assert (one.id, one.labels) == (name, labels)
    assert converter_of("agent_flan", table="x").write(one).record == {"id": name, "conversation": said}


def test_a_row_of_verl_is_a_task_and_its_gold() -> None:
    record: dict[str, Any] = {
        "data_source": "countdown", "prompt": [{"role": "user", "content": "q"}], "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": {"target": 24, "numbers": [1, 2]}},
        "extra_info": {"split": "test", "index": 7},
    }  # fmt: skip

    one = converted("verl", record)

    assert one == TaskRow(
        prompt=(message("user", "q"),), data_source="countdown", ability="math", extra_info=record["extra_info"],
        reward_model=RewardRule(ground_truth={"target": 24, "numbers": [1, 2]}),
    )  # fmt: skip
    assert converter_of("verl", table="x").write(one).record == record


ASKED = {"role": "user", "content": "q"}
FIRST, SECOND = {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("record", "sizes"),
    [
        pytest.param({"prompt": [ASKED], "chosen": [FIRST], "rejected": [SECOND]}, (1, 1, 1), id="explicit"),
        pytest.param({"prompt": "q", "chosen": "a", "rejected": "b"}, (1, 1, 1), id="texts"),
        pytest.param({"chosen": [ASKED, FIRST], "rejected": [ASKED, SECOND]}, (1, 1, 1), id="implicit"),
        pytest.param({"prompt": "q", "chosen": [ASKED, FIRST], "rejected": [ASKED, SECOND]}, (1, 1, 1), id="both"),
        pytest.param(
            {"prompt": [ASKED], "chosen": [ASKED, FIRST, ASKED, FIRST], "rejected": [ASKED, FIRST, ASKED, SECOND]},
            (3, 1, 1), id="both, with replies that both have",
        ),
        pytest.param(
            {"prompt": "q", "chosen": [FIRST, ASKED, FIRST], "rejected": [FIRST, ASKED, SECOND]}, (1, 3, 3),
            id="explicit, with replies that both have",
        ),
        pytest.param(
            {"chosen": [ASKED, FIRST, ASKED, FIRST], "rejected": [ASKED, FIRST, ASKED, SECOND]}, (3, 1, 1),
            id="implicit, with replies that both have",
        ),
        pytest.param(
            {"chosen": [ASKED, FIRST, ASKED, FIRST], "rejected": [ASKED, FIRST]}, (1, 3, 1), id="implicit, one longer"
        ),
    ],
)  # fmt: skip
def test_preferences_with_and_without_a_prompt(record: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    one = converted("trl", record)

    assert isinstance(one, Preference)
    assert (len(one.prompt), len(one.chosen), len(one.rejected)) == sizes
    assert one.prompt[0] == message("user", "q")
    assert one.chosen[-1] == message("assistant", "a")


@pytest.mark.parametrize(
    ("use", "key", "say"),
    [
        ("sharegpt", "conversations", lambda role, text: {"from": role, "value": text}),
        (
            "messages",
            "messages",
            lambda role, text: {"role": "assistant" if role == "gpt" else "user", "content": text},
        ),
    ],
)
def test_two_replies_beside_the_messages_are_a_preference(use: str, key: str, say: Any) -> None:
    record = {key: [say("human", "q")], "chosen": say("gpt", "a"), "rejected": say("gpt", "b")}

    one = converted(use, record)

    assert one == Preference(
        prompt=(message("user", "q"),), chosen=(message("assistant", "a"),), rejected=(message("assistant", "b"),)
    )  # fmt: skip
    assert converter_of(use, table="x").write(one).record == record
    with pytest.raises(UnusableRecord, match="single messages; `trl` has several"):
        converter_of(use, table="x").write(one.model_copy(update={"chosen": one.chosen * 2}))
    with pytest.raises(UnusableRecord, match="chosen: its first message is of 'user'"):
        converter_of(use, table="x").convert(record | {"chosen": say("human", "a")})
    tools = [{"name": "f", "parameters": {"type": "object"}}]
    with pytest.raises(UnusableRecord, match="tools: a preference declares no functions"):
        converter_of(use, table="x").convert(record | {"tools": tools})


def test_whole_conversations_beside_the_messages_are_left_alone() -> None:
    """As in UltraFeedback, whose messages are for imitation."""
    both = [ASKED, FIRST]

    one = converted("messages", {"messages": both, "chosen": both, "rejected": [ASKED, SECOND], "prompt": "q"})

    assert isinstance(one, Conversation)
    assert len(one.messages) == 2


def test_transcripts_are_messages() -> None:
    before = "\n\nHuman: q\n\nAssistant: Well,\n\nfirst:\n\nHuman: And then?"

    one = converted("trl", {"chosen": f"{before}\n\nAssistant: a ", "rejected": f"{before}\n\nAssistant:"})

    assert isinstance(one, Preference)
    assert one.prompt == (message("user", "q"), message("assistant", "Well,\n\nfirst:"), message("user", "And then?"))
    assert (one.chosen, one.rejected) == ((message("assistant", "a"),), (message("assistant", ""),))


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"chosen": "q a", "rejected": "q b"}, "chosen: a text that begins with no `Human:`, and there is no prompt"),
        (
            {"prompt": "q", "chosen": [FIRST | {"thinking": "Hm."}], "rejected": "b"},
            "chosen: message 1: thinking: only conversations have thoughts apart",
        ),
        (
            {"prompt": "q", "chosen": [FIRST | {"function_call": {"name": "f"}}], "rejected": "b"},
            "chosen: message 1: function_call: only conversations have calls",
        ),
        ({"chosen": [FIRST], "rejected": [SECOND]}, "prompt: chosen and rejected do not begin with the same messages"),
        (
            {"prompt": "p", "chosen": [ASKED, FIRST], "rejected": [ASKED, SECOND]},
            "prompt: chosen and rejected begin with other messages",
        ),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "tools": [{}]}, "tools: only conversations declare functions"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "chosen and rejected say the same"),
        ({"prompt": "q", "chosen": [ASKED], "rejected": "b"}, "chosen: its first message is of 'user'"),
        ({"prompt": "q", "chosen": "a"}, "rejected: a list is wanted; it is missing"),
        ({"prompt": "q", "chosen": [{"role": "robot", "content": "a"}], "rejected": "b"}, "chosen: message 1: role: "),
    ],
)
def test_what_is_no_preference(record: dict[str, Any], told: str) -> None:
    with pytest.raises(UnusableRecord, match=told):
        converter_of("trl", table="x").convert(record)


CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Kyōto", "days": 2}'}}
AS_TEXT = 'Hm.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto", "days": 2}}\n</tool_call>'


def test_calls_of_tools_become_text_and_are_read_from_it() -> None:
    use = {"use": "messages", "tool_calls": "text"}
    record = {"messages": [ASKED, {"role": "assistant", "content": "Hm.", "tool_calls": [{"id": "1", **CALL}]}]}

    one = conversation(use, record)
    written: Any = converter_of(use, table="x").write(one).record

    assert one.messages[1].content == AS_TEXT
    assert written["messages"][1] == {"role": "assistant", "content": "Hm.", "tool_calls": [CALL]}
    assert conversation(use, written) == one


@pytest.mark.parametrize(
    "text", [AS_TEXT + " ", AS_TEXT.replace('"days": 2', '"days":2'), "\n<tool_call>\nno JSON\n</tool_call>"]
)
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    use = {"use": "messages", "tool_calls": "text"}
    one = Conversation(messages=(message("user", "q"), message("assistant", text)))

    written: Any = converter_of(use, table="x").write(one).record

    assert written["messages"][1] == {"role": "assistant", "content": text}


def test_keys_of_peoples_own_files() -> None:
    alpaca = {"use": "prompt_reply", "prompt": "instruction", "context": "input", "reply": "output", "system": "rules"}
    own = {"use": "messages", "key": "chat", "role": "who", "content": "text", "id": "name"}

    one = conversation(alpaca, {"instruction": "Add.", "input": "1 + 1", "output": "2", "rules": "Be brief."})
    other = conversation(own, {"chat": [{"who": "user", "text": "q"}, {"who": "assistant", "text": "a"}], "name": "x"})

    assert [m.content for m in one.messages] == ["Be brief.", "Add.\n\n1 + 1", "2"]
    assert [m.content for m in conversation(alpaca, {"instruction": "q", "output": "a"}).messages] == ["q", "a"]
    assert (other.id, other.messages[0].content) == ("x", "q")


def test_two_replies_under_keys_of_ones_own_are_a_preference() -> None:
    """Intel's Orca pairs, and Alpaca's form with a ranking."""
    orca = {"use": "prompt_reply", "prompt": "question", "system": "system", "reply": "chosen", "rejected": "rejected"}
    record = {"system": "Be brief.", "question": "q", "chosen": "a", "rejected": "b"}

    one = converted(orca, record)

    assert one == Preference(
        prompt=(message("system", "Be brief."), message("user", "q")),
        chosen=(message("assistant", "a"),), rejected=(message("assistant", "b"),),
    )  # fmt: skip
    assert converter_of(orca, table="x").write(one).record == record
    unsaid = converted(orca, record | {"system": ""})
    assert unsaid == converted(orca, record | {"system": None})
    assert unsaid == one.model_copy(update={"prompt": one.prompt[1:]})
    with pytest.raises(UnusableRecord, match="the system's message is empty"):
        converter_of(orca, table="x").write(one.model_copy(update={"prompt": (message("system", ""), one.prompt[1])}))
    with pytest.raises(UnusableRecord, match="one rejected reply"):
        converter_of(orca, table="x").write(one.model_copy(update={"rejected": one.rejected * 2}))
    with pytest.raises(UnusableRecord, match="rejected: text is wanted"):
        converter_of(orca, table="x").convert({"question": "q", "chosen": "a"})
    with pytest.raises(UnusableRecord, match="holds conversations"):
        converter_of("prompt_reply", table="x").write(one)


FULL = Conversation(
    messages=(
        message("system", "s"), message("user", "u"), message("assistant", "x", False), message("tool", "t"),
        message("assistant", "y"),
    ),
    task=task("maze", "lmrlgym_maze_1"), success=True, reward=0.5, id="lmrlgym_maze_1", labels=("failed",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("use", "lost"),
    [
        ("gymfleet", set()),
        ("messages", {"task", "labels"}),
        ({"use": "messages", "success": "", "reward": "", "id": ""}, {"task", "labels", "success", "reward", "id"}),
        ("sharegpt", {"task", "labels"}),
        ("agentgym", {"labels", "success", "reward", "role:system", "role:tool"}),
        ({"use": "agentgym", "split": "test"}, {"task", "labels", "success", "reward", "role:system", "role:tool"}),
        ("agent_instruct", {"labels", "success", "reward", "role:system", "role:tool"}),
        ("agent_flan", {"task", "labels", "success", "reward", "role:tool"}),
        ("openmanus", {"task", "labels", "success", "reward", "role:tool", "learned"}),
        ("openmanus_rows", {"labels", "success", "reward", "role:system", "role:tool"}),
    ],
)
def test_what_a_form_has_no_place_for_is_named(use: Any, lost: set[str]) -> None:
    assert converter_of(use, table="x").write(FULL).lost == lost


@pytest.mark.parametrize("use", ["verl", "trl", "prompt_reply"])
def test_a_form_refuses_what_it_does_not_hold(use: str) -> None:
    with pytest.raises(UnusableRecord, match=r"prompt|preferences"):
        converter_of(use, table="x").write(FULL)


def test_an_episode_becomes_a_conversation_and_its_path_a_label() -> None:
    solved, stumbled, wrong = samples.episodes()[:3]

    one = conversation_of(solved)

    assert [(m.role, m.content) for m in one.messages[:2]] == [
        ("user", "You are in room 0."),
        ("assistant", "Thought: There is nothing else in this room. I go on.\nAction: look"),
    ]
    assert (one.id, one.success, one.reward, one.labels) == ("sample/sample.t000000/0", True, 1.0, ())
    assert one.task == task("maze", "0")
    assert conversation_of(wrong).labels == ("failed",)
    turns = tuple(turn.model_copy(update={"node": str(n)}) for n, turn in enumerate(stumbled.trajectory.turns))
    for selected, labels in ((True, ()), (False, ("explored",))):
        searched = stumbled.trajectory.model_copy(update={"turns": turns, "selected": selected})
        assert conversation_of(ScoredTrajectory(trajectory=searched, reward=stumbled.reward)).labels == labels


def test_an_episode_that_says_nothing_of_the_policy_is_no_conversation() -> None:
    failed = samples.episodes()[4]
    assert failed.trajectory.status is Status.ENV_ERROR

    with pytest.raises(UnusableRecord, match="an episode with status env_error"):
        in_form(failed, "conversations")
    with pytest.raises(UnusableRecord, match="it is one of preferences, which do not become conversations"):
        in_form(samples.preferences()[0], "conversations")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('return Written({"text": text.upper()})', "text of Conversation is another one when it is read again"),
        (
            'return Written({"text": "b"}, frozenset({"text"}))',
            "text of Conversation is another one when it is read again",
        ),
        ("return {}", "write returns dict instead of Written"),
        ('raise UnusableRecord("no")', "write: it refuses what it converted itself: no"),
    ],
)
def test_a_way_back_that_goes_astray_is_named(tmp_path: Any, body: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f'''
from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_kit.data.converter import Converter, UnusableRecord, Written, field


class Mine(Converter):
    """One of somebody's own."""

    examples = ({{"text": "hello"}},)

    def convert(self, record):
        text = field(record, "text", str)
        return [Conversation(messages=(Message(role="user", content="?"), Message(role="assistant", content=text)))]

    def write(self, one):
        if not isinstance(one, Conversation):
            raise UnusableRecord("conversations alone")
        text = one.messages[-1].content
        {body}
''')

    faults = examine(str(path))

    assert told in faults[0]
