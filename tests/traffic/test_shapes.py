import itertools
from collections import Counter
from dataclasses import replace

import pytest

from leakcheck import scenario, wording
from leakcheck.errors import UsageError
from leakcheck.passphrase import assert_separate, load_words
from leakcheck.records import TargetFacts
from leakcheck.traffic.mixed_batch import COMPANIES
from leakcheck.traffic.shared_prefix import KINDS, TIMINGS, Cell, grid

FACTS = TargetFacts(block_tokens=16, overhead_tokens=2)
ONLY_COPIES = {
    "load.windows": 3, "traffic.eliciting": 0.0, "traffic.copy": 1.0, "traffic.free": 0.0,
}  # fmt: skip
PATHS = {path.stem: path for path in scenario.shipped_files()}


def planned(name, windows, seed=0, facts=FACTS):
    read = scenario.read(PATHS[name], {"load.windows": windows})
    return scenario.plan(read, seed=seed, facts=facts, words=load_words(), style="phrase").requests


def words_before_secret(request):
    return request.messages[0].content.split(" My ticket is ")[0].split()


def test_both_arms_of_the_control_group_have_the_same_lengths():
    requests = planned("control-group", 200)
    lengths = {"planted": [], "control": []}
    for r in requests:
        if r.passphrase or r.withheld:
            lengths[r.arm].append(len(r.messages[0].content.split()))
    mean = {arm: sum(values) / len(values) for arm, values in lengths.items()}
    assert abs(mean["planted"] - mean["control"]) < 2


def test_control_windows_carry_no_passphrase_and_keep_one_withheld():
    control = [r for r in planned("control-group", 40) if r.arm == "control"]
    assert control
    assert all(r.passphrase is None for r in control)
    assert any(r.withheld is not None for r in control)


def test_both_arms_are_drawn():
    arms = {r.window: r.arm for r in planned("control-group", 120)}
    planted = sum(arm == "planted" for arm in arms.values())
    assert 40 <= planted <= 80


def test_a_blank_sentence_is_as_long_as_one_with_a_passphrase():
    phrase = wording.PASSPHRASE.format(passphrase=" ".join("abcdef"))
    assert len(wording.blank(6).split()) == len(phrase.split())


def test_the_grid_visits_every_cell_once():
    cells = grid(16, 4)
    assert len(cells) == len({c.name for c in cells}) == 4 * len(KINDS) * len(TIMINGS) * 4


def test_without_a_known_block_size_the_usual_ones_are_tried():
    assert {c.block_tokens for c in grid(None, 2)} == {16, 32, 64, 128}


@pytest.mark.parametrize(("kind", "at"), [("first", 16), ("middle", 24), ("last", 31)])
def test_a_single_difference_lies_in_the_last_whole_block(kind, at):
    cell = Cell(blocks=2, block_tokens=16, offset=1, kind=kind, timing="cold")
    assert cell.differs_at == at


def test_prefixes_have_the_planned_length_and_likeness():
    by_id = {r.id: r for r in planned("prefix-overlap", 40)}
    kinds = set()
    for recipient in by_id.values():
        if recipient.partner is None:
            continue
        source = by_id[recipient.partner]
        size, kind, _ = recipient.cell.split()
        tokens = eval(size) - FACTS.overhead_tokens  # noqa: S307 - our own "2*16-1"
        (*mine, my_end), (*theirs, their_end) = (
            words_before_secret(recipient),
            words_before_secret(source),
        )
        pairs = zip(mine, theirs, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))
        assert len(mine) == tokens
        assert my_end != their_end  # the likeness ends exactly there
        if kind == "equal":
            assert same == tokens == recipient.shared_tokens - FACTS.overhead_tokens
        elif kind == "length":
            assert same == 0
            assert source.passphrase.text in " ".join(theirs)
        else:
            assert sum(a != b for a, b in zip(mine, theirs, strict=True)) == 1
            assert same == max(0, recipient.shared_tokens - FACTS.overhead_tokens)
        kinds.add(kind)
    assert kinds == set(KINDS)


def test_twins_have_the_very_same_payload():
    requests = planned("mixed-batch-differential", 5)
    by_id = {r.id: r for r in requests}
    twins = [r for r in requests if r.twin]
    assert len(twins) == 5 * 4 * 4  # windows, recipients, and each again alone and in 3 companies
    for r in twins:
        alone = by_id[r.twin]
        assert (r.messages, r.sampling, r.stream) == (alone.messages, alone.sampling, alone.stream)
        assert alone.cell == "alone"


def test_an_alone_request_has_its_phase_for_itself():
    requests = planned("mixed-batch-differential", 5)
    phases = {}
    for r in requests:
        phases.setdefault((r.window, r.phase), []).append(r)
    for group in phases.values():
        assert len(group) == 1 or all(not r.cell.startswith("alone") for r in group)


