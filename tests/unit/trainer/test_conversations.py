"""Conversations in the stage `sft`: which tokens are learned, which are too long, and what is no data."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.rollout import TemplateOptions
from gymfleet_contracts.stages import PlannedStage
from gymfleet_kit.chat.tokenizer import ModelTokenizer
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.errors import NothingLeft, PluginFailed, RunDirectoryError, TrainerError
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.scratch import CHAT_TEMPLATES, MARKERS
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.conversations import render
from gymfleet_trainer.run.plan import own_sources, stages_of
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stages.filter import Filter, FilterOptions
from gymfleet_trainer.stages.sft import SftOptions, Supervised

from tests.fixtures.scored import make_recipe, make_scored
from tests.models import build_tokenizer

CHATS: list[list[dict[str, Any]]] = [
    [{"from": "human", "value": "a"}, {"from": "gpt", "value": "bb", "loss": False},
     {"from": "human", "value": "c"}, {"from": "gpt", "value": "dd"}],
    [{"from": "human", "value": "where?" * 40}, {"from": "gpt", "value": "here"}],
]  # fmt: skip
ROBOT = {"from": "robot", "value": "x"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a tokenizer, where a checkpoint has them."""
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    build_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"conversations": chat, "reward": n}) + "\n" for n, chat in enumerate(CHATS)))
    return path


def conversation(chat: list[dict[str, Any]]) -> Conversation:
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles[m["from"]], "content": m["value"], "learned": m.get("loss")} for m in chat]
    return Conversation.model_validate({"messages": messages})


class Thread:
    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def context(
    stage: Any, model: Path, directory: RunDirectory, max_model_len: int = 1024
) -> tuple[RunContext, list[Any]]:
    """A run in which an epoch of imitation notes what it is given."""
    trained: list[Any] = []

    def sft_epoch(sequences: list[TrainSequence], epoch: int) -> dict[str, float]:
        trained.append(sequences)
        return {"loss": 1.0}

    learner: Any = SimpleNamespace(
        vocab_size=1000, begin=lambda *_: None, end=lambda: None, sft_epoch=sft_epoch,
        sequences=lambda episodes, _: [one.trajectory.trajectory_id for one in episodes],
    )  # fmt: skip
    quiet: Any = SimpleNamespace(
        begin=lambda *_, **__: None, advance=lambda *_, **__: None, adopt_probe=lambda *_: None
    )
    checkpoints: Any = SimpleNamespace(latest=lambda: (model.parent, None))
    recipe = make_recipe(
        inference={"max_model_len": max_model_len},
        rollout={"limits": {"max_context_tokens": 16, "max_response_tokens": 8}},
    )
    nothing, thread = None, Thread()
    run = RunContext(
        recipe, SimpleNamespace(sft_checkpoint_every_s=60.0), directory, RunState(run_id="r", recipe_hash=""),  # type: ignore[arg-type]
        checkpoints, learner, thread, nothing, quiet, nothing, nothing, quiet, nothing, stage,  # type: ignore[arg-type]
    )  # fmt: skip
    return run, trained


def supervised(data: Any, converter: Any = None, before: dict[str, str] | None = None) -> Supervised:
    given = {"data": data, "epochs": 1, "converter": converter}
    stage = Supervised(PlannedStage("sft", "sft", "stages.sft", given, before or {}), SftOptions(**given))
    stage.check(make_recipe(), None)  # type: ignore[arg-type]
    return stage


def test_only_learned_replies_have_a_loss(model: Path) -> None:
    tokenizer = build_tokenizer()

    rendered = render([conversation(CHATS[0])], model, 1024)

    (sequence,) = rendered.sequences
    learned = [token for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True) if taught]
    assert tokenizer.decode(learned) == "dd<|im_end|>"
    assert tokenizer.decode(sequence.token_ids) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nbb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\ndd<|im_end|>"
    )


def test_a_conversation_fits_to_the_token(model: Path) -> None:
    given = [conversation(chat) for chat in CHATS]
    length = len(render(given, model, 10_000).sequences[1].token_ids)

    assert render(given, model, length).num_too_long == 0
    shorter = render(given, model, length - 1)
    assert (len(shorter.sequences), shorter.num_too_long) == (1, 1)


def test_a_model_without_a_template_is_a_line(tmp_path: Path, model: Path) -> None:
    with pytest.raises(
        TrainerError, match=r"^conversations cannot be learned by this model: .*tokenizer\.json is missing"
    ):
        render([conversation(CHATS[0])], tmp_path, 1024)


