"""The temperature of each sample: drawn at, and recorded."""

from gymfleet_contracts.rollout import Sampling, StrategySpec
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from benchmarks.playing import episodes
from tests.unit.rollout.test_episode import CHAT, OPEN, Door, ScriptedPolicy, Specs, group


async def test_samples_of_a_group_are_drawn_at_their_own_temperatures() -> None:
    policy = ScriptedPolicy(OPEN)
    player = Player(policy, CHAT, Door(), Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]
    asked = group(num_samples=3, sampling=Sampling(temperature=1.0, spread=0.5, top_p=0.9, seed=1))

    played = await episodes(player, asked, [0, 1, 2])

    drawn = [sampling for _, _, sampling in policy.calls]
    assert sorted(sampling.temperature for sampling in drawn) == [0.5, 1.0, 1.5]
    assert {sampling.top_p for sampling in drawn} == {0.9}
    assert len({sampling.seed for sampling in drawn}) == 3
    assert {one.sample: one.temperature for one in played} == {0: 0.5, 1: 1.0, 2: 1.5}


async def test_the_record_says_the_temperature_of_what_was_sampled_alone() -> None:
    player = Player(ScriptedPolicy(OPEN), CHAT, Door(), Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]

    (sampled,) = await episodes(player, group(sampling=Sampling(temperature=0.7)), [0])
    (demonstrated,) = await episodes(player, group(strategy=StrategySpec(use="expert")), [0])

    assert (sampled.temperature, demonstrated.temperature) == (0.7, None)
    assert "temperature" not in demonstrated.model_dump()
