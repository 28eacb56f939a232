"""A judge trained in the run: a language model that learns to write verdicts on episodes with known rewards."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from gymfleet_contracts.stages import StageFacts
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokenizer import UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.judging.asking import ByPairs, ByRubric

from gymfleet_trainer.errors import NothingLeft, TrainerError
from gymfleet_trainer.learning.judge_data import Judged, Questions, measures
from gymfleet_trainer.learning.options import GenerativeJudgeOptions
from gymfleet_trainer.learning.reward_data import Example, Pair
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stages._reward_model import Divided, RewardModelStage


class GenerativeJudgeStageOptions(GenerativeJudgeOptions):
    """Options for a judge that learns to write verdicts."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""


class GenerativeJudge(RewardModelStage[GenerativeJudgeStageOptions]):
    """Train a judge: a language model that is asked as the reward service asks, and learns the verdicts' tokens."""

    Options = GenerativeJudgeStageOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("judge",))
    small: ClassVar[Mapping[str, Any]] = {"epochs": 2, "components": ["judge"], "grades": 2}

    @property
    def learns_from(self) -> list[Literal["pairs", "episodes"]]:
        """See `RewardModelStage`."""
        return ["episodes" if component == "judge" else "pairs" for component in self.options.components]

    def rows(self, run: RunContext, divided: Divided) -> list[TrainSequence]:
        """Return the questions that are trained on, with their verdicts."""
        found = self._questions(
            run, "trained", [*divided.trained, *divided.replayed], [*divided.trained_pairs, *divided.replayed_pairs]
        )
        if not found:
            raise NothingLeft(
                f"{self.table}: there is no question to ask about {len(divided.trained)} episodes and "
                f"{len(divided.trained_pairs)} pairs of {', '.join(self.data)} outside of the held-out tasks: "
                "summary.json and the log count what was left out, and why"
            )
        return [one.row() for one in found]

    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return how well held-out questions are answered: nothing is generated, the possible verdicts are compared."""
        found = self._questions(run, "held_out", divided.held_out, divided.held_out_pairs)
        if not found:
            return {}
        return measures(found, run.learner.reward_numbers([row for one in found for row in one.choice_rows()]))

    def described(self) -> dict[str, Any]:
        """Return the prompts with which the judge is asked, as the reward service's records name them."""
        options = self.options
        ways = {"judge": ByRubric(options, options), "judge_pairs": ByPairs(options)}
        return {"prompts": {name: f"{options.prompt_version}:{ways[name].prompt.hash}" for name in options.components}}

    def _questions(
        self, run: RunContext, which: str, examples: Sequence[Example], pairs: Sequence[Pair]
    ) -> list[Judged]:
        try:
            questions = Questions(self.options, ChatTokens.load(run.tokenizer()), run.recipe.inference.max_model_len)
            found, left_out = questions.about(examples, pairs)
        except (UnusableTokenizer, UnusableTemplate) as error:
            raise TrainerError(f"{self.table}: no judge can be made of this model: {error}") from None
        # Set, not added up: a resumed stage writes them again.
        run.state.counts[f"{which}_questions.{self.name}"] = len(found)
        run.state.counts |= {f"{which}_questions_{reason}.{self.name}": number for reason, number in left_out.items()}
        return found
