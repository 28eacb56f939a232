"""TextWorld's generator, run without its compiler: it makes the same games in tenths of the time."""

import contextlib
import functools
import glob
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.textworld.logic import Logic, logic_of

_MISSING: Final = "the package textworld is missing; install gymfleet[env-alfworld]"

Make = Callable[[Any], Any]
"""Makes the package's `Game` from its `GameOptions`."""


class NoSuchGame(Exception):
    """The package makes no game of this level from a seed."""


def generate(make: Make, seed: int, *, brief: bool) -> Mapping[str, Any]:
    """Return a game in the form in which the package saves it as JSON.

    Args:
        make: one of the package's challenges.
        seed: from 0 to 2**32 - 1.
        brief: whether the objective states only the last action instead of the whole way.

    Raises:
        NoSuchGame: if the map of this seed has no quest of the wanted length.
    """
    textworld = package()
    options = textworld.GameOptions()
    options.seeds = seed
    options.grammar.only_last_action = brief
    textworld.g_rng.set_seed(seed)
    with _quickly(textworld), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", textworld.GenerationWarning
        )  # of names that begin with one adjective more often
        try:
            game = make(options)
        except textworld.generator.QuestGenerationError as error:
            raise NoSuchGame(str(error)) from None
    return game.serialize()  # type: ignore[no-any-return]


def package() -> Any:
    """Return the module `textworld`. Raises ModuleNotFoundError with the name of the extra."""
    try:
        import textworld  # noqa: PLC0415 - jericho, networkx, numpy: heavy, and for this environment alone
        import textworld.challenges  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "textworld":
            raise
        raise ModuleNotFoundError(_MISSING, name="textworld") from None
    return textworld


def challenge(name: str) -> Any:
    """Return the module of one of the package's challenges, such as `cooking`."""
    return importlib.import_module(f"textworld.challenges.tw_{name}.{name}")


def logic_for(document: object) -> Logic:
    """Return a game's logic by its text in the game's file. Raises `TaskDataError` unless it is the package's own.

    The text is not parsed: there would be no sentences for rules that the package does not have anyway.
    """
    if isinstance(document, str):
        lines = _lines(document)
        for known, logic in _known_logics():
            if lines == known:
                return logic
    raise TaskDataError(f"its rules are not those of a kind of games of textworld {package().__version__}")


@functools.cache
def _known_logics() -> Sequence[tuple[tuple[str, ...], Logic]]:
    from textworld.generator.data import LOGIC_DATA_PATH  # noqa: PLC0415

    cooking = challenge("cooking")
    folders = [LOGIC_DATA_PATH, f"{challenge('coin_collector').KB_PATH}/logic"]
    folders += [cooking.KB_LOGIC_PATH, cooking.KB_LOGIC_DROP_PATH]
    loaded = [_load(None, folder, None) for folder in folders]
    return [(_lines(knowledge.logic.serialize()), logic_of(knowledge)) for knowledge in loaded]


def _lines(document: str) -> tuple[str, ...]:
    """Return the lines sorted, because files are joined in the order in which a folder lists them."""
    return tuple(sorted(document.split("\n")))


@functools.cache
def _load(*where: str | None) -> Any:
    from textworld.generator.data import KnowledgeBase  # noqa: PLC0415

    return KnowledgeBase.load(*where)


@contextlib.contextmanager
def _quickly(textworld: Any) -> Iterator[None]:
    """Parse the rules once, read grammars in one order everywhere, and play walkthroughs without compiling the game.

    (`GameMaker.set_walkthrough` compiles a game with Inform 7 to see what the commands do; the package's own
    `GameProgression` gives the same result. If a tag is in two files of a grammar, the last file decides its meaning,
    and the package reads the files in the folder's order.)
    """
    from textworld.generator import text_grammar  # noqa: PLC0415
    from textworld.generator.data import KnowledgeBase  # noqa: PLC0415

    in_order = SimpleNamespace(glob=lambda pattern: sorted(glob.glob(pattern)), escape=glob.escape)  # noqa: PTH207
    own_load = vars(KnowledgeBase)["load"]

    def load(target_dir: str | None = None, logic_path: str | None = None, grammar_path: str | None = None) -> Any:
        with _replaced(KnowledgeBase, "load", own_load):
            return _load(target_dir, logic_path, grammar_path)

    with (
        _replaced(KnowledgeBase, "load", staticmethod(load)),
        _replaced(textworld.GameMaker, "set_walkthrough", _set_walkthrough),
        _replaced(text_grammar, "glob", in_order),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _set_walkthrough(maker: Any, commands: Sequence[str]) -> None:
    """Store with each event the actions that lead to it. A command that does nothing is left out."""
    from textworld.generator.game import GameProgression  # noqa: PLC0415

    game = maker.build()
    names = {entity: info.name for entity, info in game.infos.items()}
    progression = GameProgression(game, track_quests=False)
    open_events = [event for quest in maker.quests for event in quest.win_events]
    actions: list[Any] = []
    for number, command in enumerate(commands, start=1):
        for action in progression.valid_actions:
            if action.format_command(names) == command:
                actions.append(action)
                progression.update(action)
                break
        for event in [event for event in open_events if event.is_triggering(progression.state)]:
            open_events.remove(event)
            event.actions, event.commands = tuple(actions), tuple(commands[:number])
