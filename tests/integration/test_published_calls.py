"""Calls of functions as this project writes them, read by vLLM's parsers, and those read by this project."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.session import ToolCall

from tests.published_templates import ACT, FILES, chat_of

pytestmark = [
    pytest.mark.skipif(not FILES, reason="the published templates are not beside the project"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch, which vLLM imports
]
PARSERS: Final = {
    "GLM-4.7-Flash": "glm47",
    "LFM2.5-8B-A1B": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M3": "minimax_m3",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3.5-4B": "qwen3_coder",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-4.1": "granite4",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "poolside_v1",
    "poolside-Laguna-XS-2.1": "poolside_v1",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}
"""The parsers of vLLM for those families of which it has one that reads texts."""
ACTIONS: Final = ("go left", 'go to "shelf 2"', "a <b> & é\nline")


def parsed(file: Path, parser: str, text: str) -> list[tuple[str, Any]]:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - heavy
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415 - heavy
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415 - heavy

    tools: list[Any] = [{"type": "function", "function": ACT.model_dump()}]
    backend = chat_of(file, tools=True)._tokenizer.backend
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<EOS>", bos_token="<BOS>")
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=tools)
    found = ToolParserManager.get_tool_parser(parser)(tokenizer, request.tools).extract_tool_calls(text, request)
    return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_vllm_reads_what_is_written(name: str) -> None:
    file = next(file for file in FILES if file.stem == name)
    chat = chat_of(file, tools=True)
    for action in ACTIONS:
        call = ToolCall(name="act", arguments={"action": action})

        text = chat.text(chat.write(ModelReply("", calls=(call,))))

        assert parsed(file, PARSERS[name], text) == [("act", {"action": action})]
