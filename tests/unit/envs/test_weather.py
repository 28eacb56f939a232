"""AgentGym's weather."""

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import find_environment, load_entry
from gymfleet_envs.agentgym_tools.base import Faulty, Refused
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.agentgym_tools.responses import Response
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.weather.climate import Climate, Place
from gymfleet_envs.weather.environment import ENVIRONMENT, Weather
from gymfleet_envs.weather.recorded import Recorded
from gymfleet_envs.weather.service import Service
from gymfleet_envs.weather.tools import use

from tests.fixtures.paths import SHARED_DATA

PUBLISHED = SHARED_DATA / "tool_agentgym"
NORTH = Place("Belburg", 60.0, 10.0, "NO")
SOUTH = Place("Belburg", -60.0, 10.0, "CL")
CLIMATE = Climate(7, (NORTH, SOUTH, Place("Norton", 0.0, 0.0, "BR")))
TODAY = "2020-06-15"
QUESTION: Question[Service] = Question("How warm?", CLIMATE, ("6.4", "6.399"), (), TODAY, "Norton")
HERE = {"latitude": 60.0, "longitude": 10.0}


def opened(task: Question[Service] = QUESTION) -> Weather:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def call(environment: Weather, tool: str, **arguments: Any) -> Outcome:
    return environment.step(f"{tool} with Action Input: {json.dumps(arguments)}")


def asked(tool: str, **arguments: Any) -> Any:
    return use(CLIMATE, TODAY, tool, arguments)


@pytest.mark.parametrize(
    ("start", "end", "refusal"),
    [
        ("2020-06-15", "2020-06-15", "Error: start_date should be earlier than current_date"),
        ("2020-06-01", "2020-06-15", "Error: end_date should be earlier than current_date"),
        ("2020-05-14", "2020-06-14", "Error: Sorry, at present, we support a maximum time span of 30 days between "),
        ("2020-06-02", "2020-06-01", "End-date must be larger or equals than start-date"),
        ("1939-12-31", "1940-01-01", "There is no data before 1940-01-01"),
    ],
)
def test_history_ends_yesterday_and_is_asked_in_pieces(start: str, end: str, refusal: str) -> None:
    with pytest.raises(Refused) as told:
        asked("get_historical_temp", **HERE, start_date=start, end_date=end)

    assert refusal in str(told.value)


def test_thirty_days_apart_are_not_too_many() -> None:
    found = asked("get_historical_rain", **HERE, start_date="2020-05-15", end_date="2020-06-14")

    assert len(found["daily"]["time"]) == len(found["daily"]["rain_sum"]) == 31
    assert found["daily"]["time"][::30] == ["2020-05-15", "2020-06-14"]


@pytest.mark.parametrize("kind", ["temp", "rain", "snow"])
def test_forecasts_begin_tomorrow(kind: str) -> None:
    with pytest.raises(Refused, match="start_date should be later than current_date"):
        asked(f"get_{kind}_forecast", **HERE, start_date=TODAY, end_date="2020-06-20")

    assert asked(f"get_{kind}_forecast", **HERE, start_date="2020-06-16", end_date="2020-06-16")["daily"]["time"] == [
        "2020-06-16"
    ]


def test_a_day_has_one_weather_however_it_is_asked_for() -> None:
    history = use(CLIMATE, "2020-06-16", "get_historical_temp", HERE | {"start_date": TODAY, "end_date": TODAY})
    forecast = use(CLIMATE, "2020-06-14", "get_temp_forecast", HERE | {"start_date": TODAY, "end_date": TODAY})
    month = use(CLIMATE, "2020-07-01", "get_historical_temp", HERE | {"start_date": "2020-06-01", "end_date": TODAY})

    assert asked("get_current_temp", **HERE, current_date=TODAY) == history == forecast
    assert [values[-1] for values in month["daily"].values()] == [values[0] for values in history["daily"].values()]
    (low,), (mean,), (high,) = (history["daily"][f"temperature_2m_{what}"] for what in ("min", "mean", "max"))
    assert low < mean < high


