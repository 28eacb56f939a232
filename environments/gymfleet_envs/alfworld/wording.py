"""The domain and the grammar of generated games, in ALFWorld's predicates, action names and wording.

Game files have their own. There are two wordings: `classic`, which the published
trajectories and AgentGym use ("put mug 1 in/on desk 1"), and `current`, which
alfworld uses since 0.4 ("move mug 1 to desk 1").
"""

import json
from functools import lru_cache
from typing import Final, Literal

Wording = Literal["classic", "current"]

DOMAIN: Final = """\
(define (domain household)
(:requirements :adl :typing)
(:types agent location receptacle object rtype otype)
(:constants SinkBasinType MicrowaveType FridgeType - rtype KnifeType ButterKnifeType - otype)
(:predicates
 (atLocation ?a - agent ?l - location) (receptacleAtLocation ?r - receptacle ?l - location)
 (objectAtLocation ?o - object ?l - location) (inReceptacle ?o - object ?r - receptacle)
 (receptacleType ?r - receptacle ?t - rtype) (objectType ?o - object ?t - otype) (canContain ?rt - rtype ?ot - otype)
 (openable ?r - receptacle) (opened ?r - receptacle) (checked ?x)
 (holds ?a - agent ?o - object) (holdsAny ?a - agent) (pickupable ?o - object)
 (cleanable ?o - object) (isClean ?o - object) (heatable ?o - object) (isHot ?o - object)
 (coolable ?o - object) (isCool ?o - object) (sliceable ?o - object) (isSliced ?o - object)
 (toggleable ?o - object) (isOn ?o - object) (isToggled ?o - object))
(:action look :parameters (?a - agent ?l - location)
 :precondition (atLocation ?a ?l) :effect (checked ?l))
(:action inventory :parameters (?a - agent) :precondition () :effect (checked ?a))
(:action help :parameters (?a - agent) :precondition () :effect (checked ?a))
(:action GotoLocation :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
 :precondition (and (atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd))
 :effect (and (not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd)))
(:action OpenObject :parameters (?a - agent ?l - location ?r - receptacle)
 :precondition (and (openable ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (not (opened ?r)))
 :effect (and (opened ?r) (checked ?r)))
(:action CloseObject :parameters (?a - agent ?l - location ?r - receptacle)
 :precondition (and (openable ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (opened ?r))
 :effect (not (opened ?r)))
(:action examineReceptacle :parameters (?a - agent ?l - location ?r - receptacle)
 :precondition (and (receptacleAtLocation ?r ?l) (atLocation ?a ?l)) :effect (checked ?r))
(:action examineObject :parameters (?a - agent ?o - object)
 :precondition (holds ?a ?o) :effect (checked ?o))
(:action PickupObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
 :precondition (and (pickupable ?o) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?o ?r)
  (not (holdsAny ?a)) (or (not (openable ?r)) (opened ?r)))
 :effect (and (holds ?a ?o) (holdsAny ?a) (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))))
(:action PutObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
 :precondition (and (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot) (receptacleAtLocation ?r ?l)
  (atLocation ?a ?l) (holds ?a ?o) (or (not (openable ?r)) (opened ?r)))
 :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))))
(:action CleanObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
 :precondition (and (cleanable ?o) (receptacleType ?r SinkBasinType) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
  (holds ?a ?o))
 :effect (isClean ?o))
(:action HeatObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
 :precondition (and (heatable ?o) (receptacleType ?r MicrowaveType) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
  (holds ?a ?o))
 :effect (and (isHot ?o) (not (isCool ?o))))
(:action CoolObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
 :precondition (and (coolable ?o) (receptacleType ?r FridgeType) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
  (holds ?a ?o))
 :effect (and (isCool ?o) (not (isHot ?o))))
(:action ToggleObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
 :precondition (and (toggleable ?o) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?o ?r))
 :effect (and (isToggled ?o) (when (isOn ?o) (not (isOn ?o))) (when (not (isOn ?o)) (isOn ?o))))
(:action SliceObject :parameters (?a - agent ?l - location ?co - object ?ko - object)
 :precondition (and (sliceable ?co) (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType))
  (atLocation ?a ?l) (objectAtLocation ?co ?l) (holds ?a ?ko))
 :effect (isSliced ?co)))
"""

_HERE: Final = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
_LOOSE: Final = f"{_HERE} & objectatlocation(o:object, l:location) & not_inreceptacle(o:object, r:receptacle)"
_CONTENTS: Final = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"
_HELP: Final = (
    ("look", "look around your current location"),
    ("inventory", "check your current inventory"),
    ("go to (receptacle)", "move to a receptacle"),
    ("open (receptacle)", "open a receptacle"),
    ("close (receptacle)", "close a receptacle"),
    ("take (object) from (receptacle)", "take an object from a receptacle"),
    ("{put}", "place an object in or on a receptacle"),
    ("examine (something)", "examine a receptacle or an object"),
    ("use (object)", "use an object"),
    ("heat (object) with (receptacle)", "heat an object using a receptacle"),
    ("clean (object) with (receptacle)", "clean an object using a receptacle"),
    ("cool (object) with (receptacle)", "cool an object using a receptacle"),
    ("slice (object) with (object)", "slice an object using a sharp object"),
)
_STATES: Final = (
    ("isclean ishot issliced", "hot and clean sliced"),
    ("isclean iscool issliced", "cool and clean sliced"),
    ("isclean issliced", "clean sliced"),
    ("ishot issliced", "hot sliced"),
    ("iscool issliced", "cool sliced"),
    ("isclean ishot", "hot and clean"),
    ("isclean iscool", "cool and clean"),
    ("ishot", "hot"),
    ("isclean", "clean"),
    ("iscool", "cold"),
)
_TEMPLATES: Final = {
    "look": "look",
    "inventory": "inventory",
    "help": "help",
    "GotoLocation": "go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]",
    "OpenObject": "open {r}",
    "CloseObject": "close {r}",
    "examineReceptacle": "examine {r}",
    "examineObject": "examine {o}",
    "PickupObject": "take {o} from {r}",
    "PutObject": "put {o} in/on {r}",
    "CleanObject": "clean {o} with {r}",
    "HeatObject": "heat {o} with {r}",
    "CoolObject": "cool {o} with {r}",
    "ToggleObject": "use {o}",
    "SliceObject": "slice {co} with {ko}",
}

