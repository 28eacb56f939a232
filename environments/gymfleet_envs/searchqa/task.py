"""What a question holds."""

from dataclasses import dataclass, field

from gymfleet_envs.searchqa.corpus import Corpus, Library


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A question, its right answers, and where they are to be found."""

    question: str
    answers: tuple[str, ...]
    """Any of them is right."""
    support: tuple[str, ...]
    """Titles of the passages that together hold the answer, in the order in which they lead to it; may be empty."""
    corpus_name: str
    library: Library = field(repr=False)
    attempts: int | None
    """Wrong answers that end the episode; None where only turns are limited."""

    @property
    def corpus(self) -> Corpus:
        """Return what is searched, which is made when it is first asked for."""
        return self.library()
