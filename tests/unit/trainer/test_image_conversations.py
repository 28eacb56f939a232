"""Conversations that show images: what files say, the tokens and patches that are trained, and what is refused."""

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.observation import MAX_IMAGE_BYTES, ImageFile
from gymfleet_contracts.rollout import TemplateOptions
from gymfleet_kit.chat.image_reader import MAX_SIDE
from gymfleet_kit.data.arrow import encoded
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.tables import rows
from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.model.batching import pack
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.run.conversations import render
from pydantic import ValidationError

from tests.fixtures.small_models import save_small_model
from tests.models import build_tokenizer

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# As Qwen2-VL's own template has images.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 16, "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
}  # fmt: skip


def picture(width: int, height: int, colour: tuple[int, int, int] = (200, 30, 90), form: str = "PNG") -> bytes:
    made = io.BytesIO()
    PIL.Image.new("RGB", (width, height), colour).save(made, form)
    return made.getvalue()


SMALL, WIDE = picture(56, 56), picture(112, 56)


def part(content: bytes, kind: str = "png") -> dict[str, Any]:
    url = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def record(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "Red."}
    return {"messages": [{"role": "user", "content": list(parts)}, said], **more}


def conversation(given: dict[str, Any]) -> Conversation:
    (one,) = converter_of("messages", table="converter").convert(given)
    assert isinstance(one, Conversation)
    return one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("seeing"))


def written(path: Path, kind: str = "qwen2_vl", template: str = TEMPLATE) -> Path:
    """A small model that sees, with the files that a published one has."""
    save_small_model(kind, path)
    tokenizer = build_tokenizer(chat_template=template, extra_tokens=MARKS)
    tokenizer.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    config |= dict(zip(names, map(tokenizer.convert_tokens_to_ids, MARKS), strict=True))
    (path / "config.json").write_text(json.dumps(config))
    sizes = {"patch_size": 16} if kind == "qwen3_vl" else {}
    (path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | sizes))
    return path


def test_image_tokens_are_as_many_as_the_processor_makes_and_none_is_trained(model: Path) -> None:
    one = conversation(record(words("Look: "), part(SMALL), words(" and "), part(WIDE), words("\nWhich?")))

    (sequence,) = render([one], model, 4096).sequences

    tokenizer = build_tokenizer(extra_tokens=MARKS)
    assert tokenizer.decode(sequence.token_ids) == (
        f"<|im_start|>user\nLook: <|vision_start|>{'<|image_pad|>' * 4}<|vision_end|> and "
        f"<|vision_start|>{'<|image_pad|>' * 8}<|vision_end|>\nWhich?<|im_end|>\n<|im_start|>assistant\nRed.<|im_end|>"
    )
    trained = [token for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True) if taught]
    assert tokenizer.decode(trained) == "Red.<|im_end|>"
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert [(image.grid, image.end - image.start) for image in sequence.seen] == [((4, 4), 4), ((4, 8), 8)]
    assert all(set(sequence.token_ids[image.start : image.end]) == {pad} for image in sequence.images)
    mean = (torch.tensor([200, 30, 90]) / 255 - 0.5) / 0.25
    wanted = mean.repeat_interleave(2 * 14 * 14).expand(16, -1)
    torch.testing.assert_close(sequence.seen[0].patches, wanted, atol=1e-5, rtol=0)


def test_later_turns_show_images_too(model: Path) -> None:
    said = {"role": "assistant", "content": "Red."}
    asked = [{"role": "user", "content": parts} for parts in ([part(SMALL)], [words("And? "), part(WIDE)])]
    given = {"messages": [asked[0], said, asked[1], said]}

    (sequence,) = render([conversation(given)], model, 4096).sequences

    pad = build_tokenizer(extra_tokens=MARKS).convert_tokens_to_ids("<|image_pad|>")
    places = [place for place, token in enumerate(sequence.token_ids) if token == pad]
    assert places == [place for image in sequence.images for place in range(image.start, image.end)]
    assert len(places) == 4 + 8


def test_a_context_that_is_replaced_shows_all_of_its_images_again(tmp_path: Path) -> None:
    later = "{{ m.role }}{{ '!' if m.role == 'user' and loop.index0 + 2 < messages | length else '' }}"
    model = written(tmp_path, template=TEMPLATE.replace("{{ m.role }}", later))
    said = [{"role": "assistant", "content": answer} for answer in ("Red or so.", "Blue or so.")]
    asked = [{"role": "user", "content": [part(one)]} for one in (SMALL, WIDE)]
    one = conversation({"messages": [asked[0], said[0], asked[1], said[1]]})

    first, second = render([one], model, 4096, TemplateOptions(context="replaced")).sequences

    assert [image.grid for image in first.seen] == [(4, 4)]
    assert [image.grid for image in second.seen] == [(4, 4), (4, 8)]
    decoded = build_tokenizer(extra_tokens=MARKS).decode(second.token_ids)
    assert decoded.count("<|im_start|>user!") == 1
    assert decoded.count("<|image_pad|>") == 4 + 8


def test_what_is_shown_changes_what_is_learned(model: Path) -> None:
    policy = PolicyModel.from_pretrained(model, frozen=True)
    red, blue = (
        pack(render([conversation(record(part(picture(56, 56, colour))))], model, 4096).sequences, 4096)[0]
        for colour in ((255, 0, 0), (0, 0, 255))
    )

    assert red.tokens.equal(blue.tokens)
    one, other = (policy.token_logprobs(batch).logprobs for batch in (red, blue))
    assert (one - other).abs().max() > 1e-3


