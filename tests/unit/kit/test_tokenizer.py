"""A model's directory, read without transformers, against transformers' own reading of it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokenizer import ModelTokenizer, UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.models import CHATML, build_tokenizer, model_tokenizer

# What templates of published models do beyond plain loops, each in the words of Jinja alone.
EVERYTHING = """\
{%- set ns = namespace(last=-1, system='') -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set ns.system = messages[0]['content'] -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{{ bos_token if bos_token is defined else '' }}
{%- if tools is not none and tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% for message in messages %}
    {% if message.role not in ['user', 'assistant'] %}
        {{ raise_exception('no role ' ~ message.role) }}
    {% endif %}
    {% if message.content == 'skip me' %}
        {% continue %}
    {% endif %}
    {%- set ns.last = loop.index0 -%}
    {{ '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content.strip() }}{{ eos_token }}{% endgeneration %}
    {%- else %}{{ message.content | trim }}{{ {'quoted': '<ä & "b">', 'n': loop.length} | tojson }}{{ eos_token }}
    {%- endif %}
    {{ '\\n' }}
    {% if loop.index0 > 5 %}{% break %}{% endif %}
{% endfor %}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
TEMPLATES = {"chatml": CHATML, "everything": EVERYTHING, "year": "{{ strftime_now('%Y') }}" + CHATML}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60)


def saved(directory: Path, **changes: Any) -> Path:
    """A tokenizer as transformers writes it, with keys of its configuration changed."""
    tokenizer = build_tokenizer(chat_template=changes.pop("template", CHATML), extra_tokens=("<|tool|>",))
    tokenizer.save_pretrained(directory)
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}), encoding="utf-8")
    return directory


def both(directory: Path) -> tuple[ModelTokenizer, Any]:
    return ModelTokenizer.load(directory), AutoTokenizer.from_pretrained(str(directory))


def conversation(contents: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]


@pytest.fixture(scope="module", params=TEMPLATES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    return both(saved(tmp_path_factory.mktemp("model"), template=TEMPLATES[request.param]))


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(st.one_of(TEXT, st.just("skip me")), min_size=1, max_size=8), prompt=st.booleans())
def test_conversations_are_rendered_as_transformers_renders_them(
    pair: tuple[ModelTokenizer, Any], contents: list[str], prompt: bool
) -> None:
    ours, theirs = pair
    messages = conversation(contents)

    text = ours.render(messages, add_generation_prompt=prompt)

    assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=False)


def test_tokens_are_named_as_transformers_names_them(pair: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = pair

    assert ours.added_tokens == set(theirs.get_added_vocab())
    assert ours.named_tokens == theirs.special_tokens_map
    assert ours.eos_token_id == theirs.eos_token_id
    assert [ours.token(n) for n in range(50)] == theirs.convert_ids_to_tokens(list(range(50)))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"eos_token": {"__type": "AddedToken", "content": "<|tool|>", "special": True}}, id="object"),
        pytest.param({"bos_token": "<|begin|>"}, id="one that tokenizer.json lacks"),
        pytest.param(
            {"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": EVERYTHING}]},
            id="several templates",
        ),
    ],
)
def test_configurations_of_other_habits_are_read_alike(changes: dict[str, Any], tmp_path: Path) -> None:
    directory = saved(tmp_path, **changes)
    if "chat_template" in changes:
        (directory / "chat_template.jinja").unlink()
    ours, theirs = both(directory)
    messages = conversation(["hello", "there", "again"])

    assert ours.named_tokens == theirs.special_tokens_map
    assert ours.added_tokens == set(theirs.get_added_vocab())
    assert ours.eos_token_id == theirs.eos_token_id
    text = ours.render(messages, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_tokens_that_only_the_configuration_adds_get_their_ids(tmp_path: Path) -> None:
    directory = saved(tmp_path)
    size = len(AutoTokenizer.from_pretrained(str(directory)))
    added = {"content": "<|late|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
    decoder = {**config.get("added_tokens_decoder", {}), str(size): {**added, "special": True}}
    saved(tmp_path, added_tokens_decoder=decoder)

    assert ModelTokenizer.load(directory).encode("a<|late|>b")[1] == size

    saved(tmp_path, added_tokens_decoder={str(size + 7): {**added, "special": True}})
    with pytest.raises(UnusableTokenizer, match="of different models"):
        ModelTokenizer.load(directory)


def test_a_limit_of_length_in_the_file_cuts_nothing(tmp_path: Path) -> None:
    directory = saved(tmp_path)
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    file.write_text(json.dumps(content), encoding="utf-8")
    text = "much longer than eight tokens, and shorter than sixty-four"

    tokenizer = ModelTokenizer.load(directory)

    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("tokenizer.json", None, "save the model's tokenizer with transformers"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json cannot be read: no JSON object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
    ],
)
def test_a_directory_that_is_no_model_is_named(file: str, content: str | None, complaint: str, tmp_path: Path) -> None:
    directory = saved(tmp_path)
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content, encoding="utf-8")

    with pytest.raises(UnusableTokenizer, match=complaint):
        ModelTokenizer.load(directory)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", id="escape"),
        pytest.param("{% for i in range(10 ** 9) %}x{% endfor %}", id="endless"),
        pytest.param("{% for message in messages %}", id="broken"),
        pytest.param("{{ raise_exception('only with tools') }}", id="refuses"),
    ],
)
def test_a_hostile_template_gets_no_further_than_an_error(template: str) -> None:
    with pytest.raises(UnusableTemplate, match=r"chat template (refuses|is no Jinja program)"):
        ChatTokens(model_tokenizer(build_tokenizer(chat_template=template)))


def test_a_rollout_without_an_engine_of_its_own_needs_neither_transformers_nor_numpy(tmp_path: Path) -> None:
    saved(tmp_path)
    code = (
        "import sys, pathlib, gymfleet_rollout.process, gymfleet_rollout.inference.server\n"
        "from gymfleet_kit.chat.tokens import ChatTokens\n"
        "assert ChatTokens.load(pathlib.Path(sys.argv[1])).first('hello')\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'vllm', 'safetensors'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "[]"
