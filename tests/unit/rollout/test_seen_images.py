"""Episodes whose policy sees images: prompts, records, rows of the trainer, and what is refused."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.observation import ImagePart, Part, TextPart, image_mark
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.reward import RewardSpec
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, Sampling, StrategySpec, TemplateOptions
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, OpenSession, Session, StepResult, TaskRef
from gymfleet_contracts.trajectory import ScoredTrajectory, Status, Trajectory, sampled_by
from gymfleet_kit.chat.image_reader import ImageReader, PlacedImage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.data.chunks import DataError
from gymfleet_kit.data.dataproto import batch_of
from gymfleet_rollout.errors import RefusedTemplate
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import Generation
from gymfleet_rollout.player import Player
from gymfleet_trainer.errors import TrainerError, UnsupportedModel
from gymfleet_trainer.learning.images import LazyReader
from gymfleet_trainer.model.batching import TrainSequence, pack, sequences_from_trajectory
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.run.build import require_model
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.plan import stages_of
from pydantic import ValidationError
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from tests.fixtures.scored import make_recipe
from tests.models import build_tiny_model, build_tokenizer
from tests.unit.rollout.test_episode import Door, ScriptedPolicy
from tests.unit.trainer.test_image_conversations import MARKS, TEMPLATE, picture, written

SPEC = EnvironmentSpec(
    name="door", version="1", summary="", instructions="Look.", max_turns=9, levels=("easy",), default_level="easy",
    splits={"train": 5}, capabilities=Capabilities(deterministic=True), images="only",
)  # fmt: skip
SIZES = ((56, 56), (112, 56), (56, 140), (28, 28), (112, 112), (84, 56))
PICTURES = [picture(*size, (40 * place, 90, 200)) for place, size in enumerate(SIZES)]
LEFT = "Thought: left Action: go left"


def parts_of(content: bytes) -> tuple[Part, ...]:
    return TextPart(text="You see:"), ImagePart(sha256=hashlib.sha256(content).hexdigest(), media_type="image/png")


def observation_of(parts: Sequence[Part]) -> str:
    return "\n".join(part.text if isinstance(part, TextPart) else image_mark(part.sha256) for part in parts)


class Gallery(Door):
    """Sessions that show another picture at each step, and only the newest."""

    def __init__(self, pictures: Sequence[bytes] = PICTURES, *, served: bytes | None = None) -> None:
        super().__init__()
        self.pictures = pictures
        self.served = served
        self.at = 0
        self.fetched: list[str] = []

    def shown(self) -> tuple[str, tuple[Part, ...]]:
        parts = parts_of(self.pictures[self.at])
        return observation_of(parts), parts

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        self.at = 0
        observation, parts = self.shown()
        task = TaskRef(env="door", split="train", level="easy", task_id="easy.train.0")
        return Session(
            session_id="s", task=task, observation=observation, parts=parts, lease_s=60, expires_in_s=60
        )  # fmt: skip

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        self.at = (index + 1) % len(self.pictures)
        observation, parts = self.shown()
        return StepResult(
            index=index, observation=observation, parts=parts, reward=0.0, terminated=False, truncated=False, score=0.0,
            action_valid=True, info={},
        )  # fmt: skip

    async def image(self, session_id: str, sha256: str, *, timeout_s: float = 0) -> bytes:
        content = self.pictures[self.at]
        assert hashlib.sha256(content).hexdigest() == sha256, "an image is gone with the next step"
        self.fetched.append(sha256)
        return self.served or content


class SeeingPolicy(ScriptedPolicy):
    """Notes what it was given to see."""

    def __init__(self, chat: ChatTokens, *replies: str) -> None:
        super().__init__(*replies)
        self.chat = chat
        self.seen: list[tuple[list[int], list[PlacedImage]]] = []

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        del sampling, stop_token_ids
        self.seen.append((list(prompt_token_ids), list(images)))
        ids = self.chat.reply(str(self.replies[0]))[:max_tokens]
        return Generation(ids, (-0.5,) * len(ids), "stop", sampled_by(3, len(ids)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("seeing"))


async def played(
    model: Path, sessions: Door, *, images: str = "seen", turns: int = 6, reader: ImageReader | str | None = None,
    spec: EnvironmentSpec = SPEC, template: TemplateOptions | None = None,
) -> tuple[Trajectory, SeeingPolicy]:  # fmt: skip
    chat = ChatTokens.load(model)
    policy = SeeingPolicy(chat, LEFT)

    async def environments(_: str) -> Any:
        return spec

    class Environments:
        spec = staticmethod(environments)

    player = Player(
        policy, chat, sessions, Environments(), Formats(()), max_episodes=2,  # type: ignore[arg-type]
        reader=ImageReader(model) if reader is None else reader,
    )  # fmt: skip
    group = GroupRequest(
        run_id="r", group_id="g", task=OpenSession(env="door", task_index=0), num_samples=1, images=images,  # type: ignore[arg-type]
        limits=EpisodeLimits(max_turns=turns), reward=RewardSpec(), template=template or TemplateOptions(),
    )  # fmt: skip
    player.require_playable(group)
    found: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        found.extend(trajectories)

    await player.play(group, [0], deliver)
    (trajectory,) = found
    return trajectory, policy


def transformers_tokens(model: Path, trajectory: Trajectory) -> list[int]:
    """The conversation as transformers writes it, with image tokens as its processor counts them."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    processor = AutoImageProcessor.from_pretrained(model, backend="pil")
    messages: list[dict[str, Any]] = []
    for place in range(len(trajectory.turns)):
        words = "You see:\n"
        if not place:
            instructions = turn_instructions(trajectory)
            words = f"{instructions}\n\n{words}"
        messages += [
            {"role": "user", "content": [{"type": "text", "text": words}, {"type": "image"}]},
            {"role": "assistant", "content": LEFT},
        ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    before, *rest = text.split("<|image_pad|>")
    assert len(rest) == len(trajectory.turns)
    for size, behind in zip(SIZES, rest, strict=True):
        num_patches = processor.get_number_of_image_patches(size[1], size[0])
        before += "<|image_pad|>" * (num_patches // 4) + behind
    ids: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    return ids


def turn_instructions(trajectory: Trajectory) -> str:
    """What stands above the first observation."""
    tokenizer = build_tokenizer(chat_template=TEMPLATE, extra_tokens=MARKS)
    text = tokenizer.decode(trajectory.turns[0].prompt_token_ids)
    return str(text.removeprefix("<|im_start|>user\n").partition("\n\nYou see:")[0])


async def test_six_turns_with_images_have_the_tokens_that_transformers_writes(model: Path) -> None:
    gallery = Gallery()

    trajectory, policy = await played(model, gallery)

    assert trajectory.status is Status.TRUNCATED
    assert len(trajectory.turns) == 6
    tokens = [token for turn in trajectory.turns for token in (*turn.prompt_token_ids, *turn.response_token_ids)]
    wanted = transformers_tokens(model, trajectory)
    assert tokens == wanted[: len(tokens)]
    assert build_tokenizer(extra_tokens=MARKS).decode(wanted[len(tokens) :]) == "\n", "behind the last reply"
    # What the engine was given last: everything before the last reply, each image where its tokens stand.
    context, images = policy.seen[-1]
    assert context == tokens[: len(context)]
    reader = ImageReader(model)
    runs = [place for image in images for place in range(image.start, image.start + image.image.num_tokens)]
    assert runs == [place for place, token in enumerate(context) if token == reader.token_id]
    assert [image.image.sha256 for image in images] == [hashlib.sha256(one).hexdigest() for one in PICTURES]


async def test_the_record_has_each_file_once_and_reads_back(model: Path) -> None:
    pictures = [PICTURES[0], PICTURES[1], PICTURES[0], PICTURES[1]]
    gallery = Gallery(pictures)

    trajectory, _ = await played(model, gallery, turns=4)

    assert [image.data for image in trajectory.images] == pictures[:2]
    assert len(gallery.fetched) == 2
    assert [[image.sha256 for image in turn.prompt_images] for turn in trajectory.turns] == [
        [hashlib.sha256(one).hexdigest()] for one in pictures
    ]
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


async def test_rows_of_the_trainer_see_what_was_played_as_transformers_does(model: Path) -> None:
    trajectory, _ = await played(model, Gallery(), turns=3)

    (row,) = LazyReader(model).rows(sequences_from_trajectory(ScoredTrajectory(trajectory=trajectory, reward=None)))

    assert [image.grid for image in row.seen] == [(4, 4), (4, 8), (10, 4)]
    policy = PolicyModel.from_pretrained(model, frozen=True)
    ours = policy.token_logprobs(pack([row], 4096)[0]).logprobs
    torch.testing.assert_close(ours, by_transformers(model, row), atol=2e-5, rtol=1e-5)
    trained = [token for token, taught in zip(row.token_ids, row.loss_mask, strict=True) if taught]
    assert trained == [token for turn in trajectory.turns for token in turn.response_token_ids]


@torch.no_grad()
def by_transformers(model: Path, row: TrainSequence) -> torch.Tensor:
    """(L,) log-probabilities by transformers' own model, which is given the images; 0 where none is trained."""
    hf = AutoModelForImageTextToText.from_pretrained(model, attn_implementation="eager")
    ids = torch.tensor([row.token_ids])
    logits = hf(
        input_ids=ids, pixel_values=torch.cat([image.patches for image in row.seen]),
        image_grid_thw=torch.tensor([(1, *image.grid) for image in row.seen]),
        mm_token_type_ids=(ids == hf.config.image_token_id).int(),
    ).logits[0]  # fmt: skip
    found = logits[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return torch.where(row.mask(), torch.cat([torch.zeros(1), found]), 0.0)


async def test_rows_whose_images_nobody_read_are_not_trained(model: Path) -> None:
    trajectory, _ = await played(model, Gallery(), turns=1)

    (row,) = sequences_from_trajectory(ScoredTrajectory(trajectory=trajectory, reward=None))

    with pytest.raises(ValueError, match="r/g/0: its images are files that nobody read"):
        pack([row], 4096)


async def test_an_image_of_other_tokens_than_were_played_is_refused(model: Path) -> None:
    trajectory, _ = await played(model, Gallery(), turns=1)
    (turn,) = trajectory.turns
    (image,) = turn.prompt_images
    turns = (turn.model_copy(update={"prompt_images": (image.model_copy(update={"start": image.start + 1}),)}),)
    scored = ScoredTrajectory(trajectory=trajectory.model_copy(update={"turns": turns}), reward=None)

    with pytest.raises(TrainerError, match=r"r/g/0: \[image [0-9a-f]+\] stands for 4 tokens.*played by another"):
        LazyReader(model).rows(sequences_from_trajectory(scored))


async def test_where_images_are_not_seen_their_marks_are(model: Path) -> None:
    spec = SPEC.model_copy(update={"images": "beside"})
    gallery = Gallery()

    trajectory, policy = await played(model, gallery, images="text", turns=2, spec=spec)

    assert not gallery.fetched
    assert not trajectory.images
    text = build_tokenizer(extra_tokens=MARKS).decode(policy.seen[0][0])
    assert image_mark(hashlib.sha256(PICTURES[0]).hexdigest()) in text
    assert "<|image_pad|>" not in text


async def test_a_mark_that_the_environment_writes_is_no_image(model: Path) -> None:
    class Forger(Gallery):
        def shown(self) -> tuple[str, tuple[Part, ...]]:
            image = parts_of(self.pictures[self.at])[1]
            assert isinstance(image, ImagePart)
            parts = (TextPart(text=f"{image_mark(image.sha256)} <|image_pad|>"), image)
            return observation_of(parts), parts

    trajectory, _ = await played(model, Forger(), turns=2)

    (image,) = trajectory.turns[0].prompt_images
    reader = ImageReader(model)
    tokens = trajectory.turns[0].prompt_token_ids
    assert [place for place, token in enumerate(tokens) if token == reader.token_id] == list(
        range(image.start, image.end)
    )
    assert image.num_tokens == 4
    assert image_mark(image.sha256) in build_tokenizer(extra_tokens=MARKS).decode(tokens)


async def test_a_context_that_is_replaced_shows_the_images_that_the_template_left(tmp_path: Path) -> None:
    later = "{{ m.role }}{{ '!' if m.role == 'user' and loop.index0 + 2 < messages | length else '' }}"
    model = written(tmp_path, template=TEMPLATE.replace("{{ m.role }}", later))

    trajectory, policy = await played(
        model, Gallery(), turns=3, template=TemplateOptions(context="replaced")
    )  # fmt: skip

    names = [hashlib.sha256(one).hexdigest() for one in PICTURES]
    shown = [[image.sha256 for image in turn.prompt_images] for turn in trajectory.turns]
    assert shown == [names[:1], names[:2], names[:3]], "each prompt is the whole conversation"
    assert [turn.context for turn in trajectory.turns] == ["continued", "replaced", "replaced"]
    for (context, images), turn in zip(policy.seen, trajectory.turns, strict=True):
        assert context == list(turn.prompt_token_ids)
        assert [image.start for image in images] == [image.start for image in turn.prompt_images]
    rows = LazyReader(model).rows(sequences_from_trajectory(ScoredTrajectory(trajectory=trajectory, reward=None)))
    assert [len(row.seen) for row in rows] == [1, 2, 3]


@pytest.mark.parametrize(
    ("served", "why"),
    [
        pytest.param(b"no image", "shows what is no image.*PNG, JPEG or WebP", id="another file"),
        pytest.param(PICTURES[1], "was fetched has the hash", id="another image"),
        pytest.param(PICTURES[0][:40], "has the hash", id="half of it"),
    ],
)
async def test_an_image_that_is_none_fails_the_episode(model: Path, served: bytes, why: str) -> None:
    trajectory, _ = await played(model, Gallery(served=served))

    assert trajectory.status is Status.POLICY_ERROR
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(trajectory.error)


async def test_a_picture_that_cannot_be_decoded_fails_the_episode(model: Path) -> None:
    trajectory, _ = await played(model, Gallery([PICTURES[0][:60]]))

    assert trajectory.status is Status.POLICY_ERROR
    assert "shows what is no image" in str(trajectory.error)


async def test_images_are_seen_by_models_that_see(model: Path) -> None:
    with pytest.raises(RefusedTemplate, match=r'rollout\.images = "seen": models of the family'):
        await played(model, Gallery(), reader="models of the family 'qwen3' read text alone")


async def test_a_template_without_images_is_refused(tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    plain += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    model = written(tmp_path, template=plain)

    with pytest.raises(RefusedTemplate, match="shows no images"):
        await played(model, Gallery())


async def test_a_record_without_the_files_of_its_images_is_none(model: Path) -> None:
    trajectory, _ = await played(model, Gallery(), turns=1)
    given = trajectory.model_dump(mode="json")

    with pytest.raises(ValidationError, match="there are 0 files for the 1 images that prompts show"):
        Trajectory.model_validate({**given, "images": []})
    turn = {**given["turns"][0], "prompt_images": [{**given["turns"][0]["prompt_images"][0], "start": 10_000}]}
    with pytest.raises(ValidationError, match="must follow one another within"):
        Trajectory.model_validate({**given, "turns": [turn]})


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model": {"scratch": {}}}, "a model from scratch reads text alone: give model.path"),
        ({"trainer": {"workers": 2}}, "is learned from by one worker, and trainer.workers is 2"),
    ],
)
def test_recipes_that_could_not_see_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=f'rollout.images = "seen".*{why}'):
        make_recipe(rollout={"images": "seen"}, **more)


def test_a_model_that_reads_text_alone_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    text = build_tiny_model(tmp_path / "text", tie_embeddings=True, seed=0)
    limits = {"max_context_tokens": 256}
    seen: dict[str, Any] = {"rollout": {"images": "seen", "limits": limits}, "inference": {"max_model_len": 256}}

    require_model(make_recipe(model={"path": str(model)}, **seen))
    with pytest.raises(UnsupportedModel, match=r'images = "seen", and models of the family .qwen3. read text alone'):
        require_model(make_recipe(model={"path": str(text)}, **seen))


def test_algorithms_with_a_critic_are_refused() -> None:
    seen: dict[str, Any] = {"rollout": {"images": "seen"}}

    stages_of(make_recipe(**seen))
    with pytest.raises(RecipeError, match=r"stages\.reinforce\.algorithm: the critic of ppo reads text alone"):
        stages_of(make_recipe(rl={"algorithm": "ppo"}, **seen))


def test_groups_are_asked_for_as_the_recipe_says() -> None:
    for images in ("text", "seen"):
        planner = GroupPlanner(make_recipe(rollout={"images": images}), "run", {"maze": {"train": 4, "test": 2}})
        env = planner._recipe.environments[0]
        task = OpenSession(env="maze", task_index=0)
        request = planner._request("g", env, task, 1, "train", StrategySpec(), Sampling())
        assert request.images == images


async def test_episodes_with_images_are_no_batch_of_tokens_alone(model: Path) -> None:
    trajectory, _ = await played(model, Gallery(), turns=1)

    with pytest.raises(DataError, match="r/g/0 shows images, for which a batch has no place"):
        batch_of([ScoredTrajectory(trajectory=trajectory, reward=None)])
