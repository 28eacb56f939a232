"""Session ids: nobody without the secret can make, change or borrow one."""

import pytest
from gymfleet_contracts.session import MAX_SESSION_ID_CHARS
from gymfleet_env_gateway.session_ids import SessionIds, SessionRef, replica_key
from gymfleet_kit.recent import Recent
from gymfleet_kit.session_problems import UnknownSession

IDS = SessionIds("a secret of some length")


@pytest.mark.parametrize("upstream", ["247951271037-0-0-39748a51", "with.dots.in.it", "x"])
def test_an_id_says_where_its_session_lives(upstream: str) -> None:
    session_id = IDS.issue("maze", "wSZzvzXu", upstream, "local")

    assert IDS.read(session_id, "local") == SessionRef(env="maze", replica="wSZzvzXu", upstream=upstream)


def test_another_gateway_with_the_same_secret_reads_it() -> None:
    session_id = IDS.issue("maze", "wSZzvzXu", "abc", "local")

    assert SessionIds("a secret of some length").read(session_id, "local").upstream == "abc"


def test_an_id_of_a_foreign_secret_is_unknown() -> None:
    session_id = SessionIds("another secret of some length").issue("maze", "wSZzvzXu", "abc", "local")

    with pytest.raises(UnknownSession):
        IDS.read(session_id, "local")


def test_an_id_of_a_previous_secret_is_read_and_new_ones_are_signed_with_the_new() -> None:
    old, new = SessionIds("the secret of last year"), SessionIds("the secret of this year")
    both = SessionIds("the secret of this year", "one that is older still", "the secret of last year")

    assert both.read(old.issue("maze", "wSZzvzXu", "abc", "local"), "local").upstream == "abc"
    assert both.issue("maze", "wSZzvzXu", "abc", "local") == new.issue("maze", "wSZzvzXu", "abc", "local")
    with pytest.raises(UnknownSession):
        both.read(old.issue("maze", "wSZzvzXu", "abc", "other"), "local")
    with pytest.raises(UnknownSession):
        both.read(IDS.issue("maze", "wSZzvzXu", "abc", "local"), "local")


def test_no_character_of_an_id_can_be_changed() -> None:
    session_id = IDS.issue("maze", "wSZzvzXu", "abc-123", "local")

    for place, character in enumerate(session_id):
        forged = session_id[:place] + ("A" if character != "A" else "B") + session_id[place + 1 :]
        with pytest.raises(UnknownSession):
            IDS.read(forged, "local")


def test_ids_of_abandoned_sessions_are_remembered_up_to_a_bound() -> None:
    ids = SessionIds("a secret of some length")
    ids._known = Recent(max_size=2)
    issued = [ids.issue("maze", "wSZzvzXu", upstream, "local") for upstream in "abcd"]

    refs = [ids.read(session_id, "local") for session_id in issued]
    again = [ids.read(session_id, "local") for session_id in reversed(issued)]

    assert [ref.upstream for ref in refs] == list("abcd")
    assert again == refs[::-1]
    assert [new is old for new, old in zip(again, refs[::-1], strict=True)] == [True, True, False, False], (
        "the latest are remembered, not all and not none"
    )


@pytest.mark.parametrize(
    "forged", ["", ".", "...", "abc", "maze.wSZzvzXu.abc", "maze.wSZzvzXu.abc.", "é" * 40, "x" * 100_000, "a\x00.b"]
)
def test_what_never_was_an_id_is_unknown(forged: str) -> None:
    with pytest.raises(UnknownSession):
        IDS.read(forged, "local")


def test_an_id_that_would_be_too_long_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="no room to sign"):
        IDS.issue("maze", "wSZzvzXu", "x" * MAX_SESSION_ID_CHARS, "local")


def test_a_replica_has_the_same_key_in_every_gateway() -> None:
    assert replica_key("http://10.0.0.1:8110/") == replica_key("http://10.0.0.1:8110")
    assert replica_key("http://10.0.0.1:8110") != replica_key("http://10.0.0.2:8110")


def test_a_seats_id_leads_to_the_session_and_does_not_give_it_away() -> None:
    session_id = IDS.issue("nim", "wSZzvzXu", "247951271037-0-0-39748a51", "local")
    seat = IDS.seat(session_id, "first", "local")
    ref = IDS.read(seat, "local")

    assert (ref.seat, ref.session_id) == ("first", session_id)
    assert IDS.read(session_id, "local").seat == ""
    assert session_id.rpartition(".")[2] not in seat, "the signature is what gives access"
    for other in (seat.replace("~first", "~second"), seat.replace("~first", "")):
        with pytest.raises(UnknownSession):
            IDS.read(other, "local")
    with pytest.raises(UnknownSession):
        IDS.read(seat, "somebody-else")
    with pytest.raises(UnknownSession):
        IDS.seat(session_id, "first", "somebody-else")


def test_a_seats_id_leads_to_the_session_as_it_was_signed() -> None:
    before = SessionIds("the secret of last year")
    session_id = before.issue("nim", "wSZzvzXu", "abc", "local")
    both = SessionIds("the secret of this year", "the secret of last year")

    for seat in (before.seat(session_id, "first", "local"), both.seat(session_id, "first", "local")):
        assert both.read(seat, "local").session_id == session_id


def test_an_env_servers_id_that_looks_like_a_seat_is_refused() -> None:
    with pytest.raises(ValueError, match="stands before a seat"):
        IDS.issue("nim", "wSZzvzXu", "abc~first", "local")
