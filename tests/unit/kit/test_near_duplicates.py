"""Near duplicates: a planted set is found, by an estimate that is as good as it says, in memory that is bounded."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from gymfleet_contracts.conversation import Conversation, Message, Record
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.data.minhash import (
    BYTES_PER_TEXT,
    NUM_BANDS,
    Signatures,
    SimilarTexts,
    Unit,
    expected,
    jaccard,
    rows_for,
    shingles,
)

WORDS = [f"word{number}" for number in range(5000)]


def said(text: str, asked: str = "") -> Conversation:
    messages = (Message(role="user", content=asked), Message(role="assistant", content=text))
    return Conversation(messages=messages, source=text[:40])


def changed(words: Sequence[str], number: int, draw: random.Random) -> list[str]:
    found = list(words)
    for place in draw.sample(range(len(words)), number):
        found[place] = draw.choice(WORDS)
    return found


def similarity(one: Sequence[str], other: Sequence[str], unit: Unit = "words") -> float:
    return jaccard(shingles(" ".join(one), unit, 3), shingles(" ".join(other), unit, 3))


def planted(number: int) -> tuple[list[Record], set[int]]:
    """Texts of 60 to 200 words, and the places of those that are a near copy of one before them.

    Per five: two bases, a copy of one at a similarity of 0.85 to 1, and two that are similar to one at 0.4 to 0.75.
    """
    draw = random.Random(3)
    texts: list[list[str]] = []
    copies: set[int] = set()
    while len(texts) < number:
        base = draw.choices(WORDS, k=draw.randint(60, 200))
        texts += [base, draw.choices(WORDS, k=100)]
        for low, high in ((0.85, 1.0), (0.4, 0.75), (0.4, 0.75)):
            other = changed(base, 1, draw)
            while not low <= similarity(base, other) < high:
                other = changed(base, draw.randint(1, len(base) // 4), draw)
            if low == 0.85:
                copies.add(len(texts))
            texts.append(other)
    return [said(" ".join(text)) for text in texts], copies


def test_a_planted_set_is_found_at_99_percent_recall_and_precision() -> None:
    records, copies = planted(1500)

    kept = {id(record) for record in filter_of("near_duplicates", table="filters.0").kept(records)}

    found = {place for place, record in enumerate(records) if id(record) not in kept}
    assert len(copies) == 300
    assert len(found & copies) >= 0.99 * len(copies), "recall"
    assert len(found & copies) >= 0.99 * len(found), "precision"


@pytest.mark.parametrize(
    ("unit", "size", "one", "other", "similar"),
    [
        ("words", 2, "a b c d", "a b c e", 2 / 4),  # ab bc cd, ab bc ce
        ("words", 1, "a b c", "c b a", 1.0),
        ("words", 3, "A  b\nc", "a b c", 1.0),
        ("words", 3, "a b", "a b", 1.0),
        ("words", 3, "a b", "a c", 0.0),
        ("words", 3, "", " ", 1.0),
        ("chars", 2, "abcd", "abce", 2 / 4),
        ("chars", 3, "你好吗", "你好嘛", 0.0),
        ("words", 2, "a b a b a b", "a b a", 1.0),
    ],
)
def test_shingles_by_hand(unit: Unit, size: int, one: str, other: str, similar: float) -> None:
    assert jaccard(shingles(one, unit, size), shingles(other, unit, size)) == pytest.approx(similar)


def test_the_estimate_is_right_on_average_and_its_deviation_is_what_the_page_says() -> None:
    draw, signatures = random.Random(1), Signatures(0)
    errors = []
    for _ in range(150):
        base = draw.choices(WORDS, k=120)
        other = changed(base, draw.randint(0, 12), draw)
        one, two = (signatures.of(shingles(" ".join(text), "words", 3)) for text in (base, other))
        estimate = ((one == two).mean() - 1 / 16) / (15 / 16)
        errors.append(float(estimate) - similarity(base, other))

    assert abs(np.mean(errors)) < 0.006
    assert np.std(errors) < 0.02


def test_bands_by_hand() -> None:
    assert expected(0.8) == pytest.approx(0.8125), "1/16 + 15/16 of 0.8"
    assert rows_for(0.8) == 9, "1 - (1 - 0.8125^9)^32 = 0.9956; with 10 rows it is 0.986"
    assert rows_for(0.5) == 2
    assert rows_for(1.0) == 16


def test_what_was_added_is_found_however_often_the_index_grew() -> None:
    draw, signatures = random.Random(2), Signatures(7)
    given = [signatures.of(shingles(" ".join(draw.choices(WORDS, k=30)), "words", 3)) for _ in range(300)]
    index = SimilarTexts(0.8, capacity=4)

    for place, signature in enumerate(given):
        assert not index.has_similar(signature), place
        index.add(signature)

    assert all(index.has_similar(signature) for signature in given)


def test_the_index_takes_the_bytes_that_it_names() -> None:
    index = SimilarTexts(0.8, capacity=64)

    arrays = [value for value in vars(index).values() if isinstance(value, np.ndarray)]

    assert sum(array.nbytes for array in arrays) == 64 * BYTES_PER_TEXT
    assert BYTES_PER_TEXT == 512
    assert index._heads.shape == (NUM_BANDS, 64)


def test_a_long_text_is_hashed_in_parts() -> None:
    text = shingles(" ".join(str(number) for number in range(40_000)), "words", 1)
    signatures = Signatures(0)

    whole = np.minimum.reduce([signatures._minima((text >> np.uint64(32)).astype(np.uint32)[at::3]) for at in range(3)])

    assert len(text) == 40_000
    assert (whole == signatures._minima((text >> np.uint64(32)).astype(np.uint32))).all()
    assert signatures.of(text).shape == (512,)


PAIR = ("one two three four five six seven eight nine ten", "one two three four five six seven eight nine eleven")
"""Of 8 shingles of three words each has 7 that the other one has: 7/9. Of their characters 5 in 52 differ."""


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"threshold": 0.9}, 2),
        ({"threshold": 0.6}, 1),
        ({"threshold": 0.9, "shingle": 1}, 2),
        ({"threshold": 0.7, "shingle": 8}, 2),
        ({"threshold": 0.7, "unit": "chars", "shingle": 1}, 1),
    ],
)
def test_each_option_changes_what_is_kept(options: dict[str, object], kept: int) -> None:
    records: list[Record] = [said(text) for text in PAIR]

    assert len(filter_of({"use": "near_duplicates", **options}, table="filters.0").kept(records)) == kept


def test_by_replies_the_instructions_do_not_count() -> None:
    rules = " ".join(WORDS[:400])
    records: list[Record] = [said("go to the red ball", rules), said("pick up the blue key", rules)]

    def kept(by: str) -> int:
        return len(filter_of({"use": "near_duplicates", "by": by}, table="filters.0").kept(records))

    assert (kept("dialogue"), kept("replies")) == (1, 2)


def test_the_seed_decides_what_the_hashes_are() -> None:
    text = shingles(PAIR[0], "words", 3)

    assert (Signatures(1).of(text) == Signatures(1).of(text)).all()
    assert not (Signatures(1).of(text) == Signatures(2).of(text)).all()
