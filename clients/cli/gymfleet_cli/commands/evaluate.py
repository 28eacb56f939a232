"""`gymfleet eval`: measure the success of a run's model or a checkpoint on held-out tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from gymfleet_contracts.recipe import Recipe, initial_model
from gymfleet_contracts.run import RunProgress
from gymfleet_contracts.suite import Suite, SuiteEnvironment, load_suite

from gymfleet_cli.collecting.measuring import Asked, directory_of, measure_suite
from gymfleet_cli.collecting.model import AgentSettings, agent_endpoint
from gymfleet_cli.collecting.spending import Budget as TokenBudget
from gymfleet_cli.commands.train import EnvOption, PortsOption, RunDirOption, SetOption
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.outcome import success_lines
from gymfleet_cli.progress import RunDisplay, read_progress
from gymfleet_cli.recipes import checked, load_checked, load_with_overrides
from gymfleet_cli.report.data import Measurement
from gymfleet_cli.run_directory import RUN_STATE
from gymfleet_cli.running import Work, lock_run, recipe_file, run_plan, work_with_services
from gymfleet_cli.strategies import print_comparison, recipe_allocated, recipe_by
from gymfleet_cli.suites import Figure, Results, figure_of, key_of, print_table, recipe_for, stages_of
from gymfleet_cli.supervisor.errors import ServiceFailed
from gymfleet_cli.supervisor.plan import Plan
from gymfleet_cli.supervisor.sweep import sweep

_MODELS: Final = ("config.json", "adapter_config.json")
"""A model's directory, or an adapter's, has one of these."""
_OF_THEIRS: Final = (
    "model", "api_key_env", "price_in", "price_out", "temperature", "max_reply_tokens", "timeout_s", "concurrency",
    "url",
)  # fmt: skip
"""The options about the endpoint of `--model-url`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The checkpoint to measure, its recipe and its run."""

    recipe: Path
    run_dir: Path
    checkpoint: Path | None
    """The checkpoint to measure; None for the model that the recipe begins with."""


def evaluate(
    context: typer.Context,
    target: Annotated[
        Path | None,
        typer.Argument(help="Recipe, run directory, checkpoint or model directory. None with --model-url."),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Held-out tasks of each environment to play, once each.")
    ] = None,
    run_dir: RunDirOption = None,
    env: EnvOption = None,
    suite: Annotated[
        Path | None, typer.Option(help="File that names the environments to measure on, instead of the recipe's.")
    ] = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="With --suite: the model at the start and after each stage that trained.")
    ] = False,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,KEY=VALUE...]",
            help="How tasks are played, for several a row each: --strategy best_of_n,candidates=16.",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With --strategy: what a task may use: --budget model_calls=64."),
    ] = None,
    allocate: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE[,...]",
            help="A row of its own: all tasks share a budget, --allocate model_calls=4096.",
        ),
    ] = None,
    model_url: Annotated[
        str | None, typer.Option(help="Instead of a model of ours: an OpenAI-compatible endpoint, https://host/v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with the endpoint's key.")] = None,
    price_in: Annotated[float, typer.Option(min=0, help="Of a million prompt tokens there.")] = 0.0,
    price_out: Annotated[float, typer.Option(min=0, help="Of a million reply tokens there.")] = 0.0,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="There; by default its own.")] = None,
    max_reply_tokens: Annotated[int, typer.Option(min=1, help="Of a reply there, reasoning included.")] = 1024,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="For a reply there.")] = 120.0,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Episodes that are played at once there.")] = 8,
    url: Annotated[str | None, typer.Option(help="With --model-url: a gateway's address.")] = None,
    changes: SetOption = None,
    ports_from: PortsOption = None,
) -> None:
    """Measure success on held-out tasks, with a 95 % interval. A recipe stands for its run's last model.

    Without --episodes, the number of tasks is that of the recipe's last measurement, or of the suite. With --model-url,
    a model on another server plays --env, or --suite.
    """
    of_ours = {"TARGET": target, "--strategy": strategy, "--allocate": allocate, "--budget": budget,
               "--stages": stages, "--set": changes}  # fmt: skip
    of_theirs = {f"--{name.replace('_', '-')}": _is_given(context, name) for name in _OF_THEIRS}
    if model_url is not None:
        _require_none(of_ours, "--model-url: another server's model is played as it comes")
        if model is None:
            raise UsageProblem("--model-url: name the model there with --model")
        endpoint = agent_endpoint(model_url, model, None, temperature, timeout_s, concurrency, key_env=api_key_env)
        asked = Asked(AgentSettings(endpoint, max_reply_tokens), TokenBudget(None, None, price_in, price_out), url)
        measure_suite(_suite_of(env, suite, episodes), asked, run_dir or directory_of(model))
        return
    _require_none(of_theirs, "they are about the endpoint of --model-url")
    if target is None:
        raise UsageProblem("give a recipe, a run directory or a checkpoint, or --model-url URL --model NAME")
    if not strategy:
        _require_none({"--budget": budget}, "it is what a strategy may use: give --strategy NAME, such as independent")
    if suite is None:
        _require_none({"--stages": stages}, "it makes the table of a suite: give --suite FILE")
    else:
        _require_none({"--strategy": strategy, "--allocate": allocate}, "they measure the recipe's environments")
        _require_none({"--env": env}, "it stands for a recipe's only environment: name yours in the suite instead")
    found = resolve(target, run_dir)
    recipe = load_checked(found.recipe, changes or ())
    state_dir = found.run_dir / RUN_STATE / "eval"
    with lock_run(found.run_dir, state_dir):
        sweep(state_dir)
        if suite is not None:
            _evaluate_suite(found, recipe, _with_episodes(load_suite(suite), episodes), stages, ports_from)
            return
        if strategy or allocate:
            recipes = _played_by(recipe, strategy or (), budget or (), allocate)
            print_comparison(_compared(found, recipes, env, episodes, ports_from), recipe)
            return
        if changes:
            found = replace(found, recipe=Path(recipe_file(recipe, state_dir)))
        _evaluate_once(found, recipe, run_plan(recipe, env, found.run_dir, state_dir, ports_from), episodes)


def _evaluate_once(found: Target, recipe: Recipe, plan: Plan, episodes: int | None) -> None:
    err.print(plain(f"measuring {found.checkpoint or 'the initial model'} · logs {plan.directory / 'logs'}"))
    for title, line in success_lines(_measured(found, recipe, episodes, plan)).items():
        out.print(plain(f"{title}: {line}" if title else line), soft_wrap=True)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _require_none(given: Mapping[str, object], reason: str) -> None:
    """Raise `UsageProblem` for options that do not belong together."""
    if strange := [name for name, value in given.items() if value]:
        raise UsageProblem(f"leave out {', '.join(strange)}: {reason}")


def _played_by(
    recipe: Recipe, strategies: Sequence[str], budget: Sequence[str], allocation: str | None
) -> dict[str, Recipe]:
    """Return a recipe for each row of the comparison; all are checked, so a misspelt option fails at once."""
    found = {one: checked(recipe_by(recipe, one, budget), (), where="--strategy") for one in strategies}
    if allocation is not None:
        found[f"allocated,{allocation}"] = checked(recipe_allocated(recipe, allocation), (), where="--allocate")
    return found


def _compared(
    found: Target, recipes: Mapping[str, Recipe], env: str | None, episodes: int | None, ports_from: int | None
) -> dict[str, Measurement]:
    state_dir = found.run_dir / RUN_STATE / "eval"
    measured = {}
    for title, own in recipes.items():
        plan = run_plan(own, env, found.run_dir, state_dir, ports_from)
        err.print(plain(f"measuring by {title} · logs {state_dir / 'logs'}"))
        measured[title] = _measured(replace(found, recipe=Path(recipe_file(own, state_dir))), own, episodes, plan)
    return measured


def _evaluate_suite(found: Target, recipe: Recipe, suite: Suite, every: bool, ports_from: int | None) -> None:
    """Measure what is not yet measured, and print the table; a failing environment does not stop the others.

    Raises `CliError` after the table if some could not be measured.
    """
    state_dir = found.run_dir / RUN_STATE / "eval"
    recipes = {one.title: recipe_for(recipe, one, where=suite.name) for one in suite.environments}
    plans = {
        title: run_plan(one, None, found.run_dir, state_dir, ports_from) for title, one in recipes.items()
    }  # all before the first starts: a benchmark's files that are not there stop the suite at once
    results = Results(found.run_dir / "suites" / f"{suite.name}.json")
    measured_stages = stages_of(recipe, found.run_dir, found.checkpoint, every=every)
    figures: dict[tuple[str, str], Figure] = {}
    failed: dict[str, str] = {}
    for stage in measured_stages:
        for env in suite.environments:
            own = recipes[env.title]
            key = key_of(own, stage.model)
            if (figure := results.get(key, env.metric)) is None and env.title not in failed:
                err.print(plain(f"measuring {stage.model} on {env.title} · logs {state_dir / 'logs'}"))
                target = Target(Path(recipe_file(own, state_dir)), found.run_dir, stage.model)
                try:
                    figure = figure_of(key, stage, env, _measured(target, own, None, plans[env.title]))
                except ServiceFailed as error:
                    failed[env.title] = str(error)
                    continue
                results.keep(figure)
            if figure is not None:
                figures[env.title, stage.title] = figure
    print_table(suite, measured_stages, figures, failed)
    if failed:
        raise CliError(f"{len(failed)} of {len(suite.environments)} environments could not be measured")


def _suite_of(env: str | None, suite: Path | None, episodes: int | None) -> Suite:
    """Return the environments on which to measure another server's model."""
    if suite is not None and env is None:
        return _with_episodes(load_suite(suite), episodes)
    if env is not None and suite is None:
        return _with_episodes(Suite(name="one", environments=(SuiteEnvironment(name=env),)), episodes)
    raise UsageProblem("--model-url: give --env NAME, one environment, or --suite FILE, several")


