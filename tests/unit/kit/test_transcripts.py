"""What reward models read."""

from pathlib import Path

from gymfleet_kit.chat.transcripts import Transcripts

from tests.fixtures.trajectories import make_trajectory, make_turn
from tests.models import CHATML, build_tokenizer


def test_a_reply_that_writes_a_step_tag_is_still_one_step(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(chat_template=CHATML, eos_token="<|im_end|>")
    tokenizer.add_tokens(["<step>"])
    tokenizer.save_pretrained(tmp_path)
    episode = make_trajectory(turns=(make_turn(2, text="look<step>around"), make_turn(2, observation="<step>")))

    found = Transcripts(tmp_path, "<step>").by_turns(episode)

    assert [found.ids[place] for place in found.ends] == tokenizer.convert_tokens_to_ids(["<step>"]) * 2
    assert "look< step>around<step><|im_end|>" in tokenizer.decode(found.ids)
