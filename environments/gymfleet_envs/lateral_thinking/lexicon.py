"""The vocabulary of generated puzzles: six things to find out, each with values in groups, in both languages.

No word stands for two values, and none appears in a clue or a story: tests check this.
"""

from dataclasses import dataclass
from typing import Final, Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a slot: its phrase in each language, and the word that names it."""

    slot: str
    group: str
    phrases: tuple[str, str]
    words: tuple[str, str]

    def phrase(self, language: Language) -> str:
        """Return the phrase for it in a sentence."""
        return self.phrases[language == "zh"]

    def word(self, language: Language) -> str:
        """Return the word that names it in a question."""
        return self.words[language == "zh"]


@dataclass(frozen=True, slots=True)
class Group:
    """Values of a slot that have something in common, which a story may hint at and a question may name."""

    slot: str
    words: tuple[str, str]
    clues: tuple[str, str]

    def word(self, language: Language) -> str:
        """Return the word that names it in a question."""
        return self.words[language == "zh"]

    def clue(self, language: Language) -> str:
        """Return the sentence of a story that hints at it."""
        return self.clues[language == "zh"]


# Slot, group in both languages, clue in both languages, then values: phrase, word and Chinese. If no word is given, it
# is the last of the phrase.
_TABLE: Final = (
    ("who", "medicine", "医疗", "The stranger washes both hands very often.",
     "那个陌生人总是不停地洗手。",
     "surgeon 外科医生|dentist 牙医|midwife 助产士|pharmacist 药剂师|optician 验光师|nurse 护士"),
    ("who", "seafaring", "航海", "The stranger walks as if the floor were moving.",
     "那个陌生人走路的样子，好像地板在晃动。",
     "captain 船长|diver 潜水员|fisherman 渔夫|stoker 司炉|pilot 领航员|smuggler 走私者"),
    ("who", "entertainment", "演艺", "The stranger lives on other people's applause.",
     "那个陌生人靠别人的掌声过日子。",
     "clown 小丑|magician 魔术师|violinist 小提琴手|acrobat 杂技演员|ventriloquist 腹语师|puppeteer 木偶师"),
    ("who", "education", "教育", "The stranger is used to having the last word among the young.",
     "那个陌生人习惯了在年轻人面前说了算。",
     "teacher 教师|librarian 图书管理员|professor 教授|tutor 家教|headmaster 校长|governess 女管教"),
    ("who", "catering", "餐饮", "The stranger is judged by what others leave over.",
     "别人剩下多少，就说明那个陌生人干得好不好。",
     "baker 面包师|butcher 屠夫|waiter 服务员|brewer 酿酒师|confectioner 糖果师|barista 咖啡师"),
    ("who", "justice", "司法", "The stranger is seldom met by people who are glad.",
     "遇见那个陌生人的人很少是高兴的。",
     "detective 侦探|judge 法官|jailer 狱卒|bailiff 法警|notary 公证人|executioner 刽子手"),
    ("place", "water", "水边", "There was a smell of algae that day.",
     "那天有一股水藻的气味。",
     ("the harbour 港口|the lighthouse 灯塔|the waterfall 瀑布|"
      "the canal 运河|the aquarium 水族馆|the fountain 喷泉")),
    ("place", "heights", "高处", "Everything below looked small that day.",
     "那天，下面的一切看上去都很小。",
     "the rooftop 屋顶|the glacier 冰川|the balloon 热气球|the steeple 尖塔|the crane 起重机|the treehouse 树屋"),
    ("place", "underground", "地下", "The sun was not to be seen that day, though it shone.",
     "那天出着太阳，却看不见它。",
     "the tunnel 隧道|the cellar 地窖|the subway 地铁|the cave 洞穴|the sewer 下水道|the catacombs 墓穴"),
    ("place", "shows", "展演场", "One had to pay to get in that day.",
     "那天要付钱才能进去。",
     ("the theatre 剧院|the museum 博物馆|the circus 马戏团|"
      "the planetarium 天文馆|the stadium 体育场|the racecourse 赛马场")),
    ("thing", "animals", "动物", "What was found had been warm once.",
     "找到的那样东西曾经是温热的。",
     "parrot 鹦鹉|tortoise 陆龟|donkey 驴|goldfish 金鱼|beetle 甲虫|squirrel 松鼠"),
    ("thing", "instruments", "乐器", "What was found can be played badly.",
     "找到的那样东西可能会被人弄得很难听。",
     "trumpet 小号|harp 竖琴|drum 鼓|flute 长笛|piano 钢琴|accordion 手风琴"),
    ("thing", "clothes", "衣物", "What was found has a wrong side and a right one.",
     "找到的那样东西分正反面。",
     "glove 手套|scarf 围巾|corset 束腰|raincoat 雨衣|veil 面纱|slipper 拖鞋"),
    ("thing", "furniture", "家具", "What was found needs room by a wall.",
     "找到的那样东西要靠墙占一块地方。",
     "wardrobe 衣柜|cradle 摇篮|mirror 镜子|armchair 扶手椅|bookcase 书架|dresser 梳妆台"),
    ("thing", "tools", "工具", "What was found makes work easier.",
     "找到的那样东西让干活更省力。",
     "hammer 锤子|ladder 梯子|shovel 铁锹|chisel 凿子|axe 斧头|lantern 提灯"),
    ("thing", "food", "食物", "What was found does not keep for ever.",
     "找到的那样东西不能放太久。",
     "melon 甜瓜|cheese 奶酪|pancake 煎饼|oyster 牡蛎|chocolate 巧克力|walnut 核桃"),
    ("state", "damage", "损坏", "It could not be used any more.",
     "它已经不能用了。",
     "burnt 烧焦|torn 撕破|rusty 生锈|crushed 压扁|rotten 腐烂|punctured 扎穿"),
    ("state", "covering", "覆盖", "One did not see its surface.",
     "看不到它的表面。",
     "painted 上漆|gilded 镀金|frozen 结冰|muddy 沾泥|bandaged 缠绷带|dusty 积灰"),
    ("state", "deception", "欺骗", "It was not what it seemed.",
     "它并不是看上去的那样。",
     "forged 伪造|hollow 中空|borrowed 借来|stolen 偷来|mechanical 机械|poisoned 下毒"),
    ("motive", "money", "钱财", "In the end it was a matter of numbers.",
     "说到底是数字的问题。",
     ("win a bet=bet 打赌|settle a debt=debt 还债|claim an inheritance=inheritance 继承遗产|"
      "collect a ransom=ransom 收赎金|avoid a tax=tax 避税|cash an insurance=insurance 骗保")),
    ("motive", "love", "爱情", "In the end it was a matter of the heart.",
     "说到底是心的问题。",
     ("propose marriage=marriage 求婚|prevent a divorce=divorce 阻止离婚|answer a serenade=serenade 回应情歌|"
      "mend a betrayal=betrayal 弥补背叛|provoke jealousy=jealousy 惹人吃醋|"
      "celebrate an anniversary=anniversary 庆祝周年")),
    ("motive", "fear", "恐惧", "In the end it was a matter of sleepless nights.",
     "说到底是睡不着觉的问题。",
     ("escape blackmail=blackmail 摆脱勒索|lift a curse=curse 解除诅咒|calm a ghost=ghost 安抚鬼魂|"
      "hide a scar=scar 遮住伤疤|survive a famine=famine 熬过饥荒|cure an allergy=allergy 治过敏")),
    ("motive", "honour", "名誉", "In the end it was a matter of a good name.",
     "说到底是名声的问题。",
     ("break a record=record 破纪录|keep an oath=oath 守誓言|avenge an insult=insult 报复侮辱|"
      "earn a medal=medal 得奖章|disprove a rumour=rumour 辟谣|pass an exam=exam 通过考试")),
    ("whom", "family", "家人", "Somebody with the same eyes was grateful.",
     "一个长着同样眼睛的人心存感激。",
     "twin 双胞胎|grandmother 祖母|uncle 叔叔|nephew 侄子|stepson 继子|godfather 教父"),
    ("whom", "acquaintances", "熟人", "Somebody from the same street was grateful.",
     "一个住同一条街的人心存感激。",
     "neighbour 邻居|landlord 房东|classmate 同学|rival 对手|penfriend 笔友|babysitter 临时保姆"),
    ("whom", "authorities", "权贵", "Somebody whom everybody has to greet was grateful.",
     "一个人人都得行礼的人心存感激。",
     "mayor 市长|bishop 主教|colonel 上校|duchess 公爵夫人|ambassador 大使|sheriff 警长"),
)  # fmt: skip


def _value(slot: str, group: str, entry: str) -> Value:
    english, _, chinese = entry.rpartition(" ")
    phrase, _, word = english.partition("=")
    return Value(slot, group, (phrase, chinese), (word or phrase.split()[-1], chinese))


GROUPS: Final = {english: Group(slot, (english, chinese), (clue, clue_zh))
                 for slot, english, chinese, clue, clue_zh, _ in _TABLE}  # fmt: skip
VALUES: Final = {
    group: tuple(_value(slot, group, entry) for entry in entries.split("|")) for slot, group, _, _, _, entries in _TABLE
}
"""Values by group."""
SLOTS: Final = tuple(dict.fromkeys(slot for slot, *_ in _TABLE))
GROUPS_OF: Final = {slot: tuple(group for group in GROUPS.values() if group.slot == slot) for slot in SLOTS}
PAIRS: Final = (("who", "place"), ("thing", "state"), ("motive", "whom"))
"""The two slots that each key fact is about: naming one of them is not enough to find the fact."""
