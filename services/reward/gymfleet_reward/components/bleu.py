"""N-grams of words that the answer shares with the right one."""

from typing import Any, ClassVar, Final, Literal

from pydantic import StrictBool
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import ComponentError

_CACHING: Final[tuple[Any, ...]] = (
    Tokenizer13a, TokenizerChar, TokenizerRegexp, TokenizerV14International, TokenizerZh,
)  # fmt: skip


class BleuOptions(AnswerOptions):
    """How texts are split into words, and what a missing n-gram costs."""

    tokenizer: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    """The tokenizer of sacrebleu: `13a` is WMT's, `intl` recognises Unicode's punctuation, `zh` separates Chinese
    characters, `char` separates all characters, and `none` splits only at spaces."""
    smoothing: Literal["exp", "floor", "add-k", "none"] = "exp"
    """The smoothing of an order of n-grams of which none matches, by sacrebleu's name."""
    lowercase: StrictBool = False
    """Compare without regard to case."""


class Bleu(AnswerComponent[BleuOptions]):
    """Sentence BLEU (Papineni et al., 2002) as sacrebleu computes it, in [0, 1].

    Each right answer of a list is a reference, since BLEU takes several. Orders of n-grams for which the answer is
    too short are left out (sacrebleu's `effective_order`).
    """

    Options = BleuOptions
    version = "1"
    alternatives: ClassVar[bool] = False

    def __init__(self, options: BleuOptions) -> None:
        super().__init__(options)
        self._bleu = BLEU(
            lowercase=options.lowercase,
            tokenize=options.tokenizer,
            smooth_method=options.smoothing,
            effective_order=True,
        )

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. `right` is a text or a number, or a list of these."""
        place = self.options.ground_truth_from
        references = [text_of(one, place) for one in (right if isinstance(right, list) else [right])]
        if not references:
            raise ComponentError(f"{place} is an empty list: no answer is right")
        score = self._bleu.sentence_score(answer, references).score / 100
        for tokenizer in _CACHING:  # each would keep the last 65,536 texts, of whatever length
            tokenizer.__call__.cache_clear()
        return min(score, 1.0)  # rounding takes equal texts to 100.00000000000004
