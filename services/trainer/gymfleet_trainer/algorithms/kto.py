"""Kahneman-Tversky optimisation: single episodes, each of which is desirable or not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat

from gymfleet_trainer.learning.algorithm import Loss, Models, Need, Sample, TokenOutputs
from gymfleet_trainer.learning.pairs import PREFERRED, LeftOut, Pair
from gymfleet_trainer.learning.preference_losses import kto_loss
from gymfleet_trainer.learning.preferences import Example, Examples, Preference, PreferenceOptions, Sides
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, sequences_from_trajectory

_KL = "mismatched_kl"


class KtoOptions(PreferenceOptions):
    """Options of KTO."""

    desirable_from: Annotated[float, Field(allow_inf_nan=False)] = 0.5
    """Episodes with at least this reward are desirable; the others are not."""
    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the reference."""
    desirable_weight: PositiveFloat = 1.0
    """Weight of desirable episodes; where they are rare, weight times number should be near that of the others."""
    undesirable_weight: PositiveFloat = 1.0
    """Weight of undesirable episodes."""


class Kto(Preference[KtoOptions]):
    """KTO, arXiv:2402.01306. Its reference point is estimated once for each batch, before its updates."""

    Options: ClassVar[type[KtoOptions]] = KtoOptions

    @property
    def needs(self) -> frozenset[Need]:
        """Ask for a frozen copy of the policy."""
        return frozenset({Need.REFERENCE})

    def examples(self, samples: Sequence[Sample]) -> Examples:
        """Return each episode that has a reward as a separate example."""
        found = Examples()
        for sample in samples:
            if (reward := sample.scored.reward) is None:
                found.left_out[LeftOut.UNSCORED] += 1
                continue
            rows = sequences_from_trajectory(sample.scored, staleness=sample.staleness, roles=sample.roles)
            if example := _labelled(rows, good=reward.total >= self.options.desirable_from):
                found.examples.append(example)
        return found

    def of_pair(self, pair: Pair) -> list[Example]:
        """Return both sides as separate examples."""
        return [_labelled(list(pair.chosen), good=True), _labelled(list(pair.rejected), good=False)]

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        r"""Add the reference point :math:`z = \max(0, \mathrm{mean}(\log\pi - \log\pi_{ref}))` of mismatched replies.

        Each prompt is followed by the continuation of another episode, of another task where there is one. An episode
        alone in its batch has no mismatched reply, and the reference point is 0.
        """
        mismatched = _mismatched(rows)
        gains = [
            float((policy - reference).sum())
            for policy, reference in zip(
                models.logprobs(mismatched), models.reference_logprobs(mismatched), strict=True
            )
        ]
        kl = max(0.0, sum(gains) / max(len(gains), 1))
        return [row.with_fields(**{_KL: torch.full((len(row.token_ids),), kl, dtype=models.dtype)}) for row in rows]

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return this micro-batch's share of the mean over all episodes of the update."""
        sides, options = Sides(outputs, batch), self.options
        gains, desirable, kl = sides.gains.sum(1), sides.num_tokens[:, 0] > 0, batch.fields[_KL][0]
        losses = kto_loss(
            gains, desirable, kl,
            beta=options.beta, desirable_weight=options.desirable_weight, undesirable_weight=options.undesirable_weight,
        )  # fmt: skip
        value = losses.sum() / max(outputs.counts.units, 1)
        told, good = gains.detach(), desirable.sum()
        return Loss(
            value,
            parts={"loss": value.detach()},
            means={
                "desirable_gain": (torch.where(desirable, told, 0.0).sum(), good),
                "undesirable_gain": (torch.where(desirable, 0.0, told).sum(), len(told) - good),
                _KL: (kl * len(told), len(told)),
            },
        )


def _labelled(rows: Sequence[TrainSequence], *, good: bool) -> Example:
    """Return the trained rows of one side as a separate example."""
    trained = [row for row in rows if row.num_trained]
    value = 1.0 if good else 0.0
    return [
        replace(row, unit=f"{trained[0].trajectory_id}:{value:g}").with_fields(
            **{PREFERRED: torch.full((len(row.token_ids),), value)}
        )
        for row in trained
    ]


def _mismatched(rows: Sequence[TrainSequence]) -> list[TrainSequence]:
    """Return, per example, the prompt of its first row followed by the continuation of another example's first row."""
    first: dict[str | None, TrainSequence] = {}
    for row in rows:
        first.setdefault(row.unit, row)
    examples = list(first.values())
    if len(examples) < 2:  # its own reply is none that does not match
        return []
    longest = max(len(row.token_ids) for row in examples)
    found = []
    for place, row in enumerate(examples):
        others = [*range(place + 1, len(examples)), *range(place)]
        elsewhere = (other for other in others if examples[other].group_id != row.group_id)
        other = next(elsewhere, others[0])
        found.append(_spliced(row, examples[other], longest))
    return found


def _spliced(row: TrainSequence, other: TrainSequence, longest: int) -> TrainSequence:
    """Return the prompt of a row followed by the rest of another, cut to the length of the batch's longest."""
    prompt = row.token_ids[: row.loss_mask.index(True, 1)]
    rest = slice(other.loss_mask.index(True, 1), None)
    token_ids = [*prompt, *other.token_ids[rest]][:longest]
    mask = [*([False] * len(prompt)), *other.loss_mask[rest]][:longest]
    nothing = [0.0] * len(token_ids)
    begin, shift = rest.start, len(prompt) - rest.start
    shown = [image for image in row.images if image.end <= len(prompt)]
    shown += [replace(image, start=image.start + shift) for image in other.images if image.start >= begin]
    images = tuple(image for image in shown if image.end <= len(token_ids))
    return TrainSequence(token_ids, mask, nothing, nothing, 0, row.trajectory_id, unit=row.unit, images=images)
