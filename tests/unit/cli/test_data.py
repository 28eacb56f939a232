"""`gymfleet data`: what a user brings is checked whole before it takes the place of anything."""

import json
from pathlib import Path

import pytest
from gymfleet_cli.benchmark_data import chosen, data_home, imported
from gymfleet_cli.main import run
from gymfleet_cli.options import options_of, served_options
from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.plan import Plan, choose_ports
from gymfleet_env_server.catalogue import EnvironmentUnavailable
from gymfleet_env_server.importing import import_benchmark

Capture = pytest.CaptureFixture[str]
WORDS = "apple\nbread\ncrane\ndrive\neagle\nflame\ngrape\nhouse\nindex\njelly\nknife\nlemon\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("GYMFLEET_DATA_DIR", str(home))
    return home


@pytest.fixture
def words(tmp_path: Path) -> Path:
    directory = tmp_path / "words"
    directory.mkdir()
    (directory / "wordle_official_200.txt").write_text(WORDS)
    return directory


def test_imported_data_is_counted_kept_and_listed(words: Path, home: Path, capsys: Capture) -> None:
    assert run(["data", "import", "wordle", str(words)]) == 0
    said = capsys.readouterr().out
    assert run(["data", "list"]) == 0

    assert "wordle: lmrl-gym" in said
    assert "8000" in said
    assert (home / "wordle" / "wordle_official_200.txt").read_text() == WORDS
    assert [path.name for path in home.iterdir()] == ["wordle"], "nothing else is left behind"
    assert str(home / "wordle") in capsys.readouterr().out.replace("\n", "")
    assert imported("wordle") == home / "wordle"


def test_what_an_environment_says_while_it_reads_is_shown_and_is_not_the_result(
    words: Path, tmp_path: Path, home: Path, capsys: Capture
) -> None:
    run(["new", "environment", "noisy", "--in", str(tmp_path)])
    file = tmp_path / "noisy.py"
    file.write_text(file.read_text().replace("        del data\n", "        print('7 of 9 files were left out')\n"))

    assert run(["data", "import", str(file), str(words)]) == 0
    said = capsys.readouterr()

    assert "7 of 9 files were left out" in said.err
    assert "--data noisy" in " ".join(said.out.split())
    assert imported("noisy") == home / "noisy"


def test_damaged_data_is_refused_by_its_own_place_and_what_was_there_stays(words: Path, home: Path) -> None:
    import_benchmark("wordle", words, home)
    (words / "wordle_official_200.txt").write_text(WORDS + "Not a word\n")

    with pytest.raises(EnvironmentUnavailable) as refused:
        import_benchmark("wordle", words, home)

    assert f"{words / 'wordle_official_200.txt'}: line 13" in str(refused.value)
    assert (home / "wordle" / "wordle_official_200.txt").read_text() == WORDS
    assert [path.name for path in home.iterdir()] == ["wordle"]


def test_newer_data_takes_the_place_of_older(words: Path, home: Path) -> None:
    import_benchmark("wordle", words, home)
    (words / "wordle_official_200.txt").rename(words / "tweet_words.txt")

    import_benchmark("wordle", words, home)

    assert [path.name for path in (home / "wordle").iterdir()] == ["tweet_words.txt"]