def _with_episodes(suite: Suite, episodes: int | None) -> Suite:
    if episodes is None:
        return suite
    changed = tuple(env.model_copy(update={"episodes": episodes}) for env in suite.environments)
    return suite.model_copy(update={"environments": changed})


def _measured(found: Target, recipe: Recipe, episodes: int | None, plan: Plan) -> Measurement:
    """Start the services, measure, stop them."""
    result_file = plan.directory / "result.json"
    result_file.unlink(missing_ok=True)
    work = measurement(found, recipe, episodes, result_file)
    work_with_services(plan, work, RunDisplay(err, lambda: _newest(found.run_dir)))
    return Measurement.model_validate_json(result_file.read_bytes())


def measurement(found: Target, recipe: Recipe, episodes: int | None, result_file: Path) -> Work:
    """Return the trainer's command that measures, on `episodes` tasks or else as in the recipe."""
    initial = initial_model(recipe, found.run_dir)
    checkpoint = found.checkpoint or Path(initial)
    command = (
        "eval",
        str(found.recipe),
        "--run-dir",
        str(found.run_dir),
        "--checkpoint",
        str(checkpoint),
        "--out",
        str(result_file),
        *(() if episodes is None else ("--num-tasks", str(episodes))),
    )
    # For an adapter, engines load the model that the run began with; the adapter is put next to it.
    is_engines = found.checkpoint is not None and recipe.model.lora is None
    has_tokenizer = (checkpoint / "tokenizer.json").is_file()
    return Work(
        recipe=recipe,
        recipe_file=str(found.recipe),
        run_dir=found.run_dir,
        command=command,
        build=found.checkpoint is None,
        model=str(checkpoint.resolve()) if is_engines and has_tokenizer else None,
    )


