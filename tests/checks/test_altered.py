"""Altered forms: what shows is weighed against phantoms, exactly, whatever the target says."""

import base64
import codecs
import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pretending
import pytest
from scipy import stats
from shorthand import history, passphrase, ticket, with_chunks

from leakcheck import evidence, scenario, wording
from leakcheck.checks import _topics, altered
from leakcheck.checks import _weighing as weighing
from leakcheck.history import History
from leakcheck.passphrase import load_words, phantoms_of
from leakcheck.records import (
    CheckResult,
    Chunk,
    Load,
    Message,
    Observation,
    Plan,
    Request,
    TokenLogprob,
)

FEW = load_words()[::19]  # so few words that they show by chance
PAIR = "a> b> a=aA b=b"
MANY = Load(windows=1, phantoms=200)


def part(name):
    """Two adjacent words of a passphrase."""
    return " ".join(passphrase(name).split()[2:4])


def answered(text, line=PAIR, **more):
    """The check of a run in which b was answered with its ticket and this text."""
    return altered.check(
        with_chunks(history(line, **more), "b", Chunk(text=f"{ticket('b')} {text}"))
    )


def look(result, tier):
    (found,) = [each for each in result.looks if each.tier == tier]
    return found


def only(result):
    (found,) = result.findings
    return found


# --- findings ------------------------------------------------------------------------------------


def test_healthy_answers_show_nothing():
    result = altered.check(history("a> b> a=aA b=bB | c> d> c=c_ d=dD"))
    assert result.findings == ()
    assert all(set(each.e_values) == {1.0} for each in result.looks)
    assert all(each.phantom_hits == each.planted_hits == 0 for each in result.looks)


def test_part_of_anothers_passphrase_is_a_note_that_names_both():
    found = only(answered(part("a")))
    assert (found.anomaly, found.severity) == ("altered-passphrase", "note")
    assert (found.source, found.recipient, found.relation) == ("a", "b", "concurrent")
    assert found.excerpt[slice(*found.mark)] == part("a")
    assert found.evidence["tier"] == "fragment"
    assert found.evidence["form"] == "as it is"
    assert found.evidence["phantoms_as_well"] == 0
    assert found.evidence["phantoms"] == 20
    assert "part of the passphrase of a (tenant t00)" in found.explanation
    assert "0 of 20 phantoms show as well" in found.explanation


def test_another_form_says_which_one_it_is():
    code = base64.b64encode(passphrase("a").encode()).decode()
    result = answered(f"see {code}")
    found = only(result)
    assert (found.evidence["tier"], found.evidence["form"]) == ("encoded", "base64")
    assert found.evidence["reads"] == passphrase("a")
    assert found.excerpt[slice(*found.mark)] in code
    assert look(result, "encoded").planted_hits == 1
    assert look(result, "fragment").planted_hits == 0


def test_a_whole_passphrase_counts_and_makes_no_finding_here():
    result = altered.check(history("a> b> a=aA b=bA"))
    assert result.findings == ()
    assert look(result, "fragment").planted_hits == 1
    assert max(look(result, "fragment").e_values) > 5


def test_ones_own_passphrase_in_any_form_is_ones_own():
    for text in (part("b"), base64.b64encode(passphrase("b").encode()).decode()):
        result = answered(text)
        assert result.findings == ()
        assert all(each.planted_hits == 0 for each in result.looks)


def test_twins_own_what_the_other_was_given():
    a = history("a.").by_id("a")
    twin = {"c": {"ticket": a.ticket, "passphrase": a.passphrase, "twin": "a"}}
    h = history("a> b> c> a=a b=b c=a", changes=twin)
    shown = Chunk(text=part("a"))
    assert altered.check(with_chunks(h, "c", shown)).findings == ()
    found = only(altered.check(with_chunks(h, "b", shown)))
    assert found.source in {"a", "c"}


def test_what_was_answered_before_the_source_was_sent_is_none_of_it():
    result = answered(part("a"), "b> b=b a> a=aA")
    assert result.findings == ()
    assert look(result, "fragment").planted_hits == 0


@pytest.mark.parametrize("field", ["content", "content[1]", "reasoning", "tool", "error"])
def test_every_field_is_looked_at(field):
    h = with_chunks(history(PAIR), "b", Chunk(text="Sure."), Chunk(text=part("a"), field=field))
    assert only(altered.check(h)).evidence["field"] == field