def test_it_is_warm_in_summer_which_is_in_december_in_the_south() -> None:
    def mean(latitude: float, month: str) -> float:
        at = {"latitude": latitude, "longitude": 10.0, "start_date": f"2019-{month}-01", "end_date": f"2019-{month}-30"}
        return float(sum(asked("get_historical_temp", **at)["daily"]["temperature_2m_mean"]) / 30)

    assert mean(60.0, "07") > mean(60.0, "12") + 10
    assert mean(-60.0, "12") > mean(-60.0, "07") + 10


def test_it_snows_where_it_does_not_rain() -> None:
    days = {"start_date": "2019-01-01", "end_date": "2019-01-30"}
    rain, snow = (asked(f"get_historical_{kind}", **HERE, **days)["daily"] for kind in ("rain", "snow"))

    assert any(snow["snowfall_sum"])
    assert not any(r and s for r, s in zip(rain["rain_sum"], snow["snowfall_sum"], strict=True))


def test_places_are_found_by_name_the_first_of_namesakes_first() -> None:
    found = asked("get_latitude_longitude", name="belburg")["results"]

    assert [(place["latitude"], place["country_code"]) for place in found] == [(60.0, "NO"), (-60.0, "CL")]
    assert list(found[0]) == ["name", "latitude", "longitude", "country_code"]
    with pytest.raises(Faulty, match=r"^KeyError\('results'\)$"):
        asked("get_latitude_longitude", name="Atlantis")


@pytest.mark.parametrize(
    ("longitude", "kilometres"),
    [pytest.param(1.0, 111.319491, id="a degree of WGS-84's equator"), pytest.param(180.0, 20003.931, id="by a pole")],
)
def test_distances_are_those_of_the_ellipsoid(longitude: float, kilometres: float) -> None:
    found = asked("get_distance", latitude1=0, longitude1=0, latitude2=0, longitude2=longitude)

    assert found == pytest.approx(kilometres, abs=1e-3)


@pytest.mark.parametrize(
    ("index", "level"),
    [(0, "good"), (20, "good"), (20.5, "extremely poor"), (21, "extremely poor"), (22, "fair"), (40, "fair"),
     (41, "extremely poor"), (60, "moderate"), (80, "poor"), (100, "very poor"), (101, "extremely poor")],
)  # fmt: skip
def test_air_has_agentgyms_words_and_their_gaps(index: float, level: str) -> None:
    assert asked("get_air_quality_level", air_quality_index=index) == level


@pytest.mark.parametrize(
    ("tool", "arguments", "fault"),
    [
        ("get_elevation", {"latitude": "north", "longitude": 0}, "ERROR | ValueError(latitude is 'north'"),
        ("get_elevation", {"latitude": 0}, "ERROR | KeyError('longitude')"),
        ("get_elevation", {"latitude": "nan", "longitude": 0}, "Latitude must be in range of -90 to 90"),
        ("get_current_temp", HERE | {"current_date": "today"}, "ERROR | ValueError(time data 'today' does not match"),
        ("get_current_temp", HERE | {"current_date": 3}, "ERROR | TypeError("),
        ("get_distance", {"latitude1": 91, "longitude1": 0, "latitude2": 0, "longitude2": 0}, "[-90; 90] range"),
        ("get_air_quality_level", {"air_quality_index": "good"}, "'<=' not supported between instances of 'str'"),
        ("convert_zipcode_to_address", {}, "ERROR | Invalid action: convert_zipcode_to_address."),
    ],
)
def test_what_cannot_be_used_is_told(tool: str, arguments: dict[str, Any], fault: str) -> None:
    assert fault in call(opened(), tool, **arguments).observation


@pytest.mark.parametrize(
    ("answer", "score"), [(6.4, 1), (6.399, 1), ("6.4", 0), (6.41, 0), ([6.4], 0), ([6.4, 6.399], 0)]
)
def test_any_of_the_published_answers_is_right_and_nothing_near_it(answer: Any, score: float) -> None:
    environment = opened()

    looked = call(environment, "get_user_current_location")
    end = call(environment, "finish", answer=answer)

    assert looked.observation == "Observation: Norton\nGive me one action."
    assert (looked.score, end.terminated, end.reward, end.score) == (0, True, score, score)


def test_a_tools_own_result_is_no_answer() -> None:
    environment = opened(replace(QUESTION, answers=('"good"',)))

    assert call(environment, "get_air_quality_level", air_quality_index=3).observation.startswith("Observation: good\n")
    assert call(environment, "finish", answer="bad").score == 0


