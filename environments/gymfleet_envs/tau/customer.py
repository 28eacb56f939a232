"""The scripted customer: it knows only the text of its task, and says from it what the agent asks for."""

import re
from dataclasses import dataclass, field, replace
from typing import Final

from gymfleet_envs.tau.brief import Brief

STOP: Final = "###STOP###"
OPENING: Final = "Hi, I have a request."
_MAX_SENTENCES: Final = 4
"""Sentences in one answer."""
_ASKS: Final = re.compile(
    r"\?|\b(?:please|could|can you|may i|tell|provide|share|give|specify|let me know|what|which|when|where|who|how|why|"
    r"i (?:will )?need|required|yes/no)\b"
)
_CONFIRM: Final = re.compile(
    r"\b(?:do you confirm|please confirm|can you confirm|confirm(?:ation)?\b[^.]*\?|yes/no|yes or no|"
    r"go ahead|proceed|is (?:this|that|it|everything) (?:correct|right|ok|okay|fine))|"
    r"(?:^|[.!?:,]\s)\s*(?:shall|should) i\b"
)
_CHECKS_IDENTITY: Final = re.compile(
    r"\bconfirm (?:me )?your (?:full )?(?:name|e-?mail|zip|user|order|reservation|identity)\b"
)
_CLOSES: Final = re.compile(
    r"\b(?:(?:any|some)thing else|any other|further (?:help|assist\w*|question\w*)|good ?bye|"
    r"have a (?:\w+ )?(?:day|evening|trip|flight)|is that all|all set)\b"
)
_OPEN: Final = re.compile(
    r"\b(?:help you|assist you|do for you|(?:any|some)thing else|any other|"
    r"what (?:exactly )?(?:would|do|can|is|should)|tell me (?:more|what|about)|(?:more |the |all )?details|describe|"
    r"how (?:may|can) i|your (?:request|wish|other)|would you accept|instead)\b"
)
_REFUSES: Final = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable|not (?:able|possible|allowed|eligible|permitted|available)|"
    r"against (?:our|the|my) policy|den(?:y|ied)|unfortunately)\b"
)
_DONE: Final = re.compile(r"\b(?:done|complete[d]?|success\w*|has been|have been|was|were|is now|are now|confirmed)\b")
_WORD: Final = re.compile(r"[a-z]{3,}|\d+")
_COMMON: Final = frozenset({
    "the", "and", "you", "your", "for", "are", "that", "this", "with", "have", "has", "had", "from", "not", "but",
    "can", "could", "would", "will", "what", "which", "when", "where", "who", "how", "why", "please", "tell",
    "give", "provide", "share", "need", "want", "like", "know", "about", "let", "any", "some", "more", "there",
    "here", "was", "were", "been", "does", "did", "get", "may", "also", "one", "all", "our", "out", "its", "just",
    "use", "using", "used", "wants", "help",
})  # fmt: skip
_TOPICS: Final = (
    # The name of the topic; words by which the agent asks for it; words of a sentence that answers.
    ("order number", r"order (?:id|number|#)|which order|what order|orders?\b[^.?]*\bwhich", r"#?\bw\d{7}\b|\border\b"),
    (
        "reservation number",
        r"(?:reservation|confirmation|booking) (?:id|number|code|reference)|which reservation",
        r"\breservation\b|\b(?=[a-z0-9]*\d)(?=[a-z0-9]*[a-z])[a-z0-9]{6}\b",
    ),
    (
        "reason",
        r"reason|why",
        r"\breason\b|\bbecause\b|no longer|by mistake|\bsick\b|\bunwell\b|weather|change of plan",
    ),
    (
        "payment method",
        r"payment|refund|pay\b|card\b|paypal|certificate",
        r"payment|pay\b|card|paypal|certificate|refund|\bgc\b|credit|visa|mastercard|via ",
    ),
    ("address", r"address|street|where should", r"address|street|suite|avenue|drive|road|lane|moved|city"),
    ("item", r"items?\b|products?\b", r"item|exchange|return|modify|change|cancel|order"),
    (
        "preference",
        r"option|colou?r|size|material|variant|kind of|version|specification|prefer",
        r"prefer|option|colou?r|size|material|to \{|for one|same|instead|cheap|expensive",
    ),
    ("cabin", r"cabin|class\b|upgrade|business|economy", r"cabin|class\b|business|economy|upgrade|downgrade"),
    ("baggage", r"bags?\b|baggage|luggage|suitcase", r"\bbags?\b|baggage|luggage"),
    ("insurance", r"insurance", r"insurance"),
    (
        "passenger",
        r"passenger|traveller|traveler|date of birth|birth|dob",
        r"passenger|birth|born|\bdob\b|friend|companion|yourself|myself",
    ),
    ("date", r"dates?\b|which day|what day|when\b", r"\bmay\b|\bday\b|date|20\d\d-\d\d-\d\d|tomorrow|today"),
    (
        "flight",
        r"flights?\b|times?\b|depart|arriv|direct|nonstop|stop ?over",
        r"flight|direct|nonstop|stop|\d ?[ap]m\b|morning|evening|hat\d+",
    ),
    (
        "trip",
        r"origin|destination|from where|where (?:are|do|would|to)|city|airport|route|trip",
        r"\bfrom\b|\bto\b.*\b[a-z]{3}\b|trip",
    ),
    (
        "budget",
        r"budget|how much|maximum|price limit|willing to (?:pay|spend)",
        r"\$|budget|price|dollar|less than|at most|up ?to",
    ),
)
_TOPIC_PATTERNS: Final = tuple((re.compile(asked), re.compile(answers), name) for name, asked, answers in _TOPICS)
_IDENTITY: Final = (
    (re.compile(r"\bname\b|who (?:are|am i)|identity|identify|authenticate|verify"), "name", "My name is {}."),
    (re.compile(r"\bzip|postal|postcode|identity|authenticate|verify"), "zip_code", "My zip code is {}."),
    (re.compile(r"e-?mail"), "email", "My email is {}."),
    (re.compile(r"user ?id|account (?:id|number)|user ?name|\bid\b|profile|identity|authenticate|verify"), "user_id",
     "My user id is {}."),
)  # fmt: skip
_CALLED: Final = {"name": "name", "zip_code": "zip code", "email": "email", "user_id": "user id"}
_MAX_READ: Final = 4096
_THANKS: Final = "Thank you."


