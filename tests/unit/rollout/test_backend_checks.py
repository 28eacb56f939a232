"""The suite of backends: a sound one passes, and each broken promise is told."""

import re
from pathlib import Path

import pytest
from gymfleet_rollout import backend_checks
from gymfleet_rollout.backend_checks import examine

from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

PAGE = (ROOT / "docs/adding-a-backend.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REASON = 'Continuation(tokens, logprobs, "stop" if tokens[-1] in stop else length)'


@pytest.mark.parametrize(
    ("sound", "broken", "told"),
    [
        ("[float(score", "[1.0 + float(score", "and one is finite and at most 0"),
        ("[float(score", "[0 * float('nan') * float(score", "gave the log-probability nan"),
        ("[float(score", "[1.5 * float(score", "at temperature 1 its log-probabilities differ from the model's own by"),
        (".log_softmax(-1)[token]", ".log_softmax(-1)[token - 1]", "log-probabilit"),
        (
            "score[0].log_softmax(-1)", "(score[0] * (how.temperature or 1)).log_softmax(-1)",
            "at temperature 0.6 its log-probabilities differ",
        ),
        (REASON, REASON.replace("tokens,", "[t + 128 for t in tokens],"), "and the vocabulary ends at 127"),
        (REASON, REASON.replace("tokens,", "tokens[1:],"), "63 tokens and 64 log-probabilities"),
        (REASON, REASON.replace('"stop"', '"eos"'), "gave the finish reason 'eos'"),
        (REASON, "Continuation(tokens[:-1], logprobs[:-1], length)", "it ends a reply after 63 of 64 tokens"),
        (
            "max_new_tokens=request.max_tokens", "max_new_tokens=request.max_tokens + 1",
            "gave 65 tokens, and at most 64 were asked for",
        ),
        (", attention_mask=torch.ones_like(prompt)", "", "log-probabilities differ from the model's own"),
        ("eos_token_id=stop or None", "eos_token_id=[*stop, *range(40)]", "no finish reason, and nobody interrupted"),
        ("do_sample=how.temperature > 0", "do_sample=True", "at temperature 0 it does not choose the likeliest token"),
        ("max(how.top_k, 0)}", "0}", "with top_k = 1 it chooses other tokens than the likeliest"),
        ("else torch.manual_seed(how.seed)", "else torch.seed()", "with the same seed it draws other tokens"),
        ("torch.manual_seed(how.seed)", "torch.manual_seed(3)", "with another seed it draws the same tokens"),
        ("torch.seed() if", "torch.manual_seed(3) if", "without a seed it draws the same tokens twice"),
        ("eos_token_id=stop or None", "eos_token_id=None", "should end with it and 'stop', not after 24 with 'length'"),
        ("torch.tensor([over()])", "torch.tensor([bool(__import__('time').sleep(0.005))])", "0.3 s"),
        ("else None\n", "else 'length'\n", "a reply that was interrupted has the finish reason 'length', not None"),
        ("load_model(self.model, file)", "del file", "with new weights its log-probabilities differ from the model's"),
        ("load_model(self.model, file)", "raise OSError('no disk')", "it does not generate: OSError: no disk"),
        ("dtype = ", "raise RuntimeError('no\\nGPU')\n        dtype = ", "started or closed: RuntimeError: no GPU"),
        ("        return PlainEngine(config)", "        raise RuntimeError('not me')", "RuntimeError: not me"),
        ("import torch\n", "import torhc\n", "cannot be imported: ModuleNotFoundError: No module named 'torhc'"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: str, broken: str, told: str
) -> None:
    assert sound in SOURCE
    (tmp_path / "plain.py").write_text(SOURCE.replace(sound, broken))
    monkeypatch.setattr(backend_checks, "PROMPT_S", 0.3)

    faults = examine(str(tmp_path / "plain.py"))

    assert any(told in fault for fault in faults), faults
    assert not any("\n" in fault for fault in faults)


ENGINE = """
from gymfleet_rollout.backend import BackendOptions, Continuation, InferenceBackend, ThreadEngine
import plain_of_the_guide as guide


class Careless(guide.PlainEngine):
    async def generate(self, request, on_tokens=None):
        {generate}

    async def interrupt(self):
        {interrupt}


class Options(BackendOptions):
    width: int


class Mine(guide.Plain):
    {options}

    async def replicas(self):
        return {replicas}

    def engine(self, replica, config):
        return Careless(config)


BACKEND = Mine
"""
SOUND = {
    "generate": "return await super().generate(request, on_tokens)",
    "interrupt": "return await super().interrupt()",
    "options": "",
    "replicas": "['mine']",
}
LEAVES = """answer = await super().generate(request, on_tokens)
        self.num_in_flight += 1
        return answer"""
LATE = """import asyncio
        await asyncio.sleep(0)
        return await super().generate(request, on_tokens)"""
MIXES = """from dataclasses import replace
        self.last, last = request.prompt_token_ids, getattr(self, "last", request.prompt_token_ids)
        return await super().generate(replace(request, prompt_token_ids=last), on_tokens)"""


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        ({"generate": LEAVES}, "its num_in_flight is"),
        ({"generate": LATE}, "its num_in_flight is 0 as soon as one request is made"),
        ({"generate": MIXES}, "of 12 requests at once one has log-probabilities that differ"),
        ({"interrupt": "pass"}, "3 of 3 requests are not over when an interruption is"),
        ({"replicas": "[]"}, "it names no engine"),
        ({"options": "Options = Options"}, "options.width: Field required"),
    ],
)
def test_a_careless_engine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], told: str | None
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plain_of_the_guide.py").write_text(SOURCE)
    (tmp_path / "mine.py").write_text(ENGINE.format(**{**SOUND, **changed}))

    faults = examine(str(tmp_path / "mine.py"))

    assert faults == [] if told is None else any(told in fault for fault in faults), faults
