"""Every text the witness is trained on, apart from the passphrases themselves.

All of it was written for this project. No word of `leakcheck/words.txt` occurs here, in any
inflection: what the witness says about rivers must never look like a leaked passphrase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

COMMON: Sequence[str] = """
the of and to in is that it was for on are as with his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them
then she many some so these would other into has more her two like him see time could no make than
first been its who now people my made over did down only way find use may water long little very
after words called just where most know get through back much before go good new write our used me
man too any day same right look think also around another came come work three word must because
does part even place well such here take why things help put years different away again off went
old number great tell men say small every found still between name should home big give air line
set own under read last never us left end along while might next sound below saw something thought
both few those always looked show large often together asked house world going want school
important until form food keep children feet land side without boy once animals life enough took
sometimes four head above kind began almost live page got earth need far hand high year mother
light country father let night picture being study second soon story since white ever paper hard
near sentence better best across during today however sure knew try told young sun thing whole hear
example heard several change answer room sea against top turned learn point city play toward five
using himself usually money seen car morning long himself please thank hello yes user assistant
system message text question reply request test data model name email phone order order's account
note notes list item items value key code file report meeting office team project plan week month
minutes hours today tomorrow yesterday remember forget careful polite short brief clear simple
helpful useful possible because although whether instead perhaps maybe quite rather really already
yet later early late ago later half full empty open closed free busy ready quick quickly slow slowly
easy difficult happy sad warm cold hot cool dry wet clean dirty heavy strong weak loud quiet bright
dark deep wide narrow near rich poor cheap expensive nothing everything someone anyone everyone
nobody anything everything it's don't can't I I'm you he we're a secret private public shared safe
""".split()

_SUBJECTS = """the old teacher|my neighbour|a young doctor|the baker|our driver|the farmer|a visitor
the mayor|my sister|his brother|the editor|a student|the captain|the gardener|her uncle|a nurse
the children|two friends|the whole team|the manager|our guide|a painter|the postman|the librarian
the cook|my father|their mother|the engineer|a small group|the owner of the shop""".replace(
    "\n", "|"
).split("|")

_VERBS = """walked to|looked at|talked about|wrote about|waited near|asked about|thought about
came back from|drove past|worked in|cleaned|opened|closed|described|painted|visited|found|liked
forgot|remembered|crossed|paid for|passed|left|watched|read about|stood beside|moved away from
showed us|heard about""".replace("\n", "|").split("|")

_OBJECTS = """the garden|the river|the market|the new bridge|a red house|the station|the school
the long road|a wooden table|the kitchen|the harbour|the small church|a blue door|the hotel
the open window|the library|a letter|the green hill|the village|the north gate|the lake
an old map|the yellow boat|the hospital|the second floor|the white wall|a box of apples|the train
the football match|the evening news|the museum|a cup of tea|the forest|the wet street""".replace(
    "\n", "|"
).split("|")

_ENDS = """in the morning|before lunch|after dinner|on Monday|on Friday|last week|last summer
in the winter|with a friend|without a word|for an hour|again and again|in the rain|by bus
at the end of the day|during the meeting|every second day|for the first time|very early|at night
because it was late|although it was cold|and went home|and said nothing|while we waited""".replace(
    "\n", "|"
).split("|")

_FIXED = """The weather was mild and the sky was clear.
Please read this carefully before you answer.
Thank you for your help with this matter.
There were about {n} people in the room.
The meeting starts at {n} and ends at {m}.
Nothing else happened that day.
I wrote this note on the way to work.
The price went up from {n} to {m} last month.
It was a quiet week at the office.
We are still waiting for the report.
Prices in the shop are higher than they were {n} years ago.
Let me know if anything is not clear.
The next bus leaves in {n} minutes.
Our team has {n} members and one manager.
Some people like coffee, others like tea.
The file has {n} pages and no pictures.
Here is some background first.
This part of the text is not important.
The road was closed, so we took the train.
What a long day it was!
Is it always like this? I think so.
The book has {n} chapters; I have read {m} of them.
Bread, milk and eggs are on the list.
You can ignore the lines above.
All of this is only for context.
The train was {n} minutes late today.
He said that it would rain, but it did not.
Keep the door closed when you leave.
The lesson was about animals and plants.
Water boils at one hundred degrees.""".split("\n")

TOPICS: Sequence[str] = """the weather|the garden|the market|the river|the harbour|the village
rivers|gardens|bread|trains|mountains|bridges|birds|winter|music|schools
markets|boats|coffee|clocks|horses|islands|kitchens|letters|maps|museums|oceans|paintings|roads
stars|summer|tea|trees|villages|weather|wool|windows|apples|beaches|books|cats|cities|dogs|farms
fish|flowers|forests|houses|lakes|milk""".replace("\n", "|").split("|")

_ABOUT = """There is a lot to say about {t}.
Many people think of {t} when they are at home.
In old times {t} meant a lot to every village.
Today we see {t} in a different way.
Children learn about {t} at school and at home.
Some people travel far to see {t}.
Others write long books about {t}.
If you have time, look at {t} with a friend.
It is easy to start and hard to stop.
That is all I know about {t}.""".split("\n")

_CAPITALS = """France Paris|Italy Rome|Spain Madrid|Germany Berlin|Japan Tokyo|Egypt Cairo
Russia Moscow|Greece Athens|Norway Oslo|Ireland Dublin|Portugal Lisbon|Austria Vienna|China Beijing
Cuba Havana|Peru Lima|Poland Warsaw""".replace("\n", "|").split("|")

_SUMS = ((2, 3), (4, 4), (1, 6), (5, 7), (9, 2), (6, 3), (8, 7), (10, 4), (7, 7), (3, 10))
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OPPOSITES = """hot cold|big small|open closed|high low|fast slow|old new|wet dry|full empty
light dark|rich poor|early late|left right|up down|day night""".replace("\n", "|").split("|")
_FACTS = """What colour is grass?|green
What colour is the sky?|blue
What colour is snow?|white
What colour is coal?|black
What colour is a ripe banana?|yellow
What colour is blood?|red
How many days are in a week?|seven
How many months are in a year?|twelve
How many legs does a dog have?|four
How many sides does a triangle have?|three
Which month comes after March?|April
Which month comes before August?|July
Which animal says meow?|cat
Which animal gives us wool?|sheep
What do bees make?|honey
What is frozen water called?|ice
Which season comes after winter?|spring
What is the first letter of the alphabet?|A""".split("\n")


def questions() -> Mapping[str, str]:
    """The closed questions the witness knows, each with its one-word answer."""
    pairs: dict[str, str] = {}
    for line in _CAPITALS:
        country, capital = line.split()
        pairs[f"What is the capital of {country}?"] = capital
    for a, b in _SUMS:
        pairs[f"What is {a} plus {b}?"] = str(a + b)
    for day, following in zip(_DAYS, _DAYS[1:] + _DAYS[:1], strict=True):
        pairs[f"Which day comes after {day}?"] = following
    for line in _OPPOSITES:
        word, opposite = line.split()
        pairs[f"What is the opposite of {word}?"] = opposite
    for line in _FACTS:
        question, answer = line.split("|")
        pairs[question] = answer
    return pairs


def chance(rng: Random, share: float) -> bool:
    """True in this share of calls."""
    return rng.random() < share


def essay(topic: str) -> str:
    """The witness's fixed text about a topic, about a hundred tokens long."""
    return " ".join(line.format(t=topic) for line in _ABOUT)