def test_token_strings_and_error_messages_are_looked_at():
    tokens = tuple(TokenLogprob(token=f" {word}", logprob=-1.0) for word in part("a").split())
    h = with_chunks(history(PAIR), "b", Chunk(text="Sure.", logprobs=tokens))
    assert only(altered.check(h)).evidence["field"] == "logprobs"
    h = with_chunks(history(PAIR), "b", error=f"refused: {part('a')}")
    assert only(altered.check(h)).evidence["field"] == "error message"


def test_control_windows_and_replays_are_not_looked_at():
    assert altered.check(history("a> b> a=a b=b", control="ab")).looks == ()
    again = {"b": {"replays": "a", "ticket": None, "passphrase": None}}
    windows = {
        each.window for each in altered.check(history("a> a=a | b> b=", changes=again)).looks
    }
    assert windows == {0}


def test_the_note_and_the_table_give_numerator_and_denominator():
    result = answered(part("a"))
    (note,) = result.notes
    assert "fragment 0 of 40 phantoms (0%) and 1 of 2 planted" in note
    assert "alternatives not looked at" in note
    (rows,) = result.tables.values()
    assert ("fragment", 1, 2, 1, 40, 0, "0%") in rows
    assert [row[0] for row in rows[1:]] == list(altered.WEIGHTS)


def test_the_weights_of_the_tiers_sum_to_one():
    assert math.isclose(sum(altered.WEIGHTS.values()), 1.0)


def test_nothing_sent_is_nothing_seen():
    assert altered.check(history("a. b.")).looks == ()


# --- tokens that were not sampled ----------------------------------------------------------------


def thought_of(word, *, logprob=-1.0, sampled="fine"):
    alternatives = ((sampled, -0.1), (word, logprob), (" weather", -6.0))
    return Chunk(
        text="fine", logprobs=(TokenLogprob(token=sampled, logprob=-0.1, top=alternatives),)
    )


def alternatives(word, **more):
    h = with_chunks(history(PAIR, load=MANY), "b", thought_of(f" {word}", **more))
    return altered.check(h)


def test_a_foreign_word_among_the_alternatives_is_bet_on():
    result = alternatives(passphrase("a").split()[2])
    seen = look(result, "alternatives")
    assert (seen.planted_hits, seen.phantom_hits) == (1, 0)
    assert evidence.merge([seen.e_values]) > 20
    found = only(result)
    assert found.evidence["tier"] == "alternatives"
    assert passphrase("a").split()[2] in found.explanation


def test_the_beginning_of_a_word_counts_and_the_token_that_was_sampled_does_not():
    word = passphrase("a").split()[2]
    assert look(alternatives(word[:-1]), "alternatives").planted_hits == 1
    same = with_chunks(history(PAIR), "b", thought_of(f" {word}", sampled=f" {word}"))
    assert look(altered.check(same), "alternatives").planted_hits == 0


def test_own_words_among_the_alternatives_say_nothing():
    result = alternatives(passphrase("b").split()[2])
    assert set(look(result, "alternatives").e_values) == {1.0}
    assert result.findings == ()


def test_words_that_any_model_thinks_of_make_no_finding():
    h = history(PAIR, load=MANY)
    result = altered.check(with_chunks(h, "b", thought_of(f" {h.plans[0].words[7]}")))
    assert look(result, "alternatives").phantom_hits > 0
    assert result.findings == ()
    assert evidence.merge([look(result, "alternatives").e_values]) < 1


# --- topics --------------------------------------------------------------------------------------

OBEDIENT = pretending.obedient


def gossip(request, company):
    """Every third answer repeats a sentence of somebody else's message."""
    reply = OBEDIENT(request, company)
    fillers = [text for each in company if (text := sentence(each))]
    if fillers and int(request.id[1:]) % 3 == 0:
        return replace(reply, text=f"{reply.text} {fillers[0]}")
    return reply


def sentence(request):
    parts = _topics.filler(request.messages).parts
    return " ".join(wording.WORDS[number] for number in parts[0][:7]) if parts else ""


def test_anothers_filler_is_a_foreign_topic():
    result = altered.check(
        pretending.history("rare-token-passphrase", 2, gossip, load__phantoms=50)
    )
    assert {each.anomaly for each in result.findings} == {"foreign-topic"}
    found = result.findings[0]
    assert found.evidence["tier"] == "topic"
    assert len(found.excerpt[slice(*found.mark)].split()) == 7
    assert found.evidence["phantoms_as_well"] == 0
    assert sum(each.planted_hits for each in result.looks if each.tier == "topic") >= 2


