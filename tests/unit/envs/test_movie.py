"""AgentGym's movie."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.environment import Outcome
from gymfleet_envs.movie.catalogue import Catalogue, Film, Person, Service
from gymfleet_envs.movie.environment import ENVIRONMENT, Movie
from gymfleet_envs.movie.published import published_tasks

ADA = Person(10, "Ada Abel", "1950-02-03", "Cork, Ireland", "Ada.", "ada7")
BRUNO = Person(20, "Bruno Haas", "1960-01-01", "Essen, Germany", "Bruno grew up.", "bruno")
OTHERS = tuple(Person(number, f"Extra {number}", "1970-01-01", "Faro", "", "x") for number in range(100, 115))


def film(number: int, title: str, **changes: Any) -> Film:
    """A film with eleven players and twelve people behind the camera."""
    parts: dict[str, Any] = {
        "overview": "Somebody finds out.", "budget": 5, "revenue": 7, "vote_average": 6.5, "release_date": "2001-02-03",
        "genres": ((18, "Drama"),), "companies": ((174, "Anchor Pictures", "US"),), "countries": (("FR", "France"),),
        "keywords": ("heist", "train"), "titles": (("PL", "T (PL)"),), "runtime": 90,
        "translations": (("DE", "de", "German", "Nichts."),),
        "cast": ((10, "Eve"), *((100 + i, f"Man {i}") for i in range(10))),
        "crew": (*((100 + i, "Editor") for i in range(11)), (20, "Director"), (10, "Writer"), (10, "Editor")),
    }  # fmt: skip
    return Film(id=number, title=title, **(parts | changes))


CATALOGUE = Catalogue((film(1, "The Paper Bridge"), film(2, "The Paper Harbour", cast=((20, "Adam"),))),
                      (ADA, BRUNO, *OTHERS))  # fmt: skip
QUESTION: Question[Service] = Question("Who?", CATALOGUE, ('["Eve", "Adam"]',), ())


def opened(task: Question[Service] = QUESTION) -> Movie:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def call(environment: Movie, tool: str, **arguments: Any) -> Outcome:
    return environment.step(f"{tool} with Action Input: {json.dumps(arguments)}")


def result(tool: str, **arguments: Any) -> Any:
    text = call(opened(), tool, **arguments).observation.removeprefix("Observation: ").rpartition("\n")[0]
    return ast.literal_eval(text) if text[:2] in ("[{", "[]", "{'") else text


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("get_search_movie", {"movie_name": "the paper harbour"},
         [{"id": 2, "overview": "Somebody finds out.", "title": "The Paper Harbour"}]),
        ("get_search_movie", {"movie_name": "Paper"},
         [{"id": 1, "overview": "Somebody finds out.", "title": "The Paper Bridge"}]),
        ("get_search_movie", {"movie_name": "Sully"}, "ERROR | IndexError(list index out of range)"),
        ("get_search_movie", {}, "ERROR | KeyError('movie_name')"),
        ("get_search_person", {"person_name": "Ada"}, [{"id": 10, "name": "Ada Abel"}]),
        ("get_search_person", {"person_name": "Nobody"}, []),
        ("get_movie_details", {"movie_id": "1"},
         {"title": "The Paper Bridge", "budget": 5, "genres": [{"id": 18, "name": "Drama"}], "revenue": 7,
          "vote_average": 6.5, "release_date": "2001-02-03"}),
        ("get_movie_production_companies", {"movie_id": 1},
         {"production_companies": [{"id": 174, "logo_path": None, "name": "Anchor Pictures", "origin_country": "US"}]}),
        ("get_movie_production_countries", {"movie_id": 1},
         {"production_countries": [{"iso_3166_1": "FR", "name": "France"}]}),
        ("get_movie_keywords", {"movie_id": 1}, {"keywords": ["heist", "train"]}),
        ("get_movie_alternative_titles", {"movie_id": 1},
         {"id": 1, "titles": [{"iso_3166_1": "PL", "title": "T (PL)", "type": ""}]}),
        ("get_person_details", {"person_id": "10"},
         {"name": "Ada Abel", "biography": "Ada.", "birthday": "1950-02-03", "place_of_birth": "Cork, Ireland"}),
        ("get_person_cast", {"person_id": 20},
         {"cast": [{"id": 2, "title": "The Paper Harbour", "character": "Adam"}]}),
        ("get_person_external_ids", {"person_id": 10},
         {"imdb_id": "nm0000170", "facebook_id": "Ada7", "instagram_id": "ada7", "twitter_id": None}),
    ],
)  # fmt: skip
def test_what_tools_show(tool: str, arguments: dict[str, Any], shown: Any) -> None:
    assert result(tool, **arguments) == shown


@pytest.mark.parametrize(("tool", "name"), [("get_movie_cast", "movie_id"), ("get_person_details", "person_id")])
def test_what_is_not_there_is_refused_as_tmdb_does(tool: str, name: str) -> None:
    assert "The resource you requested could not be found." in str(result(tool, **{name: "3"}))


def test_ten_players_are_listed_and_of_the_crew_the_main_jobs_first() -> None:
    cast = result("get_movie_cast", movie_id="1")["cast"]
    crew = result("get_movie_crew", movie_id="1")["crew"]

    assert [part["character"] for part in cast] == ["Eve", *(f"Man {i}" for i in range(9))]
    assert [(part["id"], part["job"]) for part in crew] == [
        (20, "Director"), (10, "Writer"), *((100 + i, "Editor") for i in range(8))
    ]  # fmt: skip


def test_translations_name_language_and_tagline() -> None:
    (found,) = result("get_movie_translation", movie_id="1")["translations"]

    assert (found["iso_3166_1"], found["iso_639_1"], found["data"]["tagline"]) == ("DE", "de", "Nichts.")


@pytest.mark.parametrize(
    ("answer", "score"),
    [(["Adam", "Eve"], 1), (["Eve", "Adam"], 1), (["Eve"], 0), ("Eve, Adam", 0), (["Eve", "Adam", "x"], 0)],
)
def test_lists_are_right_in_any_order_and_nothing_more(answer: Any, score: float) -> None:
    outcome = call(opened(), "finish", answer=answer)

    assert (outcome.terminated, outcome.reward, outcome.score) == (True, score, score)


def test_imported_responses_are_shown_and_a_search_without_result_fails_as_agentgyms(tmp_path: Path) -> None:
    task = {"id": 3, "goal": "Who?", "subgoals": ["x"], "additional_info": {"answer": "x", "tool": "movie"}}
    responses = (
        {"tool": "get_search_movie", "arguments": {"movie_name": "Sully"}, "result": [{"id": 5}]},
        {"tool": "get_search_movie", "arguments": {"movie_name": "Nix"}, "result": []},
    )
    (tmp_path / "movie.jsonl").write_text(json.dumps(task))
    (tmp_path / "responses").mkdir()
    (tmp_path / "responses" / "movie.jsonl").write_text("\n".join(map(json.dumps, responses)))
    environment = opened(published_tasks(tmp_path).by_id("movie_3").data)

    shown = [call(environment, "get_search_movie", movie_name=name).observation for name in ("Sully", "Nix", "Else")]

    assert [text.removeprefix("Observation: ").partition("\n")[0] for text in shown] == [
        "[{'id': 5}]", "ERROR | IndexError(list index out of range)", "No response to this call was imported."
    ]  # fmt: skip


def test_generated_films_of_a_director_are_enough_not_to_guess_the_best_of_them() -> None:
    tasks = load_entry("movie", {}).tasks
    counts = [
        sum(move.tool == "get_movie_details" for move in tasks.by_index("test", "hard", index).data.plan)
        for index in range(100)
    ]

    assert sum(3 <= count <= 6 for count in counts) >= 90


def test_generated_questions_about_a_director_count_every_film() -> None:
    tasks = load_entry("movie", {}).tasks
    for index in range(60):
        task = tasks.by_index("train", "hard", index).data
        arguments = {move.tool: json.loads(move.arguments) for move in task.plan}
        director = int(arguments["get_person_crew"]["person_id"])
        asked = {json.loads(m.arguments)["movie_id"] for m in task.plan if m.tool == "get_movie_details"}

        assert asked == {str(film.id) for film in task.world.films if (director, "Director") in film.crew}, index