def test_neutral_and_planted_companions_have_the_same_shape():
    requests = planned("mixed-batch-differential", 20)
    words = {cell: [] for cell in COMPANIES}
    for r in requests:
        if r.role == "companion":
            words[r.cell].append(len(r.messages[0].content.split()))
    assert sorted(words["neutral"]) == sorted(words["other neutral"]) == sorted(words["planted"])


def test_only_planted_companions_carry_passphrases_and_no_two_companies_share_a_text():
    companions = [r for r in planned("mixed-batch-differential", 5) if r.role == "companion"]
    assert len({r.messages for r in companions}) == len(companions)
    assert all((r.passphrase is not None) == (r.cell == "planted") for r in companions)
    assert all((r.note is None) == (r.cell == "planted") for r in companions)
    assert all(r.note is None or r.note.text in r.messages[0].content for r in companions)


def test_a_note_shares_no_word_with_anything_else_of_its_window():
    companions = [r for r in planned("mixed-batch-differential", 5) if r.role == "companion"]
    seen = {}
    for r in companions:
        for phrase in (r.ticket, r.passphrase, r.note):
            for word in () if phrase is None else phrase.words:
                assert seen.setdefault((r.window, word), r.id) == r.id


def test_a_copying_recipient_has_a_long_list_that_starts_with_its_ticket():
    read = scenario.read(PATHS["mixed-batch-differential"], ONLY_COPIES)
    made = scenario.plan(read, seed=0, facts=FACTS, words=load_words(), style="phrase")
    alone = [r for r in made.requests if r.cell == "alone"]
    assert alone
    for r in alone:
        assert r.messages[-1].content.endswith(wording.ECHO.format(words=r.answer))
        assert r.answer.split()[: len(r.ticket.words)] == list(r.ticket.words)
        assert len(set(r.answer.split())) == 2 * len(r.ticket.words)


@pytest.mark.parametrize("wrong", [{"recipients": 16}, {"copy": 0.7}])
def test_shares_and_sizes_that_cannot_be_are_refused(wrong):
    overrides = {f"traffic.{key}": value for key, value in wrong.items()}
    read = scenario.read(PATHS["mixed-batch-differential"], overrides)
    with pytest.raises(UsageError, match="mixed_batch"):
        scenario.plan(read, seed=0, facts=FACTS, words=load_words(), style="phrase")


def test_a_share_below_nothing_is_refused_when_the_scenario_is_read():
    with pytest.raises(UsageError, match=r"traffic\.count is -0\.1; use 0 or more"):
        scenario.read(PATHS["mixed-batch-differential"], {"traffic.count": -0.1})


CONTINUES = TargetFacts(block_tokens=16, continues=True)


def test_a_text_to_be_continued_ends_with_its_records_twice_and_the_start_of_a_third():
    requests = planned("rare-token-passphrase", 4, facts=CONTINUES)
    for r in requests:
        _, *records, last = r.messages[0].content.split("\nTICKET=")
        assert last == ""
        assert [record.split("\n")[0] for record in records] == [r.ticket.text] * 2
        text = r.messages[0].content
        assert text.count("PASSPHRASE=") == (0 if r.passphrase is None else 2)
        if r.passphrase:
            assert text.count(r.passphrase.text) == 3  # once in the sentence before


def test_texts_to_be_continued_have_the_same_shape_with_and_without_passphrases():
    words = {cell: [] for cell in COMPANIES}
    for r in planned("mixed-batch-differential", 20, facts=CONTINUES):
        if r.role == "companion":
            words[r.cell].append(len(r.messages[0].content.split()))
    assert sorted(words["neutral"]) == sorted(words["other neutral"]) == sorted(words["planted"])


def test_filler_never_contains_a_rare_word():
    assert not set(wording.WORDS) & set(load_words())


def test_windows_of_several_sizes_show_the_leak_rate_against_concurrency():
    sizes = Counter(r.window for r in planned("rare-token-passphrase", 60)).values()
    assert set(sizes) == {4, 8, 16}


def test_every_prompt_of_a_window_has_a_tenant_of_its_own():
    for name in PATHS:
        for _, window in itertools.groupby(planned(name, 4), key=lambda r: r.window):
            asked = {}
            for request in window:
                if request.twin is None:
                    asked.setdefault(request.tenant, set()).add(request.messages)
            assert all(len(prompts) == 1 for prompts in asked.values())


def test_logprobs_are_asked_only_of_a_target_that_gives_them():
    for reports in (False, True):
        facts = replace(FACTS, reports_logprobs=reports)
        asked = {
            r.sampling.top_logprobs for r in planned("mixed-batch-differential", 2, facts=facts)
        }
        assert asked == ({None, 5} if reports else {None})


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("facts", [TargetFacts(), CONTINUES])
def test_no_phrase_is_in_another_s_payload_whatever_the_target(name, facts):
    read = scenario.read(PATHS[name], {"load.windows": 4, "load.phantoms": 9})
    made = scenario.plan(read, seed=5, facts=facts, words=load_words(), style="phrase")
    assert_separate([made])
    again = scenario.plan(read, seed=5, facts=facts, words=load_words(), style="phrase")
    assert made == again