def test_a_conversation_that_the_template_cannot_carry_is_named(tmp_path: Path) -> None:
    build_tokenizer(chat_template="{{ messages | length }}" + build_tokenizer().chat_template).save_pretrained(tmp_path)
    named = conversation(CHATS[0]).model_copy(update={"source": "chats.jsonl, line 7"})

    with pytest.raises(
        TrainerError, match=r"^chats\.jsonl, line 7: the chat template writes what comes before message 4"
    ):
        render([named], tmp_path, 1024)


def test_episodes_of_a_stage_and_conversations_of_a_file_are_learned_together(
    tmp_path: Path, model: Path, chats: Path
) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.trajectories("collect", [make_scored("collect.t000000")])
        stage = supervised(["collect", str(chats)], "sharegpt", {"collect": "collect"})
        run, trained = context(stage, model, directory, max_model_len=128)
        run.learner.sequences = lambda *_: [TrainSequence([1, 2], [False, True], [0, 0], [0, 0], 0, "episode")]  # type: ignore[method-assign]

        asyncio.run(stage.run(run))
        asyncio.run(stage.run(run))  # as after a kill: what is counted is not counted twice

    assert [sequence.trajectory_id for sequence in trained[0]] == ["episode", "conversation/0"]
    assert run.state.counts["conversations.sft"] == 1
    assert run.state.counts["conversations_too_long.sft"] == 1


