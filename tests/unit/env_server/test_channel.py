"""Small parts of the runtime: framing, ids, settings, splits."""

import msgspec
import pytest
from gymfleet_env_server.metrics import HUNG, SessionMetrics, count_step, new_tally
from gymfleet_env_server.sessions.ids import ShardId, new_instance, prefix, shard_of
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.channel import Answer, FrameBuffer, Report, Tally, decode_report, pack
from gymfleet_envs.tasks import GeneratedTasks, ListedTasks, Task, TaskDataError, UnknownTask
from pydantic import ValidationError

REPORT = Report([Answer(1, True, msgspec.Raw(b"\x07")), Answer(2, False, msgspec.Raw(b"\x80"))], 5, {"maze": Tally()})


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_are_cut_from_any_pieces(size: int) -> None:
    buffer, data, messages = FrameBuffer(), pack(REPORT) + pack([]) + pack(REPORT), []

    for start in range(0, len(data), size):
        messages += buffer.feed(data[start : start + size])

    assert [len(message) for message in messages] == [len(pack(REPORT)) - 4, 1, len(pack(REPORT)) - 4]
    report = decode_report(messages[2])
    assert [(answer.number, answer.ok, bytes(answer.payload)) for answer in report.answers] == [
        (1, True, b"\x07"),
        (2, False, b"\x80"),
    ]
    assert (report.slots, report.tallies) == (5, {"maze": Tally()})


def test_messages_outlive_the_receive_buffer() -> None:
    received, data = bytearray(pack(REPORT)), pack(REPORT)
    buffer, size = FrameBuffer(), len(pack(REPORT))

    begun = buffer.feed(memoryview(received)[: size - 3])
    received[:3] = data[-3:]
    (message,) = buffer.feed(memoryview(received)[:3])
    received[:] = bytes(size)

    assert begun == []
    assert message == data[4:]


def test_absurd_length_is_refused() -> None:
    with pytest.raises(ValueError, match="4294967295 bytes"):
        FrameBuffer().feed(b"\xff\xff\xff\xff")


def test_session_id_names_its_home() -> None:
    place = ShardId(new_instance(), 3, 12)

    assert shard_of(f"{prefix(place)}-{'0' * 32}") == place


@pytest.mark.parametrize("text", ["", "x", "../..", "a" * 256, "abcdefabcdef-0-0-", "abcdefabcdef-0-0-" + "g" * 32])
def test_anything_else_is_no_session_id(text: str) -> None:
    assert shard_of(text) is None


def test_misspelt_and_contradictory_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="lease_s must exceed step_timeout_s"):
        EnvServerSettings(lease_s=5, step_timeout_s=5)
    monkeypatch.setenv("GYMFLEET_ENV_SHARD", "2")
    with pytest.raises(ValidationError, match="GYMFLEET_ENV_SHARD"):
        EnvServerSettings()


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_ENV_DATA", '{"maze": "/data/maze"}')
    monkeypatch.setenv("GYMFLEET_ENV_EXPERT_SPLITS", '["train", "validation"]')

    settings = EnvServerSettings()

    assert str(settings.data["maze"]) == "/data/maze"
    assert settings.expert_splits == ("train", "validation")
    assert settings.host == "127.0.0.1", "not reachable from outside unless asked for"


def test_durations_are_counted_in_their_bucket() -> None:
    tally = new_tally()

    for duration_s in (0.00005, 0.0001, 0.002, 100.0):
        count_step(tally, duration_s)

    assert tally.buckets[0] == 2, "a bound belongs to its bucket"
    assert tally.buckets[3] == 1
    assert tally.buckets[-1] == 1


def test_metrics_of_shards_add_up_and_a_dead_shard_has_no_sessions() -> None:
    metrics = SessionMetrics(("maze",))
    for shard in (0, 1):
        open_ = {"ann": 2, "": 1} if shard else {"ann": 5}
        metrics.add(shard, {"maze": Tally(opened=2, steps=10, open=open_, buckets=[10, *[0] * 12])})
    assert metrics.sessions() == {"maze": {"ann": 7, "": 1}}
    metrics.shard_died(0, HUNG, failed_env="maze")

    taken = [sample for metric in metrics.collect() for sample in metric.samples]
    samples = {sample.name: sample.value for sample in taken}

    assert metrics.sessions() == {"maze": {"ann": 2, "": 1}}
    owners = {s.labels["owner"]: s.value for s in taken if s.name == "gymfleet_env_sessions"}
    assert owners == {"ann": 2, "": 1}
    assert samples["gymfleet_env_failures_total"] == 1, "an environment that hung has failed"
    assert samples["gymfleet_env_steps_total"] == 20
    assert samples["gymfleet_env_step_seconds_count"] == 20
    causes = {s.labels["cause"]: s.value for s in taken if s.name == "gymfleet_env_shard_restarts_total"}
    assert causes == {"died": 0, "hung": 1, "memory": 0}


def numbers(count: int) -> GeneratedTasks[int]:
    return GeneratedTasks(
        "numbers",
        lambda rng, _: rng.randrange(count),
        str,
        levels=("a", "b.c"),
        default_level="a",
        counts={"train": 50, "validation": 50, "test": 50},
    )


def test_generated_splits_are_disjoint_even_where_tasks_are_few() -> None:
    tasks = numbers(40)
    contents = {
        split: {tasks.by_index(split, "a", index).data for index in range(50)}
        for split in ("train", "validation", "test")
    }

    assert not contents["train"] & contents["test"]
    assert not contents["train"] & contents["validation"]
    assert not contents["validation"] & contents["test"]
    assert tasks.by_id("b.c.test.4") == tasks.by_index("test", "b.c", 4), "a level may hold a dot"


@pytest.mark.parametrize(
    "task_id", ["", "a", "a.train", "a.train.x", "a.train.50", "a.dev.0", "z.train.0", "a.train.٣"]
)
def test_unknown_generated_ids(task_id: str) -> None:
    with pytest.raises(UnknownTask):
        numbers(40).by_id(task_id)


def test_level_without_tasks_for_a_split_says_so() -> None:
    with pytest.raises(UnknownTask, match="too small"):
        [numbers(1).by_index(split, "a", 0) for split in ("train", "validation", "test")]


def test_listed_tasks_keep_their_order_and_refuse_double_ids() -> None:
    tasks = [Task("x", "test", "l", 1), Task("y", "test", "l", 2)]
    source = ListedTasks("e", "bench", tasks)

    assert source.by_index("test", "l", 1).task_id == "y"
    assert source.count("train", "l") == 0
    with pytest.raises(UnknownTask):
        source.by_index("train", "l", 0)
    with pytest.raises(TaskDataError, match="twice"):
        ListedTasks("e", "bench", [*tasks, tasks[0]])
