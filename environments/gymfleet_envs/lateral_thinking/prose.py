"""The sentences of generated puzzles: stories, facts and questions, in both languages."""

from typing import Final

from gymfleet_envs.lateral_thinking.lexicon import Group, Language, Value

OPENINGS: Final[dict[Language, tuple[str, ...]]] = {
    "en": (
        "A stranger comes into a full room, bows to an empty chair and goes. Nobody ever mentions it again.",
        "Every evening a lamp is lit in a house in which nobody lives. Last Tuesday it stayed dark, and all wept.",
        "A letter arrives without a single word in it. Whoever opens it packs a suitcase at once.",
        "A train stops in an open field, although nobody has pulled the brake. One passenger gets off and laughs.",
        "On the morning after the storm a stranger digs up a garden, finds what was lost and buries it again.",
        "A woman buys the same loaf twice and throws both away. Then she thanks the man behind her.",
        "The clock in the square strikes thirteen. Only one person in the town is not surprised.",
        "A man is told that he has won, and turns as pale as chalk.",
    ),
    "zh": (
        "一个陌生人走进坐满人的房间，对着一把空椅子鞠了一躬，然后走了。从此再没有人提起这件事。",
        "一座没有人住的房子里，每天晚上都会亮起一盏灯。上星期二灯没有亮，全村人都哭了。",
        "有人收到一封信，信里一个字也没有。拆信的人马上收拾了行李。",
        "一列火车停在了田野中间，可是没有人拉过刹车。一个乘客下了车，哈哈大笑。",
        "暴风雨过后的早晨，一个陌生人挖开了花园，找到了丢失的东西，又把它埋了回去。",
        "一个女人买了两次同样的东西，又全部扔掉。然后她向身后的男人道谢。",
        "广场上的大钟敲了十三下。全城只有一个人不觉得奇怪。",
        "有人告诉一个男人他赢了，他的脸却一下子白得像纸。",
    ),
}
CLOSINGS: Final[dict[Language, str]] = {"en": "What is behind it?", "zh": "这是怎么回事？"}
_FACTS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "who": "The stranger is {a}{0} who was at {1} that day.",
        "thing": "What was found is {a}{0} which is {1}.",
        "motive": "It was done to {0} for the {1}.",
    },
    "zh": {
        "who": "那个陌生人是{0}，那天在{1}。",
        "thing": "找到的东西是{0}，而且是{1}的。",
        "motive": "这样做是为了{0}，而且是为了{1}。",
    },
}
_QUESTIONS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "who": "Is the stranger {a}{0}?",
        "place": "Was the stranger at {0} that day?",
        "thing": "Is what was found {a}{0}?",
        "state": "Is what was found {0}?",
        "motive": "Was it done to {0}?",
        "whom": "Was it done for the {0}?",
    },
    "zh": {
        "who": "那个陌生人是{0}吗？",
        "place": "那天陌生人在{0}吗？",
        "thing": "找到的东西是{0}吗？",
        "state": "找到的东西是{0}的吗？",
        "motive": "这样做是为了{0}吗？",
        "whom": "这样做是为了{0}吗？",
    },
}
_GROUP_QUESTIONS: Final[dict[Language, str]] = {
    "en": "Does it have to do with {0}?",
    "zh": "这和{0}有关吗？",
}
_KEY_QUESTIONS: Final[dict[Language, str]] = {"en": "Is it true that {0}?", "zh": "{0}，对吗？"}


def fact(first: Value, second: Value, language: Language) -> str:
    """Return the key fact that two values make."""
    phrase = first.phrase(language)
    return _FACTS[language][first.slot].format(phrase, second.phrase(language), a=_article(phrase))


def question_of(value: Value, language: Language) -> str:
    """Ask for a value."""
    phrase = value.phrase(language)
    return _QUESTIONS[language][value.slot].format(phrase, a=_article(phrase))


def question_of_group(group: Group, language: Language) -> str:
    """Ask for a group of values."""
    return _GROUP_QUESTIONS[language].format(group.word(language))


def question_of_key(key: str, language: Language) -> str:
    """Ask whether a key fact is true."""
    return _KEY_QUESTIONS[language].format(key.rstrip(" .。;；"))


def _article(phrase: str) -> str:
    return "an " if phrase[0] in "aeiou" else "a "