Alternatives = list[dict[str, str]]


def _always(text: str) -> Alternatives:
    return [{"rhs": text}]


def _examine_object() -> Alternatives:
    rules = [
        {
            "condition": " & ".join(f"{name}(o:object)" for name in names.split()),
            "rhs": f"This is a {state} {{o.name}}.",
        }
        for names, state in _STATES
    ]
    rules.append({"condition": "toggleable(o:object) & istoggled(o:object)", "rhs": "This {o.name} is on."})
    rules.append({"condition": "toggleable(o:object) & not_istoggled(o:object)", "rhs": "This {o.name} is off."})
    rules.append({"condition": "issliced(o:object)", "rhs": "This is a sliced {o.name}."})
    return [*rules, {"rhs": "There's nothing special about {o.name}."}]


def _rules(wording: Wording) -> dict[str, Alternatives]:
    classic = wording == "classic"
    put = "put (object) in/on (receptacle)" if classic else "move (object) to (receptacle)"
    # In the row of the put action, the text starts at the column of the classic form.
    lines = [f"  {f'{name}:':<34}{text}\n".replace("{put}:" + " " * 28, f"{put}:  ") for name, text in _HELP]
    return {
        "look.feedback": [
            {"condition": _HERE, "rhs": "You are facing the #here#. Next to it, you see #loose#."},
            {"rhs": "You are in the middle of a room. Looking quickly around you, you see #furniture#."},
        ],
        "here": _always(f"[{{r.name | {_HERE}}}]"),
        "loose": [
            {"condition": _LOOSE, "rhs": f"[{{o.indefinite + ' ' + o.name | {_LOOSE}}}]"},
            {"rhs": "nothing"},
        ],
        "furniture": [
            {
                "condition": "receptacleatlocation(r:receptacle, l:location)",
                "rhs": "[{r.indefinite + ' ' + r.name | receptacleatlocation(r:receptacle, l:location)}]",
            },
            {"rhs": "nothing"},
        ],
        "list_empty": _always("nothing"),
        "list_separator": _always(", "),
        "list_last_separator": _always(", and "),
        "inventory.feedback": [
            {
                "condition": "holdsany(a:agent)",
                "rhs": "You are carrying: [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}].",
            },
            {"rhs": "You are not carrying anything."},
        ],
        "help.feedback": _always("\nAvailable commands:\n" + "".join(lines)),
        "GotoLocation.feedback": _always(
            f"You arrive at {{{'lend' if classic else 'r'}.name}}. #examineReceptacle.feedback#"
        ),
        "OpenObject.feedback": _always("You open the {r.name}. #examineReceptacle.feedback#"),
        "CloseObject.feedback": _always("You close the {r.name}."),
        "examineReceptacle.feedback": [
            {
                "condition": "openable(r:receptacle) & opened(r:receptacle)",
                "rhs": f"The {{r.name}} is open. In it, you see {_CONTENTS}.",
            },
            {"condition": "openable(r:receptacle)", "rhs": "The {r.name} is closed."},
            {"rhs": f"On the {{r.name}}, you see {_CONTENTS}."},
        ],
        "examineObject.feedback": _examine_object(),
        "PickupObject.feedback": _always("You pick up the {o.name} from the {r.name}."),
        "PutObject.feedback": _always(
            "You put the {o.name} in/on the {r.name}." if classic else "You move the {o.name} to the {r.name}."
        ),
        "CleanObject.feedback": _always("You clean the {o.name} using the {r.name}."),
        "HeatObject.feedback": _always("You heat the {o.name} using the {r.name}."),
        "CoolObject.feedback": _always("You cool the {o.name} using the {r.name}."),
        "ToggleObject.feedback": _always("You turn on the {o.name}."),
        "SliceObject.feedback": _always("You sliced the {co.name} with the {ko.name}."),
    }


@lru_cache(maxsize=2)
def _grammar(wording: Wording) -> tuple[str, str]:
    """Return the texts before and after the two rules that name the task."""
    templates = dict(_TEMPLATES)
    if wording == "current":
        templates["PutObject"] = "move {o} to {r}"
    actions = "\n".join(
        f'action {name} {{\n    template :: "{template}";\n    feedback :: "#{name}.feedback#";\n}}'
        for name, template in templates.items()
    )
    rules = json.dumps(_rules(wording), indent=1)
    return f'grammar :: """\n{{{rules[1:-1]}', f'\n}}\n""";\n\n{actions}\n'


def grammar_text(wording: Wording, sentence: str) -> str:
    """Return the grammar of a game whose task `sentence` states."""
    before, after = _grammar(wording)
    intro = "-= Welcome to TextWorld, ALFRED! =-\n\n#look.feedback#\n\n#task#"
    task = {"intro": _always(intro), "task": _always(f"Your task is to: {sentence}.")}
    return f"{before},\n{json.dumps(task)[1:-1]}{after}"
