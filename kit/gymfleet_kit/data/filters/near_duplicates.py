"""Records that say nearly the same."""

from typing import Annotated, Literal

from gymfleet_contracts.conversation import Record
from pydantic import Field, NonNegativeInt

from gymfleet_kit.data.filter import Filter, FilterOptions, dialogue, replies
from gymfleet_kit.data.minhash import Signatures, SimilarTexts, Unit, shingles


class NearDuplicatesOptions(FilterOptions):
    """When two records are nearly the same."""

    by: Literal["dialogue", "replies"] = "dialogue"
    """`dialogue` compares all that is said, `replies` only what is learned from: take this where all records begin with
    the same long instructions."""
    threshold: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The Jaccard similarity of their shingles from which on they are."""
    unit: Unit = "words"
    """What a shingle is made of; `chars` suits languages without blanks between words."""
    shingle: Annotated[int, Field(ge=1, le=32)] = 3
    """How many words or characters in a row are a shingle."""
    seed: NonNegativeInt = 0
    """Of the hash functions. The similarity is an estimate, with a standard deviation of 0.02."""


class NearDuplicates(Filter[NearDuplicatesOptions]):
    """Keep the first of the records that say nearly the same, by MinHash; 512 bytes of memory per record that is kept.

    The similarity is estimated once candidates are found: a record that is left out is similar to one that was kept.
    """

    Options = NearDuplicatesOptions

    def __init__(self, options: NearDuplicatesOptions) -> None:
        super().__init__(options)
        self._signatures = Signatures(options.seed)
        self._kept = SimilarTexts(options.threshold)

    def keep(self, record: Record) -> bool:
        """Return whether none that was kept says nearly the same."""
        options = self.options
        said = replies(record) if options.by == "replies" else [text for _, text in dialogue(record)]
        signature = self._signatures.of(shingles(" ".join(said), options.unit, options.shingle))
        if self._kept.has_similar(signature):
            return False
        self._kept.add(signature)
        return True