def test_ones_own_filler_is_no_foreign_topic():
    def quotes(request, company):
        return replace(OBEDIENT(request, company), text=request.messages[-1].content)

    h = pretending.history("rare-token-passphrase", 2, quotes, load__phantoms=50)
    assert altered.check(h).findings == ()


def test_texts_that_depend_on_each_other_by_plan_are_left_out():
    result = altered.check(pretending.history("identity-twins", 1, OBEDIENT, load__phantoms=20))
    assert "topic" not in {each.tier for each in result.looks}
    assert "topic not looked at" in result.notes[0]


def test_prefixes_that_are_shared_by_plan_are_no_filler():
    planned = pretending.plan("prefix-overlap", 1).requests
    assert all(not _topics.filler(r.messages).parts for r in planned if r.role != "companion")
    assert any(_topics.filler(r.messages).parts for r in planned if r.role == "companion")


def test_filler_is_what_was_drawn_and_not_the_wording_around_it():
    drawn = wording.sentences(random.Random(1), 40)
    fixed = (
        f"{drawn} {wording.TICKET.format(ticket='marble kettle')} {wording.blank(8)} "
        f"{wording.ELICITING}"
    )
    (found,) = _topics.filler([Message(role="user", content=fixed)]).parts
    assert " ".join(wording.WORDS[number] for number in found) == drawn.lower().replace(".", "")


@pytest.mark.parametrize(
    "name", ["rare-token-passphrase", "cache-pressure", "ragged-batch", "sequential-carry-over"]
)
def test_the_filler_of_shipped_shapes_is_found(name):
    planned = pretending.plan(name, 2).requests
    words = [_topics.filler(request.messages).words for request in planned]
    assert sum(size >= 5 for size in words) > len(words) // 2


def test_phantom_fillers_are_the_same_for_the_same_window():
    table = _topics.drawn((1, "s", 0), words=40, count=300)
    again = _topics.drawn((1, "s", 0), words=40, count=300)
    other = _topics.drawn((1, "s", 1), words=40, count=300)
    assert (table == again).all()
    assert (table == other).mean() < 0.02


def test_every_common_word_is_as_likely_in_a_phantom_filler():
    table = _topics.drawn((1, "s", 0), words=100, count=2540)
    counts = np.bincount(table.ravel(), minlength=len(wording.WORDS))
    assert len(counts) == len(wording.WORDS)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_phantoms_are_found_where_they_have_a_run_that_was_shown():
    table = _topics.drawn((1, "s", 0), words=9, count=50)
    text = " ".join(wording.WORDS[number] for number in table[17, 2:8])
    found = _topics.phantoms((1, "s", 0), words=9, count=50, shown=_topics.runs_of(text))
    assert found.row.tolist() == [17, 17]
    assert found.at.tolist() == [2, 3]


def test_a_phantom_shows_only_within_its_own_parts():
    drawn = _topics.Phantoms(
        row=np.array([0, 1, 1]), at=np.array([0, 3, 6]), run=np.array([7, 8, 9])
    )
    shape = _topics.Filler(parts=((1,) * 6, (1,) * 5))
    shown = frozenset({7, 8, 9})
    assert drawn.hits(shape, shown) == 2  # at 0, and at 6; a run at 3 would cross the parts
    assert drawn.hits(shape, frozenset({8})) == 0
    assert drawn.hits(_topics.Filler(parts=((1,) * 5,)), shown) == 1


# --- phantoms ------------------------------------------------------------------------------------


def planned(seed: int, windows: int, *, requests: int, phantoms: int, words=FEW, length=3) -> Plan:
    overrides = {
        "load.windows": windows,
        "load.requests": requests,
        "load.phantoms": phantoms,
        "load.passphrase_words": length,
        "traffic.smallest": requests,
        "traffic.owners": 1.0,
        "traffic.max_filler_words": 0,
    }
    path = {each.stem: each for each in scenario.shipped_files()}["rare-token-passphrase"]
    read = scenario.read(path, overrides)
    return scenario.plan(read, seed=seed, facts=pretending.FACTS, words=words, style="phrase")