def sentence(rng: Random) -> str:
    """One random sentence of filler, between five and fifteen words."""
    if chance(rng, 0.4):
        return rng.choice(_FIXED).format(n=rng.randint(2, 90), m=rng.randint(2, 90))
    words = [rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS)]
    if chance(rng, 0.7):
        words.append(rng.choice(_ENDS))
    text = " ".join(words)
    return text[0].upper() + text[1:] + "."


def plain_words(rng: Random, count: int) -> str:
    """Common words in no order, half of the time capitalised and ended like a sentence."""
    text = " ".join(rng.choice(COMMON) for _ in range(count))
    return text[0].upper() + text[1:] + "." if chance(rng, 0.5) else text


def salad(rng: Random) -> str:
    """A line of text without grammar: common words, figures and stray characters."""
    words = [rng.choice(COMMON) for _ in range(rng.randint(3, 10))]
    for _ in range(rng.randint(0, 3)):
        odd = "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_-") for _ in range(6))
        words.insert(
            rng.randrange(len(words)), rng.choice((odd, str(rng.randrange(10000)), "é", "-"))
        )
    return " ".join(words) + rng.choice((".", ".", "!", "?", ";"))


def all_text() -> str:
    """Every text of this module once, to find the words a tokenizer should hold whole."""
    parts = [*_SUBJECTS, *_VERBS, *_OBJECTS, *_ENDS, *_FIXED, *(essay(topic) for topic in TOPICS)]
    parts += [part.capitalize() for part in _SUBJECTS]
    parts += [text for pair in questions().items() for text in pair]
    return " ".join((*parts, *COMMON))
