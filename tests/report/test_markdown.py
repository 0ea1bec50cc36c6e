import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from leakcheck.report import markdown, plain, plain_run

NAMES = ["clean", "leak", "corruption", "inconclusive", "interrupted", "empty", "hostile"]
OURS = re.compile(
    r"(<details><summary>(Numbers|Evidence|Exposure|Provenance)</summary>|</details>)\s*"
)
BREAK = "\u200b"


def tokens(text):
    """The flat tokens of GitHub-like Markdown: tables and raw HTML are on."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found += [token, *(token.children or [])]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_holds_no_link_picture_or_html_of_a_target(samples, name):
    found = tokens(render(samples, name))
    assert not [t for t in found if t.type in {"link_open", "image", "html_inline", "hardbreak"}]
    assert all(OURS.fullmatch(t.content) for t in found if t.type == "html_block")


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_mentions_nobody_and_refers_to_nothing(samples, name):
    said = "\n".join(
        "".join("`" if t.type == "code_inline" else t.content for t in block.children)
        for block in MarkdownIt("commonmark").enable("table").parse(render(samples, name))
        if block.type == "inline"
    )
    assert "windows" in said or name == "empty"
    assert not re.search(r"@\w|#\d|https?://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b", said)


def render(samples, name):
    return markdown.render(samples.ALL[name]())


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_fits_into_githubs_limit(samples, name):
    assert len(render(samples, name)) <= 65_000


def test_a_report_that_would_be_too_long_says_where_the_rest_is(samples):
    verdict = samples.verdict("control-group", "leak", leaks=1, reasons=["*" * 300] * 5)
    text = markdown.render(samples.report("leak", [verdict] * 60))
    assert len(text) <= 60_000
    assert "The rest is in `report.html` and `report.json`." in text


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None), min_size=1))
def test_no_text_changes_the_structure_of_the_comment(samples, text):
    def skeleton(said):
        shape = [t.type for t in tokens(markdown.render(with_text(samples, said)))]
        return [kind for kind in shape if kind != "text"]

    assert skeleton(f"x{text}x{text}x") == skeleton("xxxx")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_prose_reads_as_it_was_written(text):
    inline = MarkdownIt("commonmark").enable("table").parse(markdown.prose(text))[1]
    assert "".join(t.content for t in inline.children).replace(BREAK, "") == text


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100))
def test_code_reads_as_it_was_written_also_in_a_table(text):
    table = f"| a |\n| --- |\n| {markdown.code(text)} |\n"
    spans = [t.content for t in tokens(table) if t.type == "code_inline"]
    assert spans == [text]


def test_the_verdict_table_comes_first_and_provenance_is_folded(samples):
    text = markdown.render(samples.leak())
    assert text.startswith("## ❌ leakcheck: leak\n\nin 7 of 100 windows of prefix-overlap")
    assert "| `prefix-overlap` | ❌ **leak** | 7/100 windows = 7.0 % | 2.9-13.9 %, at most" in text
    assert text.index("| scenario") < text.index("### Findings") < text.index("<details>")
    assert "**1. leak** `r00224` → `r00248`: `foreign-passphrase`" in text
    assert f">>{samples.WORDS}<<" in text
    assert "and 12 more in" in text


def test_every_verdict_stands_with_its_two_sentences_before_any_fold(samples, evidenced):
    for report in (samples.leak(), evidenced["fuzzy-leak"]()):
        text = markdown.render(report)
        for verdict in report.verdicts:
            said = markdown.prose(plain.verdict(verdict, report.e_value).text, 600)
            assert 0 < text.index(said) < text.index("<details>")
        assert markdown.prose(plain_run.run(report).text, 600) in text


def test_the_evidence_stands_behind_a_fold_with_the_hits_of_phantoms(evidenced):
    text = markdown.render(evidenced["fuzzy-leak"]())
    fold = text.index("<details><summary>Evidence</summary>")
    assert text.index("| encoded | 9/800 | 2/79200 | 1.18e+04 |") > fold
    assert text.index("| together | | | 4.21e+03 | 100 |") > fold


def test_raw_figures_stand_in_the_numbers_fold_alone_and_in_none_of_an_error(samples):
    text = markdown.render(samples.inconclusive())
    fold = text.index("<details><summary>Numbers</summary>")
    assert text.index("of what shows, before echo") > fold
    assert text.index("0-8.6 %") > fold
    assert "| `rare-token-passphrase` | ⛔ **error** | 0/11 windows, not judged |  |" in (
        markdown.render(samples.interrupted())
    )


def test_one_note_is_counted_as_one(samples):
    verdict = samples.verdict(samples.NAMES[3], findings=(samples.note(),), findings_total=1)
    assert "1 note that is no leak is in `report.html`" in (
        markdown.render(samples.report("clean", [verdict]))
    )


def test_a_report_without_evidence_has_no_such_fold(samples):
    assert "Evidence</summary>" not in markdown.render(samples.leak())


def with_text(samples, text):
    """A leak in which the target's text stands in every place it can reach."""
    finding = dataclasses.replace(
        samples.leak_finding(0), excerpt=text, mark=None, explanation=text, source=text
    )
    verdict = samples.verdict("prefix-overlap", "leak", leaks=1, reasons=[text])
    verdict = dataclasses.replace(
        verdict,
        findings=(finding,),
        exposure=(dataclasses.replace(verdict.exposure[0], text=text, name=text),),
    )
    return samples.report("leak", [verdict])
