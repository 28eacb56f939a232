"""The files of a model other than its weights and config, which a trained model keeps as they are."""

import shutil
from pathlib import Path
from typing import Final

GENERATION: Final = ("generation_config.json",)
"""The sampling settings of vLLM and transformers, and the tokens at which they stop."""
READING: Final = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "spiece.model", "tekken.json",
    "chat_template*", "additional_chat_templates/*.jinja", "*preprocessor_config.json", "processor_config.json",
)  # fmt: skip
"""How text and images become tokens: tokenizer, chat template, and the files with which vLLM starts a vision model."""


def keep_files(source: str, directory: Path, patterns: tuple[str, ...] = GENERATION + READING) -> None:
    """Copy the files of a model (a directory or hub id) to a directory, over those that transformers wrote there."""
    place = files_of(source, patterns)
    for pattern in patterns:
        for path in place.glob(pattern):
            if path.is_file():
                copy = directory / path.relative_to(place)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def files_of(source: str, patterns: tuple[str, ...]) -> Path:
    """Return the directory with such files of a model (a directory or hub id)."""
    if (place := Path(source)).is_dir():
        return place
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - needed for hub ids alone

    return Path(snapshot_download(source, allow_patterns=list(patterns)))
