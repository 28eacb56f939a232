from gymfleet_envs.sciworld.expert import GoldPath, shortened
from gymfleet_envs.sciworld.tasks import SciTask

GOLD = ("open door to hallway", "go to hallway", "look around", "focus on cat", "pick up cat", "open door to kitchen")
TASK = SciTask("find-animal", 0)


def follow(path: GoldPath, *actions: str, harmless: bool = False) -> str | None:
    for action in actions:
        path.follow(action, harmless=harmless)
    move = path.next_move()
    return move.action if move else None


def test_walks_become_teleports() -> None:
    gold = ("open door to hallway", "go to hallway", "go to outside", "look around", "focus on cat", "close door to x")

    assert shortened(gold) == ("teleport to outside", "focus on cat")


def test_only_animals_that_stay_are_teleported_to() -> None:
    assert follow(GoldPath(SciTask("lifespan-longest-lived", 0, "easy"), GOLD)) == "teleport to hallway"
    assert follow(GoldPath(SciTask("lifespan-longest-lived", 0), GOLD)) == "open door to hallway"
    assert follow(GoldPath(SciTask("find-animal", 0, "easy"), GOLD)) == "open door to hallway"


def test_solution_is_followed_to_its_end() -> None:
    path = GoldPath(TASK, GOLD)

    assert [follow(path), *(follow(path, action) for action in GOLD)] == [*GOLD, None]


def test_what_changes_nothing_does_no_harm() -> None:
    path = GoldPath(TASK, GOLD)

    assert follow(path, "inventory", "nonsense", harmless=True) == GOLD[0]
    assert follow(path, GOLD[0], GOLD[1], GOLD[2]) == "focus on cat"


def test_off_the_way_there_is_no_move_any_more() -> None:
    path = GoldPath(TASK, GOLD)

    assert follow(path, GOLD[0], "wait1") is None
    assert follow(path, GOLD[1]) is None


def test_thoughts_are_short_sentences_of_one_line() -> None:
    path = GoldPath(TASK, ["focus on {0} %s\n\nthing", "unheard of"])

    move = path.next_move()

    assert move is not None
    assert move.thought == "The task is about {0} %s thing, so I say so."
    path.follow(move.action, harmless=False)
    last = path.next_move()
    assert last is not None
    assert last.thought == "That is the next step."
