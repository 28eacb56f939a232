"""The page about a run: what it says, and that nothing in an episode can change it."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gymfleet_cli.report import write_report
from gymfleet_cli.report.charts import Axis, log_bounds, round_ticks, smooth, stacked
from gymfleet_cli.report.data import RunData
from gymfleet_cli.run_directory import RunDataError, RunFiles

from tests.fixtures.run_directory import write_run


def page_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_headline_has_both_measurements_with_their_intervals(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))

    assert "25.0 %" in page
    assert "95 % interval 4.6 to 69.9 %, 4 episodes" in page
    assert "75.0 %" in page
    assert "95 % interval 30.1 to 95.4 %, 4 episodes" in page
    assert "The intervals overlap" in page
    assert "0.0 %" not in page.partition("</header>")[0], "measured on the way"
    assert "held-out, step 2: 0.0 %" in page


def test_the_only_measurement_is_the_success(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False)

    data = RunData.load(RunFiles.open(run))

    assert (data.before, data.after and data.after.name) == (None, "before")
    headline = page_of(run).partition("</header>")[0]
    assert "<p>Success</p>" in headline
    assert "25.0 %" in headline
    assert "Before" not in headline


def test_first_and_last_are_told_by_the_order_of_the_stages(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[-1], *lines[1:-1], lines[0]]))

    data = RunData.load(RunFiles.open(run))

    assert data.before is not None
    assert data.after is not None
    assert (data.before.name, data.after.name) == ("before", "after")


def test_stages_are_listed_with_what_they_left(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    left = json.loads((run / "stages.json").read_text())
    collected = {"name": "round2.<b>", "kind": "collect", "episodes": "trajectories/x.jsonl", "num_episodes": 38}
    (run / "stages.json").write_text(json.dumps([*left, collected]))

    page = page_of(run)

    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["before", "measure", "4 s", "25.0 % success"] in rows
    assert ["reinforce", "reinforce", "1 min 58 s", "a model in models/reinforce"] in rows
    assert ["round2.&lt;b&gt;", "collect", "0 s", "38 episodes in trajectories/x.jsonl"] in rows


def test_each_of_several_environments_has_its_success(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parts = {"num_episodes": 2, "num_successes": 1, "success": 0.5, "interval": [0.25, 0.75]}
    lines[0]["environments"] = {"maze": parts}
    lines[-1]["environments"] = {"maze": {**parts, "success": 1.0}, "<i>": parts}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(f'{recipe}\n[[environments]]\nname = "babyai"\nlevel = "intro"\nlabel = "rooms"\n')

    page = page_of(run)

    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["maze", "50.0 % (25.0 to 75.0 %)", "100.0 % (25.0 to 75.0 %)"] in rows
    assert ["&lt;i&gt;", "not measured", "50.0 % (25.0 to 75.0 %)"] in rows
    assert "Environments: <b>maze tiny, rooms (babyai intro)</b>" in page


def test_step_time_is_the_mean_of_each_part(tmp_path: Path) -> None:
    data = RunData.load(RunFiles.open(write_run(tmp_path / "run", num_steps=3)))

    seconds = data.mean_step_seconds()

    assert seconds == {"generation": 3.0, "environment": 0.5, "reward": 0.25, "update": 1.0, "publish": 0.25}


def test_the_tolerance_is_the_recipes_or_what_the_first_batch_made_of_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    given = RunData.load(RunFiles.open(run)).tolerance
    recipe = run / "recipe.toml"
    text = recipe.read_text().replace("parity_tolerance = 0.01", "")
    recipe.write_text(text + '[inference]\ndtype = "bfloat16"\n')
    before = RunData.load(RunFiles.open(run)).tolerance
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "parity_tolerance", "step": 1, "tolerance": 0.03}) + "\n")

    assert (given, before, RunData.load(RunFiles.open(run)).tolerance) == (0.01, 0.1, 0.03)


def test_page_stands_alone(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))

    assert "<script" not in page
    assert not re.search(r"""(src|href)\s*=|@import|url\(""", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_every_chart_is_well_formed_and_announced(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))

    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 - ours

    assert len(charts) == 3
    assert all(chart.get("role") == "img" and chart.get("aria-label") for chart in charts)


def test_text_of_episodes_recipe_and_machine_is_escaped(tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\x00"
    page = page_of(write_run(tmp_path / "run", hostile=hostile))

    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "Analytical &lt;Engine&gt;" in page
    assert "Learn to &lt;walk&gt;" in page


def test_text_of_episodes_is_no_template(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", hostile="{{ 6 * 7 }} {% include 'style.css' %} {# gone #}"))

    assert "{{ 6 * 7 }} {% include &#39;style.css&#39; %} {# gone #}" in page
    assert page.count("color-scheme: light dark;") == 1


def test_replies_have_their_faults_and_long_episodes_are_cut(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", hostile="x" * 2001)
    path = run / "trajectories" / "after.jsonl"
    scored = json.loads(path.read_text().splitlines()[0])
    scored["trajectory"]["turns"] *= 16
    scored["reward"] = None
    path.write_text(json.dumps(scored) + "\n")

    page = page_of(run)

    assert page.count("not in the format; action not understood") == 1 + 15, "one turn before, 15 of 30 after"
    assert '<li class="note">2 more turns</li>' in page
    assert f"{'x' * 2000} … (1 characters more)</pre>" in page


def test_learned_tasks_are_shown_first(tmp_path: Path) -> None:
    data = RunData.load(RunFiles.open(write_run(tmp_path / "run")))

    shown = [(pair.before.trajectory.success, pair.after.trajectory.success) for pair in data.pairs]

    assert shown == [(False, True), (False, True), (True, True)]


def test_run_in_progress_is_shown_as_such(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "rl_step", "st')

    assert "This run is not finished" in page_of(run)


def test_empty_run_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")

    page = page_of(tmp_path)

    assert "not measured" in page
    assert "No stage is finished" in page
    assert "No version was published" in page


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(("metrics.jsonl", '{"kind": "rl_step", "step": 1}\n'), "success", id="a metric lacks a field"),
        pytest.param(("metrics.jsonl", "what?\n"), "line 1", id="metrics are not JSON"),
        pytest.param(("summary.json", "["), "summary.json", id="the summary is cut off"),
        pytest.param(("stages.json", "["), "stages.json cannot be read", id="the stages are cut off"),
        pytest.param(("stages.json", '[{"kind": "sft"}]'), "stages.json cannot be read", id="a stage has no name"),
        pytest.param(("trajectories/after.jsonl", "{}\n"), "after.jsonl, line 1", id="an episode is none"),
    ],
)
def test_damaged_file_is_named(damage: tuple[str, str], complaint: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / damage[0]).write_text(damage[1])

    with pytest.raises(RunDataError, match=complaint):
        write_report(run)


def test_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDataError, match="not a run directory"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_axes() -> None:
    linear, log = Axis(0, 10, 100, 200), Axis(1e-4, 1, 0, 40, log=True)

    assert [linear(0), linear(5), linear(10), linear(99)] == [100, 150, 200, 200]
    assert [log(1e-4), log(1e-2), log(1), log(0)] == [0, 20, 40, 0]


def test_ticks_are_round_and_few() -> None:
    assert round_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert round_ticks(0, 2) == [0, 1, 2]
    assert round_ticks(1, 730) == [200, 400, 600]
    assert log_bounds([3e-6, 0.01]) == (1e-6, 0.01)
    assert log_bounds([0.0]) == (1.0, 10.0)


def test_smoothing_is_a_mean_of_what_came_before() -> None:
    assert smooth([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]


def test_stacked_bar_fills_the_width() -> None:
    segments = stacked({"generation": 3.0, "update": 1.0})

    assert [(one.start, one.share) for one in segments] == [(0.0, 0.75), (0.75, 0.25)]
