"""Searches on the page of a run: which nodes are drawn, as what, and that no text of theirs can change the page."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gymfleet_cli.report import write_report
from gymfleet_cli.report.searches import MAX_DRAWN, Drawing, drawings, drawn
from gymfleet_cli.run_directory import RunFiles
from gymfleet_contracts.search import MAX_NODES, SearchNode, SearchTree
from gymfleet_contracts.trajectory import FinishReason

from tests.fixtures.run_directory import write_run
from tests.fixtures.searches import RIGHT, Played
from tests.fixtures.trajectories import make_search_tree
from tests.unit.rollout.test_episode import LEFT, OPEN

HOSTILE = "</text></svg><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e{{ 6 * 7 }}"


def write_trees(run: Path, stage: str, *trees: SearchTree) -> None:
    (run / "trees").mkdir(exist_ok=True)
    (run / "trees" / f"{stage}.jsonl").write_text("".join(f"{tree.model_dump_json()}\n" for tree in trees))


def node(number: int, parent: int | None, depth: int, **facts: Any) -> SearchNode:
    above = None if parent is None else str(parent)
    given = {"action": f"act {number}", "score": 0.0, "ended": None, **facts}
    return SearchNode(id=str(number), parent=above, depth=depth, **given)


def tree_of(*nodes: SearchNode, **facts: Any) -> SearchTree:
    return make_search_tree().model_copy(update={"nodes": nodes, **facts})


def ways(one: Drawing) -> dict[str, str]:
    return {row.node.id: row.way for row in one.rows}


def page_with(tmp_path: Path, *trees: SearchTree) -> str:
    run = write_run(tmp_path / "run")
    write_trees(run, "searched", *trees)
    return write_report(run).read_text(encoding="utf-8")


async def test_a_search_is_drawn_with_values_visits_and_the_chosen_path(tmp_path: Path) -> None:
    played = Played("mcts", LEFT, RIGHT, OPEN, LEFT, RIGHT, OPEN, worth=lambda path: float("open" in path), max_turns=2)
    await played.play({"simulations": 6, "children": 2, "value": "evaluator", "widening": 0})
    (tree,) = played.trees

    page = page_with(tmp_path, tree)

    (svg,) = [one for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "The search of" in one]
    drawing = ElementTree.fromstring(svg)  # noqa: S314 - ours
    rows = {group.findtext("title"): group for group in drawing.iter("g")}
    assert len(rows) == len(tree.nodes)
    for one in tree.nodes:
        group = rows[f"{one.id}: {one.action}" if one.action else one.id]
        text = "".join(group.find("text").itertext())  # type: ignore[union-attr]
        assert f"visits {one.visits}" in text
        assert one.value is not None
        assert f"value {one.value:.3g}" in text
    by_id = {one.id: one for one in tree.nodes}
    end: SearchNode | None = next(one for one in tree.nodes if one.selected)
    chosen = set()
    while end is not None:
        chosen.add(end.id)
        end = by_id[end.parent] if end.parent else None
    assert {title.partition(":")[0] for title, row in rows.items() if title and row.get("class") == "chosen"} == chosen
    assert len(chosen) < len(tree.nodes), "others were tried"
    assert "valued by goal: the search has seen what the environment says" in page


def test_every_node_is_told_by_what_became_of_it() -> None:
    over = {"ended": FinishReason.TERMINATED}
    tree = tree_of(
        node(0, None, 0), node(1, 0, 1), node(2, 1, 2, **over, samples=(0,), selected=True), node(3, 1, 2, **over),
        node(4, 0, 1), node(5, 0, 1), node(6, 5, 2), node(7, 6, 3, samples=(1,)),
    )  # fmt: skip

    one = drawn("searched", tree)

    assert ways(one) == {
        "0": "chosen", "1": "chosen", "2": "chosen", "3": "rejected", "4": "pruned", "5": "handed-in",
        "6": "handed-in", "7": "handed-in",
    }  # fmt: skip
    assert ways(drawn("searched", tree_of(node(0, None, 0), node(1, 0, 1), node(2, 1, 2)))) == {
        "0": "inner", "1": "inner", "2": "pruned"
    }  # fmt: skip


def test_nodes_lie_below_their_parents_in_rows_of_their_own() -> None:
    tree = tree_of(node(0, None, 0), node(1, 0, 1), node(2, 0, 1), node(3, 1, 2), node(4, 2, 2))

    rows = drawn("searched", tree).rows

    assert [row.node.id for row in rows] == ["0", "1", "3", "2", "4"], "what follows a node is below it"
    assert all(lower.at[1] - upper.at[1] == 22 for upper, lower in pairwise(rows))
    places = {row.node.id: row.at for row in rows}
    assert [row.below for row in rows[1:]] == [places[str(row.node.parent)] for row in rows[1:]]
    assert places["3"][0] > places["1"][0] > places["0"][0]


def test_the_chosen_path_comes_first() -> None:
    tree = tree_of(
        node(0, None, 0), node(1, 0, 1), node(2, 0, 1, samples=(1,)), node(3, 0, 1), node(4, 3, 2),
        node(5, 3, 2, samples=(0,), selected=True),
    )  # fmt: skip

    assert [row.node.id for row in drawn("searched", tree).rows] == ["0", "3", "5", "4", "2", "1"]


def test_values_are_bars_from_the_lowest_to_the_highest() -> None:
    valued = [node(number + 1, 0, 1, value=value) for number, value in enumerate((-1.0, 3.0, 0.0))]

    assert [row.worth for row in drawn("searched", tree_of(node(0, None, 0), *valued)).rows] == [None, 0.0, 1.0, 0.25]
    assert [row.worth for row in drawn("searched", tree_of(node(0, None, 0, value=2.0))).rows] == [1.0]


def test_of_a_large_tree_the_chosen_path_and_the_most_visited_are_drawn(tmp_path: Path) -> None:
    # 300 children of the root with more visits the later they come; the chosen path is 300 turns long, without visits.
    wide = [node(number, 0, 1, visits=number) for number in range(1, 301)]
    deep = [node(301, 0, 1)] + [node(number, number - 1, number - 300) for number in range(302, 601)]
    end = node(601, 600, 301, samples=(0,), selected=True)
    rest = [node(number, 300, 2, visits=0) for number in range(602, MAX_NODES)]
    tree = tree_of(node(0, None, 0, visits=5_000), *wide, *deep, end, *rest, num_left_out=5_000 - MAX_NODES)

    one = drawn("searched", tree)

    drawn_ids = {int(row.node.id) for row in one.rows}
    assert {0, *range(301, 602)} <= drawn_ids, "the whole chosen path"
    assert drawn_ids - {0, *range(301, 602)} == set(range(101, 301)), "and the most visited"
    assert len(one.rows) == 302 + MAX_DRAWN
    assert one.num_left_out == 5_000 - len(one.rows)
    hidden = {row.node.id: row.num_hidden for row in one.rows if row.num_hidden}
    assert hidden == {"0": 100, "300": len(rest)}
    page = page_with(tmp_path, tree)
    assert f"5000 nodes, of which {one.num_left_out} are not drawn" in page
    assert len(page) < 400_000


def test_texts_of_a_search_are_escaped(tmp_path: Path) -> None:
    tree = tree_of(
        node(0, None, 0), node(1, 0, 1, action=HOSTILE, role="planner"), strategy="./<b>.py",
        counts={"<i>unreadable": 1}, valued_by=("./<u>.py",),
    )  # fmt: skip

    page = page_with(tmp_path, tree)

    for forbidden in ("<script", "<img", "<b>.py", "<i>unread", "<u>", "\x1b", "\u202e"):
        assert forbidden not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "{{ 6 * 7 }}" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)  # noqa: S314 - ours


def test_the_first_stage_and_the_last_two_show_their_largest_search(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    small, large = tree_of(node(0, None, 0)), tree_of(node(0, None, 0), node(1, 0, 1))
    for stage in ("after", "before", "reinforce", "unfinished"):
        write_trees(run, stage, small, large, small)

    found = drawings(RunFiles.open(run))

    assert [one.stage for one in found] == ["before", "after", "unfinished"], "in the order of the run"
    assert all(len(one.rows) == 2 for one in found)


def test_a_run_without_searches_says_nothing_of_them(tmp_path: Path) -> None:
    assert "<h2>Searches</h2>" not in write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")
