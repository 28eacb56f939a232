"""Records that are nearly the same."""

from typing import Annotated, Literal

from gymfleet_contracts.conversation import Record
from pydantic import Field, NonNegativeInt

from gymfleet_kit.data.filter import Filter, FilterOptions, dialogue, replies
from gymfleet_kit.data.minhash import Signatures, SimilarTexts, Unit, shingles


class NearDuplicatesOptions(FilterOptions):
    """When two records count as nearly the same."""

    by: Literal["dialogue", "replies"] = "dialogue"
    """`dialogue` compares the whole dialogue, `replies` only the learned texts: use this if all records begin with the
    same long instructions."""
    threshold: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The Jaccard similarity of their shingles from which on they count as nearly the same."""
    unit: Unit = "words"
    """The units of a shingle; `chars` suits languages without blanks between words."""
    shingle: Annotated[int, Field(ge=1, le=32)] = 3
    """The number of consecutive words or characters in a shingle."""
    seed: NonNegativeInt = 0
    """Seed of the hash functions. The similarity is an estimate, with a standard deviation of 0.02."""


class NearDuplicates(Filter[NearDuplicatesOptions]):
    """Keep the first of records that are nearly the same, by MinHash; takes 512 bytes of memory per kept record.

    The similarity is estimated once candidates are found: a record that is left out is similar to a kept one.
    """

    Options = NearDuplicatesOptions

    def __init__(self, options: NearDuplicatesOptions) -> None:
        super().__init__(options)
        self._signatures = Signatures(options.seed)
        self._kept = SimilarTexts(options.threshold)

    def keep(self, record: Record) -> bool:
        """Return whether no kept record is nearly the same."""
        options = self.options
        said = replies(record) if options.by == "replies" else [text for _, text in dialogue(record)]
        signature = self._signatures.of(shingles(" ".join(said), options.unit, options.shingle))
        if self._kept.has_similar(signature):
            return False
        self._kept.add(signature)
        return True