def test_recorded_responses_are_found_within_fifty_kilometres_whichever_tool_asked() -> None:
    day = {"start_date": "2020-06-16", "end_date": "2020-06-16"}
    world = Recorded(iter([
        Response("get_temp_forecast", {"latitude": 50, "longitude": 0, **day}, {"daily": "here"}),
        Response("get_temp_forecast", {"latitude": 51, "longitude": 0, **day}, {"daily": "there"}),
        Response("get_latitude_longitude", {"name": "Rome"}, {"results": []}),
    ]))  # fmt: skip

    def found(latitude: float) -> Any:
        at = {"latitude": latitude, "longitude": 0}
        return use(world, "2021-01-01", "get_historical_temp", at | day)["daily"]

    assert (found(50.1), found(49.6), found(50.6), found(51.44)) == ("here", "here", "there", "there")
    assert world.places("rome") == {"results": []}
    with pytest.raises(Refused, match="No response to this call was imported"):
        found(51.46)  # 51 km away
    with pytest.raises(Refused):
        use(world, TODAY, "get_rain_forecast", {"latitude": 50, "longitude": 0} | day)


def test_a_recorded_response_that_is_a_text_is_told() -> None:
    world = Recorded(iter([
        Response("get_elevation", {"latitude": 50, "longitude": 0}, "Error: no such place"),
        Response("get_latitude_longitude", {"name": "Rome"}, "Error: too many requests"),
    ]))  # fmt: skip

    with pytest.raises(Refused, match="no such place"):
        use(world, TODAY, "get_elevation", {"latitude": 50, "longitude": 0})
    with pytest.raises(Refused, match="too many requests"):
        use(world, TODAY, "get_latitude_longitude", {"name": "Rome"})


needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="AgentGym's tasks are not here")


@needs_published
@pytest.mark.parametrize(("name", "count", "tested"), [("weather", 343, 32), ("movie", 238, 23), ("academia", 20, 20)])
def test_gold_answers_of_all_published_questions_score_1_and_wrong_ones_0(
    tmp_path: Path, name: str, count: int, tested: int
) -> None:
    shutil.copy(PUBLISHED / f"{name}.jsonl", tmp_path)
    with pytest.raises(TaskDataError, match=rf"^{name}: .* has no responses/{name}\.jsonl: AgentGym's tasks ask live"):
        find_environment(name).task_source(tmp_path)
    (tmp_path / "responses").mkdir()
    (tmp_path / "responses" / f"{name}.jsonl").write_text("")

    entry = load_entry(name, {name: tmp_path})
    tasks = [entry.tasks.by_id(f"{name}_{number}") for number in range(count)]

    assert sum(task.split == "test" for task in tasks) == tested
    for line, task in zip((PUBLISHED / f"{name}.jsonl").read_text().splitlines(), tasks, strict=True):
        gold = json.loads(line)["additional_info"]["answer"]
        for answer, score in ((gold, 1.0), ([gold, gold], 0.0), (f"It is {gold}.", 0.0)):
            environment = entry.make()
            environment.reset(task.data, 0)
            outcome = environment.step(f"finish with Action Input: {json.dumps({'answer': answer})}")
            assert outcome.score == score, (task.task_id, answer)


def test_generated_answers_are_numbers_that_the_plan_has_seen_or_worked_out() -> None:
    tasks = load_entry("weather", {}).tasks
    for level in tasks.levels:
        for index in range(40):
            task = tasks.by_index("test", level, index).data
            (answer,) = map(json.loads, task.answers)
            assert isinstance(answer, int | float)
            assert str(answer) not in task.goal.split(), task.goal
            finish = json.loads(task.plan[-1].arguments)
            assert (task.plan[-1].tool, finish) == ("finish", {"answer": answer})


def test_dates_are_the_users_own() -> None:
    environment = opened()

    shown = call(environment, "get_current_temp", **HERE, current_date=TODAY).observation

    found = ast.literal_eval(shown.removeprefix("Observation: ").rpartition("\n")[0])
    assert found["daily_units"] == {"time": "iso8601", "temperature_2m_max": "°C", "temperature_2m_min": "°C",
                                    "temperature_2m_mean": "°C"}  # fmt: skip
    assert call(environment, "get_user_current_date").observation == f"Observation: {TODAY}\nGive me one action."