def test_import_explains_what_is_wrong(words: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["data", "import", "wordle", str(tmp_path / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert run(["data", "import", "nothing", str(words)]) == 1
    assert "there is no environment 'nothing'" in capsys.readouterr().err
    assert run(["data", "import", "../wordle", str(words)]) == 1
    assert "there is no file ../wordle" in capsys.readouterr().err


def test_benchmarks_are_chosen_by_name_or_place(words: Path, home: Path) -> None:
    import_benchmark("wordle", words, home)

    assert chosen(["wordle", f"maze={words}"]) == {"wordle": home / "wordle", "maze": words}
    with pytest.raises(FileNotFoundError, match="gymfleet data import maze"):
        chosen(["maze"])
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        chosen(["maze=/no/such/place"])


def test_each_env_server_gets_its_own_data_alone(words: Path, tmp_path: Path) -> None:
    envs = ("wordle", "maze")
    plan = Plan(
        directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32, data={"wordle": words}
    )
    wordle, maze = plan.env_servers()

    assert wordle.env["GYMFLEET_ENV_DATA"] == f'{{"wordle": "{words}"}}'
    assert "GYMFLEET_ENV_DATA" not in maze.env


def test_data_of_the_users_own_variable_goes_to_the_server_that_it_is_for(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = ("wordle", "maze")
    monkeypatch.setenv("GYMFLEET_ENV_DATA", f'{{"wordle": "/elsewhere", "maze": "{tmp_path}"}}')
    plan = Plan(
        directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32, data={"wordle": words}
    )

    wordle, maze = plan.env_servers()

    assert wordle.env["GYMFLEET_ENV_DATA"] == f'{{"wordle": "{words}"}}', "what is said by hand goes first"
    assert maze.env["GYMFLEET_ENV_DATA"] == f'{{"maze": "{tmp_path}"}}'
    monkeypatch.setenv("GYMFLEET_ENV_DATA", '{"webshop": "/data"}')
    with pytest.raises(FleetError, match="there is data for webshop, but served are wordle, maze"):
        plan.env_servers()
    monkeypatch.setenv("GYMFLEET_ENV_DATA", "/data")
    with pytest.raises(FleetError, match="GYMFLEET_ENV_DATA is no JSON"):
        plan.env_servers()


def test_who_answers_for_models_is_told_to_the_server_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*envs: str) -> Plan:
        return Plan(directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32)

    assert "GYMFLEET_ENV_MODELS" not in plan("maze").env_servers()[0].env
    given = '{"shop": {"user": {"url": "http://127.0.0.1:9/v1", "model": "m"}}}'
    monkeypatch.setenv("GYMFLEET_ENV_MODELS", given)

    shop, maze = plan("shop", "maze").env_servers()

    assert shop.env["GYMFLEET_ENV_MODELS"] == given
    assert maze.env["GYMFLEET_ENV_MODELS"] == "{}", "or it would inherit what its server refuses"
    assert plan("./my/shop.py").env_servers()[0].env["GYMFLEET_ENV_MODELS"] == given
    with pytest.raises(FleetError, match="GYMFLEET_ENV_MODELS names shop, but served are wordle, maze"):
        plan("wordle", "maze").env_servers()
    monkeypatch.setenv("GYMFLEET_ENV_MODELS", "[1]")
    with pytest.raises(FleetError, match=r'GYMFLEET_ENV_MODELS is no JSON of the form \{"shop"'):
        plan("shop").env_servers()


def test_options_go_to_the_server_of_their_environment_alone(tmp_path: Path) -> None:
    envs = ("alfworld", "maze")
    options = {"alfworld": {"alfworld": {"show_actions": True}}, "maze": {}}
    plan = Plan(directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32, options=options)
    alfworld, maze = plan.env_servers()

    assert alfworld.env["GYMFLEET_ENV_OPTIONS"] == '{"alfworld": {"show_actions": true}}'
    assert "GYMFLEET_ENV_OPTIONS" not in maze.env


def test_the_only_environment_of_a_fleet_gets_what_is_meant_for_it_by_its_own_name(tmp_path: Path) -> None:
    envs = ("./my/hunt.py",)
    plan = Plan(
        directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32,
        data={"hunt": tmp_path}, options={"./my/hunt.py": {"hunt": {"hard": True}}},
    )  # fmt: skip

    (server,) = plan.env_servers()

    assert server.env["GYMFLEET_ENV_DATA"] == f'{{"hunt": "{tmp_path}"}}'
    assert server.env["GYMFLEET_ENV_OPTIONS"] == '{"hunt": {"hard": true}}'


def test_the_users_own_variable_is_split_among_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_ENV_OPTIONS", '{"db": {"observation_chars": 80}, "sql": {"evidence": true}}')
    envs = ("db", "sql", "maze")
    options = served_options(envs, options_of(["db.statement_time_s=2.5", "db.observation_chars=90"]))
    plan = Plan(directory=tmp_path, ports=choose_ports(envs, None), envs=envs, gateway_secret="s" * 32, options=options)

    db, sql, maze = (json.loads(server.env["GYMFLEET_ENV_OPTIONS"]) for server in plan.env_servers())

    assert db == {"db": {"observation_chars": 90, "statement_time_s": 2.5}}
    assert sql == {"sql": {"evidence": True}}
    assert maze == {}


def test_options_reach_an_environment_that_is_given_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "other_name.py"
    file.write_text(
        "from gymfleet_envs.db.environment import DBBench\n\n\n"
        "class Mine(DBBench):\n    name = 'mine'\n\n\nENVIRONMENT = Mine\n"
    )

    options = served_options(("maze", str(file)), options_of(["mine.observation_chars=90"]))

    assert options == {str(file): {"mine": {"observation_chars": 90}}}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["db.backnd=mariadb"], "backnd: Extra inputs are not permitted (it knows: backend, host, port,"),
        (["db.backend=oracle"], "backend: Input should be 'sqlite' or 'mariadb'"),
        (["dbb.backend=sqlite"], "options are given for dbb, but served are maze, db"),
        (["backend=sqlite"], "--option backend=sqlite: give NAME.KEY=VALUE, such as db.backend=mariadb"),
        (["db.backend"], "--option db.backend: give KEY=VALUE"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(
    given: list[str], fault: str, tmp_path: Path, capsys: Capture
) -> None:
    options = [part for one in given for part in ("--option", one)]

    assert run(["up", "--env", "maze", "--env", "db", *options, "--state-dir", str(tmp_path / "state")]) == 2

    assert fault in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "state").exists()


def test_import_honours_options(tmp_path: Path, home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dbbench"
    folder.mkdir()
    table = {"table_name": "t", "table_info": {"columns": [{"name": "a"}], "rows": [["x"]]}}
    gold = "UPDATE t SET a = HEX('" + "x" * 80 + "')"
    line = {"description": "Change it", "type": ["UPDATE"], "table": table, "label": [gold]}
    (folder / "dev.jsonl").write_text(json.dumps(line))

    assert run(["data", "import", "db", str(folder), "--option", "value_bytes=100"]) == 1
    assert "the gold statement fails" in capsys.readouterr().err
    monkeypatch.setenv("GYMFLEET_ENV_OPTIONS", '{"db": {"value_bytes": 100}, "os": {}}')
    assert run(["data", "import", "db", str(folder)]) == 1
    assert run(["data", "import", "db", str(folder), "--option", "value_bytes=1000"]) == 0
    assert run(["data", "import", "db", str(folder), "--option", "value_byte=1000"]) == 1
    assert "value_byte: Extra inputs are not permitted" in capsys.readouterr().err


def test_a_fleet_refuses_data_of_what_it_does_not_serve(words: Path, capsys: Capture) -> None:
    assert run(["up", "--env", "maze", "--env", "textcraft", "--data", f"wordle={words}"]) == 2

    assert "--data wordle: this environment is not served" in " ".join(capsys.readouterr().err.split())


def test_the_home_is_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GYMFLEET_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/users/data")

    assert data_home() == Path("/users/data/gymfleet/data")
