"""`gymfleet collect`: let an agent behind a chat endpoint play, and keep its episodes."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.session import Split
from gymfleet_contracts.trajectory import EXPERT

from gymfleet_cli.collecting.collection import Collection
from gymfleet_cli.collecting.model import AgentSettings, agent_endpoint
from gymfleet_cli.collecting.plan import Form, Manner, choice_of
from gymfleet_cli.collecting.playing import world_of
from gymfleet_cli.collecting.spending import Budget
from gymfleet_cli.commands.data import DataOption, data_of
from gymfleet_cli.commands.envs import Url, find_spec
from gymfleet_cli.commands.fleet import StateDir
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.gateway import CALL_TIMEOUT_S, session_address


def collect(
    envs: Annotated[list[str], typer.Argument(metavar="ENV...", help="Environments: names, classes or .py files.")],
    file: Annotated[Path, typer.Argument(metavar="OUT", help="The .jsonl file, which may have episodes already.")],
    model_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint, such as https://host/v1.")],
    model: Annotated[str, typer.Option(help="The model's name there.")],
    key_file: Annotated[Path | None, typer.Option(help="File with the endpoint's API key.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes in all, of the first tasks.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Instead: which tasks of each environment, as 0-99,120.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=1024, help="Episodes of each task.")] = 1,
    split: Annotated[str, typer.Option(help="train; validation or test with --held-out.")] = "train",
    held_out: Annotated[bool, typer.Option("--held-out", help="Collect from a split that is for measuring.")] = False,
    level: Annotated[str | None, typer.Option(help="Difficulty. Default: the environment's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For what is random within an episode.")] = 0,
    reply_format: Annotated[
        str | None, typer.Option("--format", help="Reply format. Default: each environment's own.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Default: the endpoint's own.")] = None,
    max_reply_tokens: Annotated[int, typer.Option(min=1, help="Of one reply, reasoning included.")] = 1024,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Of an episode. Default: the environment's.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="For one reply.")] = 120.0,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Episodes that are played at once.")] = 8,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Stop when prompts and replies had so many.")] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Stop when they cost so much; needs prices.")] = None,
    price_in: Annotated[float, typer.Option(min=0, help="Of a million prompt tokens.")] = 0.0,
    price_out: Annotated[float, typer.Option(min=0, help="Of a million reply tokens.")] = 0.0,
    form: Annotated[str, typer.Option(help="episodes, or conversations to learn from.")] = "episodes",
    url: Url = None,
    data: DataOption = None,
    state_dir: StateDir = Path(".gymfleet"),
) -> None:
    """Let a model play episodes through a gateway and keep them. Episodes already in OUT are not played again."""
    manner = Manner(
        model=model, format=reply_format or "", split=_split(split, held_out=held_out), level=level, seed=seed,
        temperature=temperature, max_reply_tokens=max_reply_tokens, max_turns=max_turns, form=_form(form),
    )  # fmt: skip
    if model == EXPERT:
        raise UsageProblem(f"--model {EXPERT}: records of this name are an environment's own expert's")
    if max_cost is not None and not (price_in or price_out):
        raise UsageProblem("--max-cost needs --price-in and --price-out, of a million tokens")
    endpoint = agent_endpoint(model_url, model, key_file, temperature, timeout_s, concurrency)
    agent = AgentSettings(endpoint, max_reply_tokens)
    budget = Budget(max_tokens, max_cost, price_in, price_out)
    with session_address(url, state_dir, tuple(envs), data_of(data)) as (address, key):
        with SyncGatewayClient(address, api_key=key, timeout_s=CALL_TIMEOUT_S) as client:
            specs = [find_spec(client, env) for env in envs]
        section = None if reply_format is None else FormatSection(use=reply_format)
        worlds = {spec.name: world_of(spec, section) for spec in specs}
        choice = choice_of(episodes, tasks, samples, specs, manner)
        collection = Collection(manner, choice, worlds, agent, budget)
        collection.run(file, address, key)


def _split(given: str, *, held_out: bool) -> Split:
    """Return the split. Raises `UsageProblem` for a split that is for measuring, unless `held_out` is set."""
    if given not in get_args(Split):
        raise UsageProblem(f"--split {given}: give {', '.join(get_args(Split))}")
    if given != "train" and not held_out:
        raise UsageProblem(
            f"--split {given}: what is measured is not learned from; add --held-out if nothing will be learned from it"
        )
    return cast("Split", given)


def _form(given: str) -> Form:
    if given not in get_args(Form):
        raise UsageProblem(f"--form {given}: give {' or '.join(get_args(Form))}")
    return cast("Form", given)