def resolve(target: Path, run_dir: Path | None) -> Target:
    """Find the run that a recipe, directory or checkpoint belongs to. Raises `UsageProblem`."""
    if not target.exists():
        raise UsageProblem(f"there is no recipe and no checkpoint at {target}")
    if target.is_file():
        home = run_dir or Path("runs") / load_with_overrides(target, ()).name
        return Target(recipe=target, run_dir=home, checkpoint=last_model(home))
    home = run_dir or _home_of(target)
    recipe = home / "recipe.toml"
    if not recipe.is_file():
        raise UsageProblem(f"{home} has no recipe.toml; give the recipe, or the run with --run-dir")
    if home.resolve() == target.resolve():
        return Target(recipe=recipe, run_dir=home, checkpoint=last_model(home))
    if not any((path / name).is_file() for path in (target, target / "model") for name in _MODELS):
        raise UsageProblem(f"{target} is neither a run, nor a checkpoint, nor a model directory")
    return Target(recipe=recipe, run_dir=home, checkpoint=target)


def last_model(run_dir: Path) -> Path | None:
    """Return the model of a finished run, else the last checkpoint of an unfinished one."""
    if (run_dir / "model" / "config.json").is_file():
        return run_dir / "model"
    pointer = run_dir / "checkpoints" / "latest"
    if not pointer.is_file():
        return None
    checkpoint = pointer.parent / Path(pointer.read_text(encoding="utf-8").strip()).name
    if not checkpoint.is_dir():
        raise CliError(f"{pointer} names {checkpoint.name}, which is not there")
    return checkpoint


def _home_of(target: Path) -> Path:
    for directory in (target, *target.resolve().parents):
        if (directory / "run.json").is_file():
            return directory
    raise UsageProblem(f"{target} is not inside a run directory; name the run with --run-dir")


def _newest(run_dir: Path) -> RunProgress | None:
    """Read the latest progress: the trainer measures in a scratch directory of its own."""
    found = [one for path in run_dir.glob(".eval-*") if (one := read_progress(path)) is not None]
    return max(found, key=lambda progress: progress.updated_at, default=None)
