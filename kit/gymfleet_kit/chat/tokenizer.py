"""A model's tokenizer and chat template, read from the files in its directory.

They are read only with `tokenizers` and `jinja2`, which transformers uses too. A rollout without an embedded engine
thus needs neither transformers nor numpy, which saves 150 MB and seconds at its start. Tests keep both ways of reading
equal.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from gymfleet_kit.chat.template import ChatTemplate

_MAX_FILE_BYTES: Final = 1 << 26
_MARKER: Final = re.compile(r"</?[a-z_]{2,32}>")
_BLANKS: Final = " \t\r\n\u2581"  # the last is SentencePiece's space
_NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class UnusableTokenizer(Exception):
    """The model's directory has no usable tokenizer; the message says what is needed."""


class ModelTokenizer:
    """Encodes and decodes text, in which special tokens stand for themselves, and renders conversations.

    Args:
        backend: encodes text as ids; any length limit or padding that it has is removed.
        chat_template: the model's Jinja template, which sees `messages`, `add_generation_prompt` and the named
            tokens; empty for a model without one.
        named_tokens: `eos_token` and the like, as far as the model has them.
        stop_ids: more tokens at which the model stops, as its `generation_config.json` lists them.
    """

    def __init__(
        self, backend: Tokenizer, chat_template: str, named_tokens: Mapping[str, str], stop_ids: Sequence[int] = ()
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.chat_template = chat_template
        self.named_tokens = dict(named_tokens)
        self._stop_ids = tuple(stop_ids)
        added = backend.get_added_tokens_decoder().values()
        named = set(self.named_tokens.values())
        self.added_tokens = frozenset(token.content for token in added)
        self.markers = (
            frozenset(token.content for token in added if not token.special and _MARKER.fullmatch(token.content))
            - named
        )
        """Added tokens that are ordinary text, such as `<think>` and `</tool_call>` of Qwen's models."""
        self.controls = frozenset(
            token.content for token in added if token.special or token.content in named or token.content.strip(_BLANKS)
        )
        """Added tokens that may structure a conversation: not Gemma's and GPT-NeoX's line breaks and runs of spaces."""

    @classmethod
    def load(cls, directory: Path) -> "ModelTokenizer":
        """Read `tokenizer.json`, `tokenizer_config.json` and the template. Raises UnusableTokenizer."""
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise UnusableTokenizer(
                f"{file} is missing: save the model's tokenizer with transformers "
                "(AutoTokenizer.from_pretrained(model).save_pretrained(directory)), which writes one"
            )
        try:
            backend = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exceptions
            raise UnusableTokenizer(f"{file} cannot be read: {error}") from error
        config = _read_json(directory / "tokenizer_config.json")
        named = _named_tokens(config, _read_json(directory / "special_tokens_map.json"))
        _add_tokens(backend, config.get("added_tokens_decoder"), named, directory)
        return cls(backend, _chat_template(directory, config), named, _stop_ids(directory, backend))

    @property
    def eos_token_id(self) -> int | None:
        """Return the id of the model's own end token, or None if it names none."""
        return self.token_id(self.named_tokens["eos_token"]) if "eos_token" in self.named_tokens else None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids at which the model stops: its own end token, and others that its files list."""
        own = () if self.eos_token_id is None else (self.eos_token_id,)
        return tuple(dict.fromkeys((*own, *self._stop_ids)))

    def token_id(self, token: str) -> int:
        """Return the id of a token. Raises KeyError if there is no such token."""
        found = self.backend.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return int(found)

    def token(self, token_id: int) -> str:
        """Return the token's spelling in the vocabulary. Raises KeyError for an id without one."""
        found = self.backend.id_to_token(token_id)
        if found is None:
            raise KeyError(token_id)
        return str(found)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`: special tokens in it are encoded as such, and none are added."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Render a conversation with the template as it is. Raises UnusableTemplate for any error of the template."""
        return self._template.render(messages, prompt=add_generation_prompt)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self.chat_template, self.named_tokens)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"over {_MAX_FILE_BYTES} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("no JSON object")
    except (OSError, ValueError, TypeError) as error:
        raise UnusableTokenizer(f"{file} cannot be read: {error}") from error
    return content


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Collect named tokens; the first source wins. A token is its text, or an object with it as `content`."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _NAMED_TOKENS:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _stop_ids(directory: Path, backend: Tokenizer) -> tuple[int, ...]:
    """Return the end tokens of `generation_config.json`: one or a list."""
    given = _read_json(directory / "generation_config.json").get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(one) is not int or backend.id_to_token(one) is None for one in ids):
        raise UnusableTokenizer(
            f"{directory / 'generation_config.json'}: eos_token_id {given} names a token that tokenizer.json lacks"
        )
    return tuple(ids)


def _add_tokens(backend: Tokenizer, decoder: Any, named: Mapping[str, str], directory: Path) -> None:
    """Add the configuration's additional tokens to those of `tokenizer.json`, under the configuration's ids."""
    try:
        entries = sorted((int(token_id), AddedToken(**token)) for token_id, token in (decoder or {}).items())
    except (AttributeError, TypeError, ValueError) as error:
        raise UnusableTokenizer(f"{directory / 'tokenizer_config.json'}: added_tokens_decoder: {error}") from error
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token_id, token in entries:
        if token.content not in present:
            backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise UnusableTokenizer(
                f"{directory}: tokenizer_config.json gives {token.content!r} the id {token_id}, tokenizer.json "
                f"{backend.token_to_id(token.content)}: the two are of different models"
            )
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([AddedToken(text, special=True) for text in sorted(set(named.values()) - present)])


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str:
    """Return the template: a separate file takes precedence over the configuration; of several, the default one."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise UnusableTokenizer(f"{file} is over {_MAX_FILE_BYTES} bytes")
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default") or ""
    if not isinstance(template, str):
        raise UnusableTokenizer(f"{directory / 'tokenizer_config.json'}: chat_template is no text")
    return template
