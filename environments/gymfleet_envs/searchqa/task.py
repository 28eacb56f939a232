"""The data of a question."""

from dataclasses import dataclass, field

from gymfleet_envs.searchqa.corpus import Corpus, Library


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A question, its right answers, and the corpus that holds them."""

    question: str
    answers: tuple[str, ...]
    """Any of them is right."""
    support: tuple[str, ...]
    """Titles of the passages that together hold the answer, in the order in which they lead to it; may be empty."""
    corpus_name: str
    library: Library = field(repr=False)
    attempts: int | None
    """Number of wrong answers that ends the episode; None if only turns are limited."""

    @property
    def corpus(self) -> Corpus:
        """Return the corpus to search, which is made on first use."""
        return self.library()
