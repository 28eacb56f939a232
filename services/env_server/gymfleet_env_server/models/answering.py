"""The models that answer for the roles of an environment, checked before anything is served."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymfleet_envs.environment import ModelFailed
from gymfleet_envs.model_calls import Messages
from gymfleet_kit.chat_endpoint import ChatEndpoint, KeyUnreadable, ModelEndpoint, NoModelAnswer

from gymfleet_env_server.catalogue import Entry, EnvironmentUnavailable


class EndpointModel:
    """Lets an endpoint answer for a role; used by all sessions of a shard, in its event loop."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    async def reply(self, messages: Messages, max_tokens: int, deadline: float) -> str:
        """See `Model`."""
        try:
            return (await self._endpoint.reply(messages, max_tokens, deadline)).text
        except NoModelAnswer as error:
            raise ModelFailed(str(error)) from None


def answered(entry: Entry, given: Mapping[str, Mapping[str, Any]]) -> Entry:
    """Return the environment with its models; `given` holds a `ModelEndpoint` by role.

    Raises `EnvironmentUnavailable` when one is missing, unknown, or has no key.
    """
    name, roles = entry.spec.name, {role.name: role for role in entry.spec.models}
    if unknown := sorted(set(given) - set(roles)):
        raise EnvironmentUnavailable(
            f"GYMFLEET_ENV_MODELS names {', '.join(unknown)} for {name}, which asks {', '.join(roles) or 'no model'}"
        )
    for role in roles.values():
        if role.name not in given:
            example = json.dumps({name: {role.name: {"url": "http://HOST:PORT/v1/chat/completions", "model": "NAME"}}})
            raise EnvironmentUnavailable(
                f"environment {name} asks a model, {role.name} ({role.purpose}), and nobody answers: set "
                f"GYMFLEET_ENV_MODELS='{example}'"
            )
    try:
        models = {
            role: EndpointModel(ChatEndpoint(f"{name}.{role}", ModelEndpoint.model_validate(endpoint)))
            for role, endpoint in given.items()
        }
    except KeyUnreadable as error:
        raise EnvironmentUnavailable(f"GYMFLEET_ENV_MODELS for {name}: key_file {error}") from None
    return replace(entry, models=models)
