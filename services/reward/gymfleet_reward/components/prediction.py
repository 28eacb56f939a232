"""A reply's prediction compared with what happened."""

from gymfleet_contracts.comparing import words_f1
from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentOptions, turns_of

_PREDICTION = "prediction"


class Prediction(Component[ComponentOptions]):
    """The mean over replies of the words that a prediction shares with the next observation (F1), in [0, 1].

    For formats with a place for a prediction, such as `outcome`. A reply that predicts nothing is worth 0; so is a
    reply that was not carried out, since nothing came of it.
    """

    Options = ComponentOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        after = [*(turn.observation for turn in turns[1:]), episode.final_observation]
        agreed = [
            words_f1(turn.notes[_PREDICTION], observed)
            if turn.action is not None and _PREDICTION in turn.notes
            else 0.0
            for turn, observed in zip(turns, after, strict=True)
        ]
        return sum(agreed) / len(turns)
