"""What an environment shows, as it goes out."""

import hashlib
from typing import Any

import pytest
from gymfleet_contracts.observation import MAX_IMAGE_BYTES, MAX_PARTS, ImagePart, TextPart, media_type_of
from gymfleet_env_server.sessions.observation import CUT_MARK, shown
from gymfleet_envs.environment import Image

PNG = b"\x89PNG\r\n\x1a\n" + b"one"
OTHER = b"\x89PNG\r\n\x1a\n" + b"two"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_text_is_text() -> None:
    assert shown("a wall \udcff", [], 100) == ("a wall ?", (), {})
    assert shown("x" * 30, (), 10).text == "x" * 10 + CUT_MARK.format(excess=20)


def test_parts_keep_their_order_and_are_told_as_text_too() -> None:
    seen = shown("", ["left", Image(PNG), "right", Image(PNG), Image(OTHER)], 1000)

    one, two = sha256(PNG), sha256(OTHER)
    assert seen.parts == (
        TextPart(text="left"),
        ImagePart(sha256=one, media_type="image/png"),
        TextPart(text="right"),
        ImagePart(sha256=one, media_type="image/png"),
        ImagePart(sha256=two, media_type="image/png"),
    )
    assert seen.text == f"left\n[image {one[:16]}]\nright\n[image {one[:16]}]\n[image {two[:16]}]"
    assert {name: image.content for name, image in seen.images.items()} == {one: PNG, two: OTHER}


def test_long_texts_among_parts_are_cut() -> None:
    seen = shown("", ["x" * 30, "y"], 10)

    assert seen.parts == (TextPart(text="x" * 10 + CUT_MARK.format(excess=20)), TextPart(text="y"))
    assert seen.text.startswith("x" * 10 + "\n[cut: ")


@pytest.mark.parametrize(
    ("content", "media_type"),
    [(PNG, "image/png"), (b"\xff\xd8\xff\xe0JFIF", "image/jpeg"), (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp")],
)
def test_the_first_bytes_say_what_an_image_is(content: bytes, media_type: str) -> None:
    assert media_type_of(content) == media_type


@pytest.mark.parametrize(
    ("observation", "parts", "reason"),
    [
        ("text", ["part"], "either as text or as parts"),
        (None, [], "must be a str, got NoneType"),
        ("", "text", "a list or a tuple, got str"),
        ("", [b"bytes"], "must be a str, got bytes"),
        ("", [Image(b"<svg onload='alert(1)'/>")], "must be PNG, JPEG or WebP"),
        ("", [Image(b"GIF89a")], "must be PNG, JPEG or WebP"),
        ("", [Image("text")], "must be bytes, got str"),  # type: ignore[arg-type]
        ("", [Image(PNG + b"x" * MAX_IMAGE_BYTES)], f"at most {MAX_IMAGE_BYTES} bytes"),
        ("", ["x"] * (MAX_PARTS + 1), f"at most {MAX_PARTS} parts, got {MAX_PARTS + 1}"),
    ],
)
def test_what_is_no_observation_is_refused(observation: Any, parts: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        shown(observation, parts, 1000)