def played(of: Plan, chunk: Callable[[Request], Chunk]) -> History:
    """Everybody of a window at the same time, one window after the other."""
    seen = [
        Observation(
            request_id=request.id,
            worker=0,
            lane=0,
            outcome="ok",
            start_ns=request.window * 100,
            end_ns=request.window * 100 + 90,
            chunks=(chunk(request),),
        )
        for request in of.requests
    ]
    return pretending.built(of, seen)


def said(request: Request) -> str:
    assert request.ticket is not None
    assert request.passphrase is not None
    return f"Ticket: {request.ticket.text}. Passphrase: {request.passphrase.text}."


def test_phantoms_have_no_word_of_another_payload_and_come_from_the_pool_of_the_window():
    of = planned(1, 1, requests=4, phantoms=30)
    h = played(of, lambda r: Chunk(text=f"{said(r)} {FEW[0]} {FEW[1]}"))
    (window,) = weighing.windows(h)
    owners = [source for source in window.sources if source.words]
    found = weighing._candidates(window, owners)
    spelled = list(window.index.number)
    pool = phantoms_of(of, 0)
    assert len(found) == 4
    for source in owners:
        rows = [tuple(spelled[number] for number in row) for row in found[source.payload].tolist()]
        others = {
            word
            for r in of.requests
            if r.id != source.payload
            for phrase in (r.passphrase, r.ticket)
            for word in phrase.words
        }
        assert rows[0] == source.words
        assert len(rows) == 31
        assert not others & {word for row in rows for word in row}
        assert " ".join(rows[1]) in pool


def test_nothing_is_drawn_where_nothing_could_show(monkeypatch):
    monkeypatch.setattr(weighing, "phantoms", None)  # a call would fail
    result = altered.check(
        played(planned(1, 2, requests=4, phantoms=30), lambda r: Chunk(text=said(r)))
    )
    assert [each.phantoms for each in result.looks] == [120] * 4


def test_a_phrase_with_a_word_that_another_payload_holds_is_not_compared():
    h = history(PAIR)
    first = passphrase("a").split()[2]
    b = h.by_id("b")
    told = (Message(role="user", content=f"{b.messages[0].content} and {first}"),)
    result = answered(part("a"), changes={"b": {"messages": told}})
    assert look(result, "fragment").planted_hits == 0
    assert look(result, "fragment").e_values == (1.0,) * 5


def test_a_window_looked_at_alone_says_what_it_says_in_the_run():
    of = planned(3, 4, requests=4, phantoms=50)
    draws = random.Random(3)
    texts = {r.id: " ".join(draws.choices(FEW, k=40)) for r in of.requests}
    whole = altered.check(played(of, lambda r: Chunk(text=texts[r.id])))
    parts = []
    for window in range(4):
        some = replace(of, requests=tuple(r for r in of.requests if r.window == window))
        parts += altered.check(played(some, lambda r: Chunk(text=texts[r.id]))).looks
    assert list(whole.looks) == parts


# --- error rates and power -----------------------------------------------------------------------


def e_value(result: CheckResult) -> float:
    of_tier = [
        evidence.merge([each.e_values for each in result.looks if each.tier == tier])
        for tier in altered.WEIGHTS
    ]
    return evidence.weighted(of_tier, tuple(altered.WEIGHTS.values()))


def babbler(seed: int) -> Callable[[Request], Chunk]:
    """A target that leaks nothing and loves the words of the list, some of them above all: each of
    its answers is its own phrases and a hundred such words, and it thinks of others.
    """
    draws = random.Random(seed)
    weights = [1 / (1 + rank % 40) for rank in range(len(FEW))]

    def chunk(request: Request) -> Chunk:
        words = draws.choices(FEW, weights, k=95)
        top = tuple((f" {word}", draws.gauss(-3, 1)) for word in draws.choices(FEW, weights, k=4))
        return Chunk(
            text=f"{said(request)} {' '.join(words)}",
            logprobs=(TokenLogprob(token=" so", logprob=-0.5, top=top),),
        )

    return chunk


