"""One copy of a reward model on one device. Importing this loads torch and transformers."""

import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
from gymfleet_kit.chat.transcripts import Transcript
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.utils import logging

from gymfleet_reward.models.tables import EmbeddedTable, Scores, UnusableModel

_HEADS: Final[dict[Scores, Any]] = {
    "episode": AutoModelForSequenceClassification,
    "turns": AutoModelForTokenClassification,
}
_EXCERPT: Final = 200
_LOADING: Final = threading.Lock()
"""Models are loaded one at a time in a process: while transformers loads a model, it changes torch's default dtype and
ties no weights, for all threads, and two loads that overlap leave it so."""


class Replica:
    """Weights on a device.

    Raises:
        UnusableModel: they cannot be loaded, have no head of the right kind, or do not fit the tokenizer.
    """

    def __init__(self, table: EmbeddedTable, device: str, vocab_size: int) -> None:
        logging.set_verbosity_error()  # what a head lacks is said below
        logging.disable_progress_bar()
        try:
            with _LOADING:
                architecture = AutoConfig.from_pretrained(table.path, local_files_only=True, trust_remote_code=False)
                model, loading = _HEADS[table.scores].from_pretrained(
                    table.path,
                    dtype=getattr(torch, table.dtype),
                    local_files_only=True,
                    output_loading_info=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                )
            self._model = model.to(device).eval()
        except Exception as error:
            reason = " ".join(str(error).split())[:_EXCERPT]
            raise UnusableModel(f"{table.path} cannot be loaded on {device}: {reason}") from error
        lacking = [*loading["missing_keys"], *loading["mismatched_keys"]]
        _require_fit(table, architecture, lacking, vocab_size)
        self._scores = table.scores
        self._device = device
        self._vocab_size = model.config.get_text_config().vocab_size

    def values(self, transcripts: Sequence[Transcript]) -> list[tuple[float, ...]]:
        """Return the numbers of each transcript: one, or one for each of its turns."""
        longest = max(len(one.ids) for one in transcripts)
        # Heads for sequences look for the last token that is not padding: padding is a token of no transcript.
        used = {token for one in transcripts for token in one.ids}
        padding = next(token for token in range(len(used) + 1) if token not in used)
        if padding >= self._vocab_size and len(transcripts) > 1:
            return [values for one in transcripts for values in self.values([one])]
        self._model.config.get_text_config().pad_token_id = padding
        self._model.config.pad_token_id = padding
        ids = torch.full((len(transcripts), longest), padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(transcripts):
            ids[row, : len(one.ids)] = torch.tensor(one.ids)
            mask[row, : len(one.ids)] = 1
        with torch.inference_mode():
            logits = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device)).logits
        logits = logits.float().cpu()  # (N, 1), or (N, T, 1) by tokens
        if self._scores == "episode":
            return [(float(row[0]),) for row in logits]
        return [tuple(float(row[end, 0]) for end in one.ends) for row, one in zip(logits, transcripts, strict=True)]


def _require_fit(table: EmbeddedTable, config: Any, lacking: Sequence[Any], vocab_size: int) -> None:
    path = table.path
    head = "SequenceClassification" if table.scores == "episode" else "TokenClassification"
    named = ", ".join(config.architectures or ["no architecture"])
    if config.num_labels != 1:
        raise UnusableModel(f"{path} has {config.num_labels} labels: a reward model has a head with one")
    if head not in named or lacking:
        without = f", without {', '.join(sorted(map(str, lacking)))}"[:_EXCERPT] if lacking else ""
        raise UnusableModel(f'{path} is {named}{without}: scores = "{table.scores}" needs one for {head}')
    text = config.get_text_config()
    if vocab_size > text.vocab_size:
        raise UnusableModel(f"{path} knows {text.vocab_size} tokens, its tokenizer has {vocab_size}")
    longest = getattr(text, "max_position_embeddings", table.max_tokens)
    if table.max_tokens > longest:
        raise UnusableModel(f"{path} reads {longest} tokens, max_tokens is {table.max_tokens}")
