"""The texts for the agent, in AgentBench's words."""

from typing import Final

from gymfleet_envs.lateral_thinking.host import Answer
from gymfleet_envs.lateral_thinking.lexicon import Language

ROUNDS: Final = 25
INSTRUCTIONS: Final = (
    "You are a game player, and you are playing Lateral Thinking Puzzle, also known as Situation Puzzle.\n"
    '1. At the beginning of the game, you receive a narrative, referred to as "story". Based on the story, you ask '
    'questions that can be answered with "yes", "no", or "irrelevant" to guess out the "truth".\n'
    "2. By asking questions, you narrow down the range of possibilities until you eventually guess out the truth.\n"
    f"3. Each time, you can only ask one question, of at most 240 characters, and you can ask {ROUNDS}.\n"
    "4. You cannot declare the end of the game, give up on reasoning, or request a new game.\n"
    "5. You cannot directly repeat information already provided in the story, or ask a question again.\n"
    '6. You cannot ask "why" questions or inquire about the truth; you need to make your own guesses.'
)
RULES_ZH: Final = (
    "你是一个游戏玩家，你在玩一个横向推理游戏，名叫情境猜谜，也叫海龟汤。\n"
    "1. 游戏的开始你会获得一段隐去关键信息的叙述，即汤面，你要根据汤面提出问题，"
    "问题需要能够通过“是”、“否”或“无关”来回答。\n"
    "2. 你通过提问缩小真相的范围，直到最终猜到真相（即汤底）。\n"
    f"3. 你每次只能提一个问题，不超过80个字，一共可以提{ROUNDS}个问题。\n"
    "4. 你不可以擅自宣布游戏结束，不可以放弃推理，也不可以要求出新的游戏题目。\n"
    "5. 你不能直接重复汤面中已有的信息，也不能重复提问。\n"
    "6. 你不能用为什么的形式询问，也不能直接询问汤底，需要自己推测。"
)
OPENING: Final[dict[Language, str]] = {
    "en": (
        "Here is your story:\n{story}\n\nYou can start guessing the content of the truth, and I will answer your "
        'questions. Please note that your questions should be answerable with "yes", "no", or "irrelevant".'
    ),
    "zh": (
        f"{RULES_ZH}\n\n"
        "以下是你的汤面：\n{story}\n\n你可以开始猜测汤底的内容，我会回答你的问题。请注意，我只能回答“是”、“否”或“无关”。"
    ),
}
ANSWERS: Final[dict[Language, dict[Answer, str]]] = {
    "en": {"yes": "Yes.", "no": "No.", "irrelevant": "Irrelevant."},
    "zh": {"yes": "是。", "no": "否。", "irrelevant": "无关。"},
}
INVALID: Final[dict[Language, str]] = {
    "en": (
        "Please continue guessing the truth based on the story and ask a question that can be answered with "
        '"yes", "no", or "irrelevant".'
    ),
    "zh": "请你继续根据汤面猜测汤底的信息，提出一个可以用“是”或“否”或“无关”回答的问题。",
}
TOO_MUCH: Final[dict[Language, str]] = {
    "en": "You can only ask one question at a time. Please ask for one thing.",
    "zh": "你每次只能提一个问题，请只问一件事。",
}
IN_STORY: Final[dict[Language, str]] = {
    "en": "This information is already in the story, please ask a new question.",
    "zh": "这是汤面中已有的信息，请提一个新问题。",
}
ASKED_BEFORE: Final[dict[Language, str]] = {
    "en": "This is a question that has already been asked. Please ask a new question.",
    "zh": "这是已经提问过的内容，请提一个新问题。",
}
SOLVED: Final[dict[Language, str]] = {"en": "You have found out the truth.", "zh": "你已经猜到了汤底。"}
OVER: Final[dict[Language, str]] = {"en": "The game is over.", "zh": "游戏结束。"}