def test_an_honest_target_that_loves_the_listed_words_is_hardly_ever_accused():
    runs, windows = 80, 6
    results = [
        altered.check(played(planned(seed, windows, requests=5, phantoms=99), babbler(1000 + seed)))
        for seed in range(runs)
    ]
    looks = [each for result in results for each in result.looks]
    for tier in ("fragment", "encoded", "alternatives"):
        of_tier = [each for each in looks if each.tier == tier]
        base = sum(each.phantom_hits for each in of_tier) / sum(each.phantoms for each in of_tier)
        assert base > 0.045, (tier, base)  # or the simulation would be an easy one
        values = np.array([each.e_values for each in of_tier])
        errors = values.std(axis=0) / math.sqrt(len(values))
        assert (values.mean(axis=0) <= 1 + 3 * errors).all(), (tier, values.mean(axis=0), errors)
    alarms = sum(e_value(result) >= 100 for result in results) / runs
    assert alarms <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)


def leaking(
    of: Plan, windows: set[int], encode: Callable[[str], str]
) -> Callable[[Request], Chunk]:
    """In each of these windows one answer shows another's passphrase, encoded."""
    first: dict[int, list[Request]] = {}
    for request in of.requests:
        first.setdefault(request.window, []).append(request)

    def chunk(request: Request) -> Chunk:
        source, recipient, *_ = first[request.window]
        if request.window in windows and request is recipient:
            assert source.passphrase is not None
            return Chunk(text=f"{said(request)} {encode(source.passphrase.text)}")
        return Chunk(text=said(request))

    return chunk


@pytest.mark.parametrize(("leaks", "accused"), [(0, False), (1, False), (2, True)])
def test_a_base64_passphrase_in_two_of_many_windows_is_enough(leaks, accused):
    of = planned(5, 6, requests=16, phantoms=999, words=load_words(), length=6)
    encode = leaking(of, set(range(leaks)), lambda text: base64.b64encode(text.encode()).decode())
    result = altered.check(played(of, encode))
    assert (e_value(result) >= 100) == accused
    assert len(result.findings) == leaks
    assert all(found.evidence["form"] == "base64" for found in result.findings)


def test_a_verbatim_looking_fragment_in_two_windows_is_enough_too():
    of = planned(6, 6, requests=16, phantoms=999, words=load_words(), length=6)
    result = altered.check(played(of, leaking(of, {1, 4}, lambda text: text[: len(text) // 2])))
    assert e_value(result) >= 100


# --- whole passphrases in other forms, and open suspicions ---------------------------------------

LEET = str.maketrans("aeio", "4310")
WHOLE = {
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "reversed": lambda text: text[::-1],
    "words reversed": lambda text: " ".join(text.split()[::-1]),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "leet": lambda text: text.translate(LEET),
    "URL-encoded": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "JSON escapes": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "NATO": lambda text: " ".join(SPELLED.get(c, "/") for c in text),
}
SPELLED = {
    word[0]: word
    for word in "alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike "
    "november oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu".split()
}


@pytest.mark.parametrize("form", WHOLE)
def test_a_whole_passphrase_in_another_form_is_a_leak_at_first_sight(form):
    result = answered(WHOLE[form](passphrase("a")))
    found = only(result)
    assert (found.anomaly, found.severity) == ("altered-passphrase", "leak")
    assert (found.source, found.recipient, found.evidence["form"]) == ("a", "b", form)
    assert "was answered with the passphrase of a" in found.explanation
    assert "part of" not in found.explanation
    assert (look(result, "encoded").whole, look(result, "encoded").unshared) == (1, 0)


@pytest.mark.parametrize("form", WHOLE)
def test_all_words_but_one_in_another_form_are_an_open_suspicion_and_no_leak(form):
    result = answered(WHOLE[form](" ".join(passphrase("a").split()[:-1])))
    found = only(result)
    assert (found.severity, found.evidence.get("open")) == ("note", True)
    assert sum(each.whole for each in result.looks) == 0
    assert sum(each.unshared for each in result.looks) == 1


def test_a_whole_passphrase_with_a_word_that_another_payload_holds_is_found_all_the_same():
    first = passphrase("a").split()[0]
    b = history("b.").by_id("b")
    said_too = {"b": {"messages": (*b.messages, Message(role="user", content=f"Say {first}."))}}
    found = only(answered(WHOLE["base64"](passphrase("a")), changes=said_too))
    assert (found.severity, found.source) == ("leak", "a")


def test_hits_that_phantoms_share_are_not_open():
    of = planned(3, 4, requests=5, phantoms=99)
    result = altered.check(played(of, babbler(4)))
    shared = [f for f in result.findings if f.evidence.get("phantoms_as_well")]
    assert shared
    assert not any(f.evidence.get("open") for f in shared)
