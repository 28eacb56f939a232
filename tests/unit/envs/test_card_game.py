"""Aquawar's rules by numbers worked out by hand, and what an agent sees of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_env_server.expert_play import solve
from gymfleet_envs.card_game import kinds as k
from gymfleet_envs.card_game.battle import MOST_MOVES, Battle, Guess, Move
from gymfleet_envs.card_game.environment import CardGame
from gymfleet_envs.card_game.match import Match
from gymfleet_envs.card_game.moves import Unplayable, read_guess, read_move
from gymfleet_envs.card_game.options import CardGameOptions
from gymfleet_envs.card_game.players import opponents_guess, opponents_move, thoughtful
from gymfleet_envs.card_game.self_play import CardGameSelfPlay
from gymfleet_envs.card_game.suspicion import after_guess, after_move, as_seen_by, at_the_start, best_guess
from gymfleet_envs.card_game.tasks import Duel, is_worth_playing
from gymfleet_envs.tasks import TaskDataError

OWN = (k.SPRAY, k.FLAME, k.OCTOPUS, k.WHITESHARK)
ENEMY = (k.HAMMERHEAD, k.OCTOPUS, k.WHITESHARK, k.SPRAY)
QUIET = (k.OCTOPUS, k.WHITESHARK, k.HAMMERHEAD, k.BARRACUDA)
"""None of them counters or shares."""


def battle(own: tuple[int, ...] = OWN, enemy: tuple[int, ...] = ENEMY, share: int = 30, luck: int | None = 1) -> Battle:
    return Battle((*own, *enemy), share, luck)


def normal(fish: int, target: int) -> Move:
    return Move(fish, active=False, target=target)


def active(fish: int, target: int = 0) -> Move:
    return Move(fish, active=True, target=target)


def test_a_normal_attack_causes_half_of_the_attack() -> None:
    game = battle()

    game.move(normal(0, 3))

    assert game.health == [400, 400, 400, 400, 400, 400, 400, 300]


@pytest.mark.parametrize(("target", "left", "own"), [
    pytest.param(0, 300, 360, id="hammerhead answers 40"),
    pytest.param(1, 320, 400, id="octopus regains 20"),
    pytest.param(2, 320, 400, id="whiteshark regains 20"),
])  # fmt: skip
def test_whoever_is_attacked_and_lives_answers_or_heals(target: int, left: int, own: int) -> None:
    game = battle()

    game.move(normal(0, target))

    assert (game.health[4 + target], game.health[0]) == (left, own)


def test_spray_hits_all_living_enemies_for_35_percent() -> None:
    game = battle()
    game.health[7] = 0

    targets = game.move(active(0, 2))

    assert targets == [4, 5, 6]
    assert game.health == [360, 400, 400, 400, 330, 350, 350, 0], "70 each; 20 regained; hammerhead answers"


def test_infight_costs_a_teammate_75_and_adds_140_attack() -> None:
    game = battle()

    game.move(active(1, 0))
    game.moves += 1
    game.move(normal(1, 3))

    assert (game.health[0], game.attacks[1]) == (325, 340)
    assert game.health[7] == 400 - 170


@pytest.mark.parametrize(("share", "eel", "others"), [
    pytest.param(30, 370, 377, id="English rules: 30 itself, 70 // 3 each"),
    pytest.param(70, 330, 390, id="Chinese rules: 70 itself, 30 // 3 each"),
])  # fmt: skip
def test_eel_shares_what_an_attack_causes(share: int, eel: int, others: int) -> None:
    game = battle(enemy=(k.EEL, k.SPRAY, k.FLAME, k.SUNFISH), share=share)

    game.move(normal(0, 0))

    assert game.health[4:] == [eel, others, others, others]


def test_the_last_sunfish_takes_all_and_grows_with_every_200() -> None:
    game = battle(enemy=(k.SUNFISH, k.SPRAY, k.FLAME, k.EEL))
    game.health[5:] = [0, 0, 0]

    game.move(normal(0, 0))
    game.moves += 1
    assert (game.health[4], game.attacks[4], game.wounds[4]) == (300, 200, 100)
    game.move(normal(0, 0))

    assert (game.health[4], game.attacks[4], game.wounds[4]) == (200, 240, 0)


@pytest.mark.parametrize(("health", "left"), [(400, 160), (300, 60), (160, 0), (159, 0)])
def test_a_critical_attack_is_120_percent_and_140_below_160(health: int, left: int) -> None:
    game = battle(own=(k.WHITESHARK, k.OCTOPUS, k.SPRAY, k.FLAME), enemy=(k.SPRAY, k.EEL, k.MOBULA, k.BARRACUDA))
    game.health[4:] = [health, 400, 400, 400]
    game.attacks[0] = 110 if health < 200 else 200  # 132 or, below 160, 154

    game.move(active(0, 0))

    assert game.health[4] == (left if health >= 200 else {160: 28, 159: 5}[health])


def test_a_critical_attack_is_on_the_enemy_with_the_least_health() -> None:
    game = battle(own=(k.HAMMERHEAD, k.OCTOPUS, k.SPRAY, k.FLAME))
    game.health[6] = 390

    assert game.fault(active(0, 2)) is None
    assert game.fault(active(0, 1)) == "the target must be the enemy with the lowest health"
    assert active(0, 1) not in game.possible_moves()


def test_a_shield_takes_70_percent_of_the_next_attack_alone_and_adds_20_attack() -> None:
    game = battle(enemy=(k.SPRAY, k.EEL, k.MOBULA, k.BARRACUDA))
    game.moves = 1
    game.move(active(2, 0))  # mobula, of the player who moves second, shields spray

    game.move(normal(0, 0))
    assert (game.health[4], game.attacks[4]) == (370, 220)
    game.moves += 1
    game.move(normal(0, 0))

    assert game.health[4] == 270
    game.moves = 1
    game.move(normal(0, 0))
    assert game.health[0] == 400 - 110


def test_spray_and_flame_answer_for_a_teammate_below_30_percent() -> None:
    game = battle(own=QUIET, enemy=(k.SPRAY, k.FLAME, k.EEL, k.BARRACUDA))
    game.health[4], game.health[0] = 220, 380

    game.move(normal(0, 0))  # 120 is not below 120
    assert game.health[0] == 380
    game.moves += 1
    game.move(normal(0, 0))

    assert game.health[4] == 20
    assert game.health[0] == 370, "flame answers 30, spray not for itself, and octopus regains 20"


def test_a_weak_hammerhead_has_15_attack_more() -> None:
    game = battle(own=(k.HAMMERHEAD, k.OCTOPUS, k.EEL, k.FLAME))
    game.health[0] = 79

    game.move(normal(0, 3))

    assert game.health[7] == 400 - 107


def test_barracuda_avoids_three_in_ten_and_deals_120() -> None:
    hits = []
    for seed in range(1000):
        game = battle(own=QUIET, enemy=(k.BARRACUDA, k.SPRAY, k.EEL, k.FLAME), luck=seed * 7919)
        game.move(active(3, 0))
        hits.append(game.health[4])

    assert set(hits) == {400, 280}
    assert 250 <= hits.count(400) <= 350, "0.3 of 1,000, with five standard errors on both sides"


def test_whoever_thinks_ahead_counts_evasion_as_30_percent_less() -> None:
    game = battle(own=QUIET, enemy=(k.BARRACUDA, k.SPRAY, k.EEL, k.FLAME), luck=None)

    game.move(active(3, 0))

    assert game.health[4] == 400 - 84


def test_a_right_guess_costs_every_enemy_50_and_a_wrong_one_nothing() -> None:
    game = battle()
    game.health[7] = 30

    assert not game.guess(Guess(0, k.SPRAY))
    assert (game.health[4:], game.exposed) == ([400, 400, 400, 30], 0)
    assert game.guess(Guess(0, k.HAMMERHEAD))

    assert game.health[4:] == [350, 350, 350, 0]
    assert game.unexposed(1) == [1, 2], "the first is revealed, the last is dead"


def test_fish_that_fall_in_a_turn_answer_until_its_end_and_whoever_struck_last_wins() -> None:
    game = battle(own=(k.SPRAY, k.OCTOPUS, k.FLAME, k.EEL), enemy=(k.SPRAY, k.FLAME, k.BARRACUDA, k.MOBULA))
    game.health = [60, 0, 0, 0, 70, 70, 0, 0]

    game.move(active(0))

    assert game.health == [0] * 8, "flame answers for spray, and spray for flame"
    assert game.winner() == 0


@pytest.mark.parametrize(("first", "second", "winner"), [
    ([400, 0, 0, 0], [10, 10, 0, 0], 1),
    ([200, 100, 0, 0], [150, 140, 0, 0], 0),
    ([150, 140, 0, 0], [200, 90, 0, 0], 1),
    ([150, 140, 0, 0], [150, 140, 0, 0], 1),
])  # fmt: skip
def test_after_63_moves_living_fish_health_and_the_healthiest_decide(
    first: list[int], second: list[int], winner: int
) -> None:
    game = battle()
    game.health = [*first, *second]
    game.moves = MOST_MOVES - 1
    assert game.winner() is None
    game.moves += 1

    assert game.winner() == winner


@pytest.mark.parametrize(("health", "forfeits", "score"), [
    pytest.param([0, 0, 0, 0], False, 1.0, id="all enemies are dead"),
    pytest.param([400, 400, 200, 200], True, 0.3 * 400 / 1600, id="a quarter of their health, and then lost"),
])  # fmt: skip
def test_the_score_is_agentbenchs(health: list[int], forfeits: bool, score: float) -> None:
    match = Match(battle(), has_guesses=False)
    match.battle.health[4:] = health
    match.forfeited_by = 0 if forfeits else None

    assert match.score(0) == pytest.approx(score)
    assert match.score(1) == pytest.approx(0.7 * forfeits)


@pytest.mark.parametrize("text", [
    "", "attack", "{}", "[0]", '{"pick_fish": "eel", "action": "normal", "target_position": 0}',
    '{"pick_fish": "spray", "action": "bite", "target_position": 0}',
    '{"pick_fish": "spray", "action": "normal", "target_position": 4}',
    '{"pick_fish": "spray", "action": "normal", "target_position": -1}',
    '{"pick_fish": "spray", "action": "normal", "target_position": true}',
    '{"pick_fish": "spray", "action": "normal", "target_position": 1.0}',
    '{"pick_fish": "spray", "action": "normal", "target_position": [0, 1]}',
    '{"pick_fish": ["spray"], "action": "normal", "target_position": 0}',
    '{"pick_fish": "spray", "action": ["normal"], "target_position": 0}',
    '{"pick_fish": "spray", "action": "normal"}',
    '{"pick_fish": "flame", "action": "active", "target_position": 1}',
    '{"pick_fish": "spray", "action": "normal", "target_position": 0, "target_position": 1}',
    "__import__('os')", "{" * 500, '{"pick_fish": "spray", "action": NaN, "target_position": 0}',
])  # fmt: skip
def test_what_is_no_move_is_unplayable(text: str) -> None:
    with pytest.raises(Unplayable):
        read_move(text, battle())


@pytest.mark.parametrize(("text", "move"), [
    ('I attack: {"pick_fish": "spray", "action": "normal", "target_position": "2"}', normal(0, 2)),
    ("{'pick_fish': 'spray', 'action': 'active'}", active(0)),
    ('{"pick_fish": "flame", "action": "active", "target_position": 3} {"pick_fish": "spray"}', active(1, 3)),
    ('{"pick_fish": "octopus", "action": "active", "target_position": 2, "damage": 1600}', active(2, 2)),
])  # fmt: skip
def test_the_first_object_is_the_move(text: str, move: Move) -> None:
    assert read_move(text, battle()) == move


@pytest.mark.parametrize("text", [
    '{"guess_type": "flame", "target_position": 0}', '{"guess_type": "unknown", "target_position": 0}',
    '{"guess_type": "octopus", "target_position": 2}', '{"guess_type": "octopus"}', "octopus",
])  # fmt: skip
def test_only_a_hidden_living_enemy_is_guessed_and_of_kinds_that_it_has(text: str) -> None:
    game = battle()
    game.exposed |= 1 << 6

    assert read_guess('{"guess_type": "octopus", "target_position": 0}', game) == Guess(0, k.OCTOPUS)
    with pytest.raises(Unplayable):
        read_guess(text, game)


def test_what_was_seen_narrows_the_kinds_down() -> None:
    game = battle(enemy=(k.EEL, k.SPRAY, k.FLAME, k.OCTOPUS))
    known = at_the_start(game, is_hidden=True)
    after = game.copy()
    after.move(normal(0, 0))

    known = after_move(known, game, after, normal(0, 0))
    assert known[4] == {k.EEL}, "it shared the damage, and of this team eel alone does"
    assert known[7] == {k.OCTOPUS}, "it regained health when it took its share"
    assert known[5] == known[6] == {k.SPRAY, k.FLAME}
    known = after_guess(known, game, Guess(1, k.FLAME), is_right=False)

    assert known[5] == {k.SPRAY}
    assert known[6] == {k.FLAME}
    assert best_guess(game, known) == Guess(0, k.EEL)


def test_a_player_takes_hidden_fish_for_plain_ones() -> None:
    game = battle()

    seen = as_seen_by(0, game, at_the_start(game, is_hidden=True))

    assert seen.kinds == (*OWN, k.PLAIN, k.PLAIN, k.PLAIN, k.PLAIN)
    assert seen.luck is None
    assert as_seen_by(0, game, at_the_start(game, is_hidden=False)).kinds == game.kinds


def test_opponents_play_what_is_possible_and_the_greedy_one_as_agentbenchs_second_baseline() -> None:
    game = battle(own=(k.FLAME, k.EEL, k.WHITESHARK, k.OCTOPUS))
    known = at_the_start(game, is_hidden=True)
    assert opponents_move("greedy", game, known) == active(1), "all enemies, as there are two or more"
    game.health[6] = 100
    assert opponents_move("greedy", game, known) == normal(0, 2), "kill"
    game.health[4:] = [0, 0, 150, 0]
    assert opponents_move("greedy", game, known) == active(2, 2), "one enemy: a critical attack"
    game.health[2] = 0
    assert opponents_move("greedy", game, known) == normal(0, 2), "no critical attack is left"
    for luck in range(50):
        game = battle(luck=luck)
        assert opponents_move("random", game, known) in game.possible_moves()
        guess = opponents_guess("random", game, known)
        assert guess is not None
        assert guess.kind in known[4 + guess.target]


def test_a_thoughtful_player_takes_the_win() -> None:
    game = battle(luck=None)
    game.health[4:] = [0, 0, 0, 90]

    for depth in (1, 2):
        move = thoughtful(game, depth)
        after = game.copy()
        after.move(move)
        assert after.winner() == 0


DUEL = Duel(OWN, ENEMY, begins=True, has_guesses=True, opponent="greedy", seed=5)


def opened(duel: Duel = DUEL) -> CardGame:
    environment = CardGame()
    environment.reset(duel, 0)
    return environment


def shown(environment: CardGame, duel: Duel = DUEL) -> Iterator[str]:
    """Play the expert, and yield all that the agent is told."""
    yield environment.reset(duel, 0)
    while (move := environment.expert()) is not None:
        outcome = environment.step(move.action)
        assert outcome.action_valid
        yield outcome.observation
        yield json.dumps(outcome.info)


def test_hidden_kinds_are_told_to_nobody() -> None:
    other = replace(DUEL, enemy=(k.SPRAY, k.WHITESHARK, k.OCTOPUS, k.HAMMERHEAD))
    assert opened().reset(DUEL, 0) == opened().reset(other, 0), "where they are makes no difference at the start"

    environment = CardGame()
    for text in shown(environment):
        revealed = [fish - 4 for fish in range(4, 8) if environment._match.battle.exposed >> fish & 1]
        if '"Enemy": ' in text:
            table = json.loads(next(line for line in text.splitlines() if line.startswith('{"You"')))
            for place, row in enumerate(table["Enemy"]):
                assert (row["ID"] != "unknown") == (place in revealed)
                assert row["ATK"] == "unknown"


def test_open_games_show_the_enemy() -> None:
    text = opened().reset(replace(DUEL, has_guesses=False), 0)

    assert '"Enemy": [{"POSITION": "0", "ID": "hammerhead", "HP": "400", "ATK": "unknown"}' in text
    assert text.endswith("Please output your next action.")


def test_the_seed_of_a_session_changes_nothing_and_that_of_the_task_does() -> None:
    duel = Duel(QUIET, (k.BARRACUDA, k.MOBULA, k.EEL, k.SPRAY), True, False, "random", 1)
    move = '{"pick_fish": "octopus", "action": "normal", "target_position": 0}'

    def told(duel: Duel, seed: int) -> str:
        environment = CardGame()
        environment.reset(duel, seed)
        return environment.step(move).observation

    assert told(duel, 0) == told(duel, 1)
    assert len({told(replace(duel, seed=seed), 0) for seed in range(20)}) > 5


def test_a_text_that_cannot_be_played_loses_or_costs_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = opened().step("nonsense")
    assert (outcome.terminated, outcome.action_valid, outcome.score, outcome.reward) == (True, False, 0.0, 0.0)
    assert outcome.observation.endswith("The game is over. You have lost.")

    monkeypatch.setattr(CardGame, "options", CardGameOptions(tries=2))
    environment = opened()
    assert not environment.step("nonsense").terminated
    assert environment.step(environment.admissible_actions()[0]).action_valid
    assert not environment.step("nonsense").terminated
    assert environment.step("nonsense").terminated


def test_the_rules_are_those_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (k.OCTOPUS, k.WHITESHARK, k.BARRACUDA, k.SPRAY)
    duel = Duel(own, (k.EEL, k.SPRAY, k.FLAME, k.SUNFISH), True, False, "greedy", 1)
    move = '{"pick_fish": "octopus", "action": "normal", "target_position": 0}'
    environment = opened(duel)
    assert "takes 30% when attacked" in environment.reset(duel, 0)
    environment.step(move)
    assert environment._match.battle.health[4] == 370

    monkeypatch.setattr(CardGame, "options", CardGameOptions(rules="chinese"))
    environment = opened(duel)
    assert "takes 70% when attacked" in environment.reset(duel, 0)
    environment.step(move)
    assert environment._match.battle.health[4] == 330


def test_what_the_enemy_did_before_the_first_turn_is_nobodys_merit() -> None:
    duel = replace(DUEL, begins=False, opponent="greedy", enemy=(k.FLAME, k.OCTOPUS, k.MOBULA, k.SUNFISH), own=QUIET)
    for seed in range(60):
        environment = opened(replace(duel, opponent="random", seed=seed))
        lost = environment._match.battle.damage_taken(0)
        assert environment.start_score == pytest.approx(0.3 * lost / 1600)
        if lost:
            return
    pytest.fail("the random opponent never attacked its own team")


def test_a_snapshot_goes_its_own_way_with_the_same_luck() -> None:
    environment = opened(replace(DUEL, opponent="random"))
    environment.step(environment.admissible_actions()[0])
    twin = environment.snapshot()
    before = environment.state_digest()

    action = environment.admissible_actions()[0]
    first = twin.step(action)

    assert environment.state_digest() == before != twin.state_digest()
    assert environment.step(action) == first


def test_drawn_games_are_won_by_the_expert_and_not_by_blind_players() -> None:
    entry = load_entry("card_game", {})
    for level in entry.spec.levels:
        task = entry.tasks.by_index("test", level, 11)
        assert is_worth_playing(task.data, "english")
        assert solve(entry, task.data)
    weak = Duel((k.MOBULA, k.OCTOPUS, k.BARRACUDA, k.SPRAY), (k.FLAME, k.SUNFISH, k.WHITESHARK, k.HAMMERHEAD), False,
                False, "strong", 1)  # fmt: skip
    assert not is_worth_playing(weak, "english")


def test_there_is_nothing_to_import(tmp_path: Any) -> None:
    with pytest.raises(TaskDataError, match="AgentBench has no files of it"):
        CardGame.task_source(tmp_path)


def test_two_agents_share_a_game() -> None:
    entry = load_entry("gymfleet_envs.card_game.self_play:CardGameSelfPlay", {})
    environment = CardGameSelfPlay()
    task = entry.tasks.by_index("test", "guess", 0).data
    assert sorted(task.own) == sorted(task.enemy)

    assert environment.reset(task, 0) == ""
    assert environment.game().to_move == "first"
    assert "You move second." in environment.game().seats["second"].observation
    movers = []
    while (seat := environment.game().to_move) is not None:
        movers.append(seat)
        own = environment.game().seats[seat].observation
        assert own.endswith(("Please output your guess.", "Please output your next action."))
        environment.step(environment.admissible_actions()[0])

    scores = {name: seat.score for name, seat in environment.game().seats.items()}
    assert movers[:4] == ["first", "first", "second", "second"], "a guess, then a move"
    assert max(scores.values()) >= 0.7 > min(scores.values())
    assert environment.game().seats["first"].reward == scores["first"]


def test_who_cannot_play_hands_the_game_to_the_other() -> None:
    environment = CardGameSelfPlay()
    environment.reset(replace(DUEL, has_guesses=False), 0)
    environment.step('{"pick_fish": "spray", "action": "normal", "target_position": 0}')

    outcome = environment.step("nonsense")

    assert outcome.terminated
    assert not outcome.action_valid
    assert environment.game().seats["first"].score == pytest.approx(0.7 + 0.3 * 100 / 1600)
    assert environment.game().to_move is None