@dataclass(frozen=True, slots=True)
class Customer:
    """A customer in the middle of a conversation; `answer` returns the customer's next state."""

    brief: Brief
    told: frozenset[int] = frozenset()
    """The sentences that the customer has said."""
    is_refused: bool = False
    """Whether the agent has said no: conditional wishes of the customer then count as wishes."""
    said: str = field(default=OPENING)
    """The last utterance."""

    @property
    def pending(self) -> tuple[int, ...]:
        """The places of the wishes that the customer has not named yet."""
        kinds = ("wish", "condition") if self.is_refused else ("wish",)
        return tuple(
            place
            for place, one in enumerate(self.brief.sentences)
            if one.kind in kinds and place not in self.told and "confirm" not in one.text.lower()
        )

    @property
    def state(self) -> tuple[object, ...]:
        """The state on which the customer's further answers depend."""
        return sorted(self.told), self.is_refused

    def answer(self, message: str) -> "Customer":
        """Return the customer after it has answered. It says something about its task only when asked."""
        heard = message[:_MAX_READ].lower()
        self = replace(self, is_refused=self.is_refused or bool(_REFUSES.search(heard)))  # noqa: PLW0642
        if not _ASKS.search(heard):
            return self._told_so(heard)
        if _CONFIRM.search(heard) and not _CHECKS_IDENTITY.search(heard):
            return self._confirming()
        if _CLOSES.search(heard):
            return self._saying("", self.pending[:2]) if self.pending else replace(self, said=STOP)
        return self._asked(heard)

    def _asked(self, heard: str) -> "Customer":
        """Answer a question about who the customer is or what it wants."""
        identity, topics = self._identity(heard), self._topics(heard)
        is_open = _OPEN.search(heard) is not None
        if is_open and self.pending:
            topics = tuple(dict.fromkeys((*topics, *self.pending[: 1 + (not topics)])))
        if identity or topics:
            return self._saying(" ".join(identity), topics)
        if (missing := _topic_of(heard)) is not None:
            return replace(self, said=f"I do not remember my {missing}.")
        if is_open:
            return replace(self, said="That is all that I want.")
        closest = self._closest(heard)
        return replace(self, said="I do not know.") if closest is None else self._saying("", (closest,))

    def _told_so(self, heard: str) -> "Customer":
        """Answer a message that is no question."""
        if self.pending:
            return replace(self, said="I see. I have more to ask for.")
        if _CLOSES.search(heard):
            return replace(self, said=STOP)
        if _DONE.search(heard):
            return replace(self, said=_THANKS)
        return replace(self, said="I see.")

    def _confirming(self) -> "Customer":
        """Say yes, or, once, a sentence of the brief that is only to be said on a confirmation."""
        late = [place for place, one in enumerate(self.brief.sentences)
                if one.kind == "condition" and "confirm" in one.text.lower() and place not in self.told]  # fmt: skip
        return self._saying("", late[:1]) if late else replace(self, said="Yes, please.")

    def _saying(self, first: str, places: tuple[int, ...] | list[int]) -> "Customer":
        chosen = sorted(places[:_MAX_SENTENCES])
        said = " ".join(filter(None, (first, *(self.brief.sentences[place].text for place in chosen))))
        return replace(self, said=said, told=self.told | frozenset(chosen))

    def _identity(self, heard: str) -> list[str]:
        asked = [(name, words) for pattern, name, words in _IDENTITY if pattern.search(heard)]
        known = [words.format(value) for name, words in asked if (value := getattr(self.brief, name)) is not None]
        if known or not asked or (len(asked) == 1 and asked[0][0] == "user_id" and _topic_of(heard) is not None):
            return known
        return [f"I do not remember my {_CALLED[name]}." for name, _ in asked[:1]]

    def _topics(self, heard: str) -> tuple[int, ...]:
        """Return the sentences that answer the message, new ones first."""
        found: dict[int, None] = {}
        for asked, answers, _ in _TOPIC_PATTERNS:
            if not asked.search(heard):
                continue
            fit = [place for place, one in enumerate(self.brief.sentences)
                   if one.kind == "wish" and answers.search(one.text.lower())]  # fmt: skip
            fresh = [place for place in fit if place not in self.told]
            found |= dict.fromkeys((fresh or fit)[:2])
        return tuple(found)

    def _closest(self, heard: str) -> int | None:
        """Return the wish that shares most words with the question."""
        words = set(_WORD.findall(heard)) - _COMMON
        shared = {place: len(words & set(_WORD.findall(one.text.lower())))
                  for place, one in enumerate(self.brief.sentences) if one.kind == "wish"}  # fmt: skip
        best = max(shared, key=lambda place: shared[place], default=None)
        return best if best is not None and shared[best] else None


def _topic_of(heard: str) -> str | None:
    """Return the first topic that a message asks for, if it has a name here."""
    return next((name for asked, _, name in _TOPIC_PATTERNS if asked.search(heard)), None)
