import math
from pathlib import Path

import numpy as np
import pytest
from gymfleet_envs.lucene import index as index_module
from gymfleet_envs.lucene.analysis import terms
from gymfleet_envs.lucene.index import Index, IndexBuilder
from gymfleet_envs.lucene.porter import stem

HOSTILE = [
    "", " ", '"', "(", "AND OR NOT", "title:mug", "mug^1000", "mug~", "*", "?", "[a TO b]", "+mug -lamp", "\\",
    "\x00\x1b[31m", "日本語 🙂 العربية", "\ud800", "<r>", "<a> red", "' OR 1=1; --", "mug " * 100_000,
]  # fmt: skip


def index_of(*documents: str, directory: Path | None = None) -> Index:
    builder = IndexBuilder(directory)
    for document in documents:
        builder.add(document)
    return builder.finish()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # Porter's own examples, of each step.
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("cats", "cat"), ("feed", "feed"),
        ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"), ("motoring", "motor"),
        ("sing", "sing"), ("conflated", "conflat"),
        ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop"), ("falling", "fall"), ("hissing", "hiss"),
        ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"),
        ("rational", "ration"), ("digitizer", "digit"), ("operator", "oper"), ("feudalism", "feudal"),
        ("hopefulness", "hope"), ("formaliti", "formal"), ("sensibiliti", "sensibl"), ("triplicate", "triplic"),
        ("formative", "form"), ("electrical", "electr"), ("goodness", "good"), ("revival", "reviv"),
        ("replacement", "replac"), ("adoption", "adopt"), ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"),
        ("controll", "control"), ("roll", "roll"),
        # Where Lucene's stemmer and Snowball's `porter` differ.
        ("is", "is"), ("possibly", "possibl"), ("archaeology", "archaeolog"), ("trekking", "trek"),
    ],
)  # fmt: skip
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The women's T-Shirts", ["women", "t", "shirt"]),
        ("x-large, 50.00 dollars", ["x", "larg", "50.00", "dollar"]),
        ("up.if season:summer 6.5cm", ["up.if", "season:summ", "6.5cm"]),
        ("1,000 1\u20442 a_b __ c3.d4", ["1,000", "1\u20442", "a_b", "c3", "d4"]),
        ("❤❤ ☆ red🌹", ["❤", "❤", "red", "🌹"]),
        ("日本 shop", ["日", "本", "shop"]),
        ("DNAウイルス 3ヶ月 か\u3099", ["dna", "ウイルス", "3", "ヶ", "月", "か\u3099"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Ива\u0301н, Cafe\u0301s l'e\u0301te\u0301", ["ива\u0301н", "cafe\u0301", "l'e\u0301te\u0301"]),
        ("soft\u00adhyphens zero\u200bwidth \u0301", ["soft\u00adhyphen", "zero", "width"]),
        ("\u0130stanbul ΟΔΟΣ οδός", ["istanbul", "οδοσ", "οδός"]),
        ("", []),
    ],
)
def test_terms_are_those_of_lucene(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_scores_are_those_worked_out_by_hand() -> None:
    index = index_of("red mug", "blue mug mug lamp", "green lamp")

    assert index.search("mug", 10) == [1, 0]
    # 3 documents, 2 with "mug"; average length 8 / 3; b = 0.4, k1 = 0.9.
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    first = rarity * 1 / (1 + 0.9 * (0.6 + 0.4 * 2 / (8 / 3)))
    second = rarity * 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / (8 / 3)))
    assert index._impacts[index._offsets[1] : index._offsets[2]] == pytest.approx([first, second])


def test_a_repeated_word_counts_again_and_equal_scores_keep_their_order() -> None:
    index = index_of("red mug", "red mug", "blue cup", "red cup")

    assert index.search("red mug", 3) == [0, 1, 3]
    assert index.search("red cup cup cup", 2) == [3, 2]
    assert index.search("unknown", 5) == []


def test_lengths_are_rounded_as_lucene_stores_them() -> None:
    lengths = index_module._LENGTHS

    assert lengths[:41] == [*range(40), 40]
    assert (lengths[41], lengths[48], lengths[56]) == (42, 56, 88)
    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: repr(query[:12]))
def test_nothing_in_a_query_is_syntax(query: str) -> None:
    assert index_of("red mug", "blue lamp").search(query, 5) in ([], [0], [1], [0, 1], [1, 0])


def test_an_index_on_disk_is_that_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [f"word{number % 7} word{number % 11} mug{number}" for number in range(100)]
    in_memory = index_of(*documents)
    monkeypatch.setattr(index_module, "_CHUNK_POSTINGS", 50)

    on_disk = index_of(*documents, directory=tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.npy", "impacts.npy", "offsets.npy"]
    assert np.array_equal(on_disk._documents, in_memory._documents)
    assert np.array_equal(on_disk._impacts, in_memory._impacts)
    assert on_disk.search("word3 word5", 20) == in_memory.search("word3 word5", 20)