def test_if_none_fits_there_is_nothing_left(tmp_path: Path, model: Path, chats: Path) -> None:
    stage = supervised(str(chats), "sharegpt")

    with (
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(NothingLeft, match=r"none of 2 conversations of .* fits"),
    ):
        asyncio.run(stage.run(context(stage, model, directory, max_model_len=16)[0]))


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        ("", NothingLeft, "stages.sft: there is nothing in "),
        ('{"conversations": [', RunDirectoryError, "line 1: no JSON: "),
        (json.dumps({"conversations": [ROBOT]}), RunDirectoryError, "line 1: no record for the converter sharegpt: "),
        (None, RunDirectoryError, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_data_is_a_line(
    tmp_path: Path, model: Path, content: str | None, error: type[Exception], told: str
) -> None:
    path = tmp_path / "given.jsonl"
    if content is not None:
        path.write_text(content)
    stage = supervised(str(path), "sharegpt")

    with RunDirectory(tmp_path / "run") as directory, pytest.raises(error) as caught:
        asyncio.run(stage.run(context(stage, model, directory)[0]))

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_converter_a_strange_file_is_told_to_need_one(tmp_path: Path, model: Path, chats: Path) -> None:
    stage = supervised(str(chats))

    with (
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(
            RunDirectoryError, match=r"line 1: no episode of ours: .*; a file of another form needs a converter$"
        ),
    ):
        asyncio.run(stage.run(context(stage, model, directory)[0]))


def test_a_converter_that_fails_is_a_plug_in_that_fails(tmp_path: Path, model: Path, chats: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "from gymfleet_kit.data.converter import Converter\n\n\nclass Fails(Converter):\n"
        "    def convert(self, record):\n        raise RuntimeError('not\\nyet')\n"
    )
    stage = supervised(str(chats), str(tmp_path / "fails.py"))

    with (
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(
            PluginFailed, match=r"line 1: the converter fails failed: RuntimeError: not yet; its traceback is in"
        ),
    ):
        asyncio.run(stage.run(context(stage, model, directory)[0]))


def test_a_conversation_about_a_measured_task_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "ours.jsonl"
    task = {"env": "maze", "split": "test", "task_id": "9"}
    given = {**conversation(CHATS[0]).model_dump(), "task": task, "source": "line 3"}
    path.write_text(Conversation.model_validate(given).model_dump_json())
    stage = supervised(str(path))

    with (
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(RunDirectoryError, match=r"holds a held-out task \(line 3: 9, of maze's test split\)"),
    ):
        asyncio.run(stage.run(context(stage, model, directory)[0]))


def test_what_a_filter_keeps_of_a_file_a_later_stage_learns(tmp_path: Path, model: Path, chats: Path) -> None:
    given: dict[str, Any] = {"data": str(chats), "converter": "sharegpt", "min_reward": 1.0}
    kept = Filter(PlannedStage("filter", "filter", "stages.filter", given, {}), FilterOptions(**given))
    stage = supervised("filter", before={"filter": "filter"})

    with RunDirectory(tmp_path / "run") as directory:
        asyncio.run(kept.run(context(kept, model, directory)[0]))
        run, trained = context(stage, model, directory)
        asyncio.run(stage.run(run))

    assert run.state.counts["conversations.sft"] == 1
    assert sum(trained[0][0].loss_mask) == len(build_tokenizer()("here<|im_end|>")["input_ids"])


def test_a_stage_that_takes_only_episodes_says_so(tmp_path: Path, model: Path) -> None:
    stage = supervised("filter", before={"filter": "filter"})

    with RunDirectory(tmp_path / "run") as directory:
        directory.trajectories("filter", [conversation(CHATS[0])])
        with pytest.raises(RunDirectoryError, match=r"filter holds conversations, and stages\.sft takes only episodes"):
            context(stage, model, directory)[0].episodes()


@pytest.mark.parametrize("kind", ["sft", "filter"])
def test_a_converter_is_made_before_anything_is_started(kind: str, tmp_path: Path) -> None:
    def stages(data: Any, converter: Any) -> Any:
        return make_recipe(stages=[{"kind": "collect"}, {"kind": kind, "data": data, "converter": converter}])

    stages_of(stages("x.json", "messages"))
    with pytest.raises(PluginError, match=rf"^stages\.{kind}\.converter\.kee: Extra inputs are not permitted"):
        stages_of(stages("x.jsonl", {"use": "messages", "kee": "x"}))
    with pytest.raises(PluginError, match="there is no converter 'mesages'"):
        stages_of(stages("x.jsonl", "mesages"))
    with pytest.raises(
        RecipeError, match=rf"^stages\.{kind}\.converter: it reads files, and data = collect names none"
    ):
        stages_of(stages("collect", "messages"))
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1")
    assert list(own_sources(stages("x.jsonl", {"use": str(plugin)}))) == [str(plugin)]


THINKS: list[dict[str, Any]] = [
    {"from": "human", "value": "a"}, {"from": "gpt", "value": "<think>alpha</think>bb"},
    {"from": "human", "value": "c"}, {"from": "gpt", "value": "<think>beta</think>dd"},
]  # fmt: skip


def thinking_model(path: Path, *, forgets: bool) -> Path:
    """A template that begins thoughts in the prompt, and writes all of them or those of the last message alone."""
    template = CHAT_TEMPLATES["tools"]
    if forgets:
        template = template.replace(
            "'<think>' + (message.reasoning_content or '') + '</think>'",
            "'<think>' + (message.reasoning_content or '') + '</think>' if loop.last else ''",
        )
    tokenizer = build_tokenizer(chat_template=template)
    tokenizer.add_tokens(list(MARKERS["tools"]))
    tokenizer.save_pretrained(path)
    return path


def texts(model: Path, sequences: list[TrainSequence]) -> list[tuple[str, str]]:
    """Each sequence, and what of it is learned."""
    decode = ModelTokenizer.load(model).decode
    return [
        (decode(one.token_ids), decode([id_ for id_, on in zip(one.token_ids, one.loss_mask, strict=True) if on]))
        for one in sequences
    ]


def test_thoughts_in_a_text_are_thoughts(tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "model", forgets=False)

    [(text, learned)] = texts(model, render([conversation(THINKS)], model, 1024).sequences)

    assert learned == "alpha</think>bb<|im_end|>beta</think>dd<|im_end|>"
    assert text.count("<think>") == 2, "which the prompts begin"


def test_a_reply_without_thoughts_ends_those_that_the_prompt_began(tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "model", forgets=False)

    [(_, learned)] = texts(model, render([conversation(CHATS[0])], model, 1024).sequences)

    assert learned == "</think>dd<|im_end|>"


def test_a_template_that_forgets_thoughts_makes_several_sequences(tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "model", forgets=True)
    with pytest.raises(TrainerError, match='give rollout.template.context = "replaced"'.replace(".", r"\.")):
        render([conversation(THINKS)], model, 1024)

    found = texts(model, render([conversation(THINKS)], model, 1024, TemplateOptions(context="replaced")).sequences)

    assert [learned for _, learned in found] == ["alpha</think>bb<|im_end|>", "beta</think>dd<|im_end|>"]
    assert "alpha" not in found[1][0]
    assert "bb<|im_end|>" in found[1][0]
