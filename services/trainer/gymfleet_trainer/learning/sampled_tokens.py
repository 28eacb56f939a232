"""Sampled tokens as sequences, to compare log-probabilities with the engine."""

from collections.abc import Sequence

from gymfleet_contracts.trajectory import Turn

from gymfleet_trainer.model.batching import TrainSequence


def unweighted(token_ids: list[int], num_prompt: int, name: str) -> TrainSequence:
    """Return a sequence in which all tokens after the prompt count, with no advantages."""
    length = len(token_ids)
    mask = [False] * num_prompt + [True] * (length - num_prompt)
    return TrainSequence(token_ids, mask, [0.0] * length, [0.0] * length, 0, name)


def own_tokens(turns: Sequence[Turn], version: int) -> list[tuple[int, list[float]]]:
    """Return where the tokens sampled from `version` begin in the sequence, and the engine's log-probabilities."""
    found = []
    position = 0
    for turn in turns:
        position += len(turn.prompt_token_ids)
        start = 0
        for span in turn.policy_versions:
            end = start + span.num_tokens
            if span.version == version and position and turn.response_logprobs is not None:
                found.append((position + start, list(turn.response_logprobs[start:end])))
            start = end
        position += len(turn.response_token_ids)
    return found
