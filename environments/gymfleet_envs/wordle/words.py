"""Common English words of five letters, written for this project."""

from typing import Final

WORDS: Final = tuple(
    """
    about above actor acute admit adult after again agent agree ahead alarm album alert alike alive allow alone along
    alter amaze amber among angel anger angle angry ankle apart apple apply apron arena argue arise armor aside asset
    audio avoid awake award aware badge badly bagel baker bacon basic basin batch beach beard beast began begin being
    below bench berry birth black blade blame blank blast blaze bleed blend bless blind block blood bloom board boast
    bonus boost booth bound bowel brain brake brand brave bread break breed brick bride brief bring broad broke brook
    broom brown brush build bunch burst buyer cabin cable camel canal candy canoe cargo carry carve catch cause cedar
    chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chose civic civil
    claim clash class clean clear clerk click cliff climb cling clock close cloth cloud clown coach coast cocoa comet
    comic coral couch cough could count court cover crack craft crane crash crawl crazy cream creek crest crime crisp
    cross crowd crown crude cruel crumb crush crust curly curve cycle daily dairy dance decay delay dense depth diary
    digit diner dirty ditch diver dizzy donor doubt dough dozen draft drain drama dream dress drift drill drink drive
    drone drove dusty eager eagle early earth eight elbow elder elect elite empty enemy enjoy enter entry equal error
    essay event every exact exist extra fable faint faith false fancy favor feast fence ferry fetch fever fiber field
    fifth fifty fight final first flame flash fleet flesh flint float flock flood floor flour fluid flute focus foggy
    force forge forty forum found frame fraud fresh fried front frost fruit funny gauge ghost giant given glass gleam
    globe gloom glory glove goose grace grade grain grand grant grape graph grasp grass grave gravy great greed green
    greet grief grill grind groom group grove growl grown guard guess guest guide guilt habit handy happy harsh haste
    hatch haunt heart heavy hedge hello hobby honey honor horse hotel hound house hover human humid humor hurry icing
    ideal image index inner input irony issue ivory jelly jewel joint jolly judge juice juicy kayak knead kneel knife
    knock known label labor lance large laser later laugh layer learn lease least leave lemon level lever light lilac
    limit linen liver lobby local lodge logic loose lotus lower loyal lucky lunar lunch magic major maker maple march
    marry marsh mayor medal melon mercy merge merit merry metal meter midst might minor model moist money month moral
    motor mount mouse mouth movie muddy music naive nasty naval nerve never newly night ninth noble noise north novel
    nurse nylon oasis occur ocean offer often olive onion opera orbit order organ other otter ought ounce outer owner
    oxide paint panel panic paper party pasta patch patio pause peach pearl pedal penny perch phase phone photo piano
    piece pilot pinch pitch pixel pizza place plain plane plant plate plaza pluck plumb point polar porch pound power
    press price pride prime print prize probe proof proud prove pulse punch pupil puppy purse queen query quest queue
    quick quiet quilt quite quota radar radio raise rally ranch range rapid ratio raven reach react ready realm rebel
    refer relax reply rhyme rider ridge rifle right rigid risky rival river roast robin robot rocky rough round route
    royal rugby ruler rural salad salty sandy sauce scale scare scarf scene scent scold scoop scope score scout scrap
    screw seize sense serve seven shade shaft shake shape share shark sharp sheep sheet shelf shell shift shine shiny
    shirt shock shore short shout shown siege sight silly since sixth sixty skate skill skirt skull slate sleep slice
    slide slope small smart smell smile smoke snack snail snake sneak solar solid solve sorry sound south space spade
    spare spark speak spear speed spell spend spice spicy spill spine spite split spoil spoon sport spray squad stack
    staff stage stain stair stale stamp stand stare start state steak steal steam steel steep steer stern stick stiff
    still sting stock stone stood stool store storm story stove strap straw strip study stuff style sugar sunny super
    surge swamp swarm swear sweat sweep sweet swift swing sword table taste teach tenth thank theme thick thief thing
    think third thorn those three threw throw thumb tiger tight timer title toast today token tooth topic torch total
    touch tough towel tower toxic trace track trade trail train trait treat trend trial tribe trick tried troop truck
    truly trunk trust truth tulip tutor twice twist ultra uncle under union unite unity until upper upset urban usage
    usual valid value vapor vault verse video vigor viola viral visit vital vivid vocal voice voter wagon waist waste
    watch water waxed weary weave wedge weigh wheat wheel where which while whole widen width woman world worry worse
    worst worth would wound wrist write wrong yacht yearn yeast yield young youth zebra
    """.split()  # noqa: SIM905 - a block of words reads better than nine hundred quoted ones
)