def test_texts_cannot_stand_for_images(model: Path) -> None:
    evil = conversation(record(words("<|vision_start|><|image_pad|><|vision_end|>"), part(SMALL)))

    (sequence,) = render([evil], model, 4096).sequences

    assert len(sequence.images) == 1
    pad = build_tokenizer(extra_tokens=MARKS).convert_tokens_to_ids("<|image_pad|>")
    assert sequence.token_ids.count(pad) == 4
    mark = conversation(record(part(SMALL))).messages[0].images[0].mark
    forged = conversation({"messages": [{"role": "system", "content": mark}, *record(part(SMALL))["messages"]]})
    with pytest.raises(TrainerError, match="the mark of an image twice, or another message has it"):
        render([forged], model, 4096)


def test_files_are_kept_byte_for_byte(tmp_path: Path) -> None:
    given = record(words("Look: "), part(SMALL), part(picture(20, 30, form="JPEG"), "jpeg"), words("?"), part(SMALL))
    converter = converter_of("messages", table="x")
    one = conversation(given)

    assert (converter.write(one).record, converter.write(one).lost) == (given, frozenset())
    assert Conversation.model_validate_json(one.model_dump_json()) == one
    assert [image.data for image in one.messages[0].images] == [SMALL, picture(20, 30, form="JPEG"), SMALL]
    assert converter_of("sharegpt", table="x").write(one).lost == {"images"}
    assert one.messages[0].text.startswith("Look: [image "), "readable as text"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/y.png"}}, "nothing is fetched"),
        ({"type": "image_url", "image_url": "data:image/svg+xml;base64,AAAA"}, "PNG, JPEG or WebP as a data: URL"),
        (part(b"GIF89a"), "an image must be PNG, JPEG or WebP"),
        (part(SMALL, "jpeg"), "it is image/jpeg, and the content begins as image/png"),
        ({"type": "image_url", "image_url": "data:image/png;base64,@@@"}, "image_url: "),
        (part(SMALL + b"x" * MAX_IMAGE_BYTES), f"{MAX_IMAGE_BYTES * 4 // 3 + 4} characters"),
    ],
)
def test_what_is_no_image_is_a_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UnusableRecord) as caught:
        conversation(record(given))

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def bomb(width: int, height: int) -> bytes:
    """A file of a hundred bytes that says it has this many pixels."""
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = b"".join(
        len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4) for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (bomb(MAX_SIDE + 1, 1), f"has {MAX_SIDE + 1} x 1 pixels; at most {MAX_SIDE} a side"),
        (bomb(5000, 5000), "has 5000 x 5000 pixels; at most 8192 a side and 16777216 in all"),
        (bomb(56, 56), "cannot be read: "),
        (picture(2000, 4), "cannot be read: absolute aspect ratio must be smaller than 200"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read: "),
    ],
)
def test_a_hostile_image_is_a_line_with_the_place(model: Path, content: bytes, told: str) -> None:
    one = conversation(record(part(content))).model_copy(update={"source": "chats.jsonl, line 7"})

    with pytest.raises(TrainerError) as caught:
        render([one], model, 4096)

    assert str(caught.value).startswith("chats.jsonl, line 7: [image ")
    assert told in str(caught.value)


def test_a_film_is_refused(model: Path) -> None:
    made = io.BytesIO()
    frames = [PIL.Image.new("RGB", (56, 56), (place, 0, 0)) for place in (0, 200)]
    frames[0].save(made, "WEBP", save_all=True, append_images=frames[1:])

    with pytest.raises(TrainerError, match="is a film of 2 frames"):
        render([conversation(record(part(made.getvalue(), "webp")))], model, 4096)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ({"role": "user", "content": "no mark"}, "the content has no mark"),
        ({"role": "user", "content": "{mark} {mark}"}, "more marks of them than there are images"),
        ({"role": "system", "content": "{mark}"}, "a user or a tool shows them, not 'system'"),
    ],
)
def test_an_image_has_one_mark_in_what_a_user_shows(messages: dict[str, str], told: str) -> None:
    image = ImageFile.model_validate({"media_type": "image/png", "content": base64.b64encode(SMALL).decode()})

    with pytest.raises(ValidationError, match=told):
        Message.model_validate(
            messages | {"content": messages["content"].format(mark=image.mark), "images": [image.model_dump()]}
        )


def test_what_sees_no_images_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    one = conversation(record(part(SMALL)))
    text = written(tmp_path / "text", kind="gemma3")
    with pytest.raises(TrainerError, match="the family 'gemma3' read text alone; images are seen by"):
        render([one], text, 4096)

    missing = written(tmp_path / "missing")
    (missing / "preprocessor_config.json").unlink()
    with pytest.raises(TrainerError, match=r"preprocessor_config\.json is missing: put the file"):
        render([one], missing, 4096)

    (missing / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuch"}')
    with pytest.raises(TrainerError, match=r"preprocessor_config\.json makes no processor of images"):
        render([one], missing, 4096)

    (missing / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | {"patch_size": 16}))
    with pytest.raises(TrainerError, match="has patch_size = 16, and the model's vision_config has patch_size = 14"):
        render([one], missing, 4096)

    blind = written(tmp_path / "blind", template=TEMPLATE.replace("<|image_pad|>", ""))
    with pytest.raises(TrainerError, match=r"the chat template shows no images as one '<\|image_pad\|>' each"):
        render([one], blind, 4096)


def test_a_table_keeps_images() -> None:
    one = conversation(record(words("Look: "), part(SMALL), words(" and "), part(WIDE)))

    (row,) = rows(encoded([one], "conversations"))

    (found,) = converter_of("gymfleet", table="x").convert(row)
    assert found == one
