import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakcheck.report import html, plain, plain_run, terminal

NAMES = [
    "clean",
    "leak",
    "corruption",
    "inconclusive",
    "interrupted",
    "empty",
    "hostile",
    "fuzzy-leak",
]
LOADS = {"script", "img", "iframe", "link", "object", "embed", "form", "base", "video", "audio"}
LOADS |= {"input", "button", "use", "image", "foreignobject", "animate", "set", "source"}
VOID = {"meta", "br"}


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, text, the style, open elements."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.said, self.open, self.style, self.unbalanced = [], [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.said.append(data)

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]

    @property
    def text(self):
        return "".join(self.said)


@pytest.fixture(scope="module")
def pages(samples, evidenced):
    makers = {**samples.ALL, **evidenced}
    return {name: html.render(makers[name]()) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_no_script_loads_nothing_and_sets_no_style(pages, name):
    page = Page(pages[name])
    assert not LOADS & {tag for tag, _ in page.elements}
    names = {attribute for _, attrs in page.elements for attribute in attrs}
    assert not {attribute for attribute in names if attribute.startswith("on")}
    assert not names & {"style", "src", "srcset", "srcdoc", "action", "xlink:href", "background"}
    assert all(re.fullmatch(r"#[\w-]+", target) for target in page.attributes("href"))
    assert not re.search(r"@import|url\(", page.style)


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_allows_the_one_style_element_and_nothing_else(pages, name):
    page = Page(pages[name])
    metas = [attrs for tag, attrs in page.elements if tag == "meta"]
    policy = next(m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert pages[name].count("<style") == 1
    assert pages[name].index("Content-Security-Policy") < pages[name].index("<style")


@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_closed_every_id_is_unique_and_every_link_arrives(pages, name):
    page = Page(pages[name])
    assert not page.unbalanced
    assert not page.open
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {target.removeprefix("#") for target in page.attributes("href")} <= set(ids)
    assert set(page.attributes("aria-labelledby")) <= set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_reader_finds_language_one_heading_table_heads_and_named_pictures(pages, name):
    page = Page(pages[name])
    assert ("html", {"lang": "en"}) in page.elements
    assert [tag for tag, _ in page.elements].count("h1") == 1
    assert all("scope" in attrs for tag, attrs in page.elements if tag == "th")
    pictures = re.findall(r"<svg[^>]*>(?:<title>)?", pages[name])
    assert all("aria-hidden" in svg or svg.endswith("<title>") for svg in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_holds_no_invisible_character(pages, name):
    assert all(character.isprintable() or character == "\n" for character in pages[name])


def test_hostile_text_of_50_kb_is_cut_and_shown_as_text(pages):
    assert "A" * 1300 not in pages["hostile"]
    page = Page(pages["hostile"])
    assert "<script>alert(1)</script>" in page.text
    assert r"\u202eesrever\u202c" in page.text
    assert r"\x1b[31mred" in page.text
    assert "{{ 7 * 7 }}" in page.text


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.characters(codec=None), min_size=1))
def test_no_text_changes_the_structure_of_the_page(samples, text):
    def skeleton(said):
        page = Page(html.render(with_text(samples, said)))
        return [(tag, sorted(attrs)) for tag, attrs in page.elements], page.unbalanced

    assert skeleton(text * 2) == skeleton("xx")


def test_a_finding_shows_who_reached_whom_how_they_overlapped_and_marks_the_passphrase(pages):
    text = Page(pages["leak"]).text
    assert re.search(r"r00224\s+t00\s+→ reached\s+r00248\s+t07", text)
    assert "concurrent: in flight together for 311 ms of the recipient's 583 ms" in text
    assert pages["leak"].count("<mark>amber velvet thicket gondola marzipan ferret</mark>") == 7


def test_a_finding_without_times_has_no_timeline(pages, samples):
    timed = sum("source_start_s" in f.evidence for f in samples.leak().verdicts[2].findings)
    assert pages["leak"].count('class="timeline"') == timed == 6


@pytest.mark.parametrize("value", [None, "soon", float("nan"), True])
def test_times_that_are_no_numbers_give_no_timeline(samples, value):
    finding = samples.leak_finding(0)
    finding = dataclasses.replace(finding, evidence=finding.evidence | {"source_end_s": value})
    verdict = samples.verdict("prefix-overlap", "leak", leaks=1, findings=(finding,))
    assert 'class="timeline"' not in html.render(samples.report("leak", [verdict]))


def test_every_verdict_stands_with_its_word_counts_and_bound(pages):
    text = Page(pages["inconclusive"]).text
    assert text.index("Verdicts") < text.index("Exposure")
    assert "0/41" in text
    assert "echo 3/400 (too little, at least 50 %)" in text
    assert "Only 41 windows are trials; a clean verdict needs 60." in text


def test_every_screen_shows_the_same_one_bound_of_a_verdict(samples):
    base = samples.verdict("prefix-overlap", "inconclusive", windows=70)
    verdict = dataclasses.replace(base, bound=0.0625)
    report = samples.report("inconclusive", [verdict])
    page = html.render(report)
    whole = seen(Page(page))
    assert "Numbers: 0/70 windows with a leak, at most 6.3 %" in whole
    assert re.search(r"of what shows, before echo ?0.5\.1 %, at most 4\.2 %", whole)
    assert "4.2 %" not in seen(unfolded(page))
    assert not re.search(r"[45]\.\d %", terminal.render(report, width=100))


def test_two_scenarios_side_by_side_have_one_bound_each(samples):
    verdicts = [
        dataclasses.replace(samples.verdict(name, windows=70), bound=0.0625)
        for name in samples.NAMES[:2]
    ]
    page = html.render(samples.report("clean", verdicts))
    rows = page.split('<table class="verdicts"')[1].split("</table>")[0]
    assert rows.count("6.3 %") == 2
    assert not re.search(r"[45]\.\d %", rows)


def test_nothing_follows_from_an_error_and_no_bound_is_shown(samples):
    text = seen(Page(html.render(samples.interrupted())))
    assert "Nothing follows for or against leaks" in text
    for claim in ("at most 2", "exact 95 % interval", "after echo", "certificate"):
        assert claim not in text
    assert "Leak rate by condition" not in text


def test_findings_beyond_the_limit_are_counted(pages):
    assert "17920 further findings are counted" in Page(pages["hostile"]).text


def test_provenance_names_versions_seed_command_and_target(pages):
    text = Page(pages["clean"]).text
    for said in ("witness at http://127.0.0.1:41873/v1", "leakcheck run --embedded --seed 7"):
        assert said in text
    for said in ("3.13.2", "Linux-6.8-x86_64, 2 CPUs", "2026-07-03T09:41:12Z"):
        assert said in text


def with_text(samples, text):
    """A leak in which the target's text stands in every place it can reach."""
    finding = dataclasses.replace(
        samples.leak_finding(0),
        excerpt=text,
        mark=(0, len(text) // 2),
        explanation=text,
        source=text,
        evidence={text: text, "list": [text]},
    )
    verdict = samples.verdict("prefix-overlap", "leak", leaks=1, reasons=[text])
    verdict = dataclasses.replace(
        verdict, findings=(finding,), notes=(text,), tables={text: ((text,), (text,))}
    )
    return samples.report("leak", [verdict], leaks_by_pair=((text, text, 1),))


def test_notes_are_folded_and_are_not_called_findings(pages):
    text = Page(pages["clean"]).text
    assert "No leak and no corruption was found." in text
    assert "3 notes: differences that are neither leak nor corruption" in text


def unfolded(text):
    """What is seen of a page with every fold closed."""
    return Page(
        re.sub(
            r"(<details[^>]*>)(<summary>.*?</summary>).*?</details>", r"\2", text, flags=re.DOTALL
        )
    )


def seen(page):
    return " ".join(page.text.split())


def test_every_verdict_opens_with_its_two_sentences_and_the_run_too(samples, evidenced):
    reports = [make() for make in evidenced.values()] + [samples.leak(), samples.clean()]
    for report in reports:
        text = seen(unfolded(html.render(report)))
        assert plain_run.run(report).text in text
        for verdict in report.verdicts:
            assert plain.verdict(verdict, report.e_value).text in text


def test_numbers_stand_behind_folds_and_the_evidence_of_leaks_does_not(evidenced):
    page = html.render(evidenced["fuzzy-leak"]())
    open_text, whole = seen(unfolded(page)), seen(Page(page))
    for number in (
        "e-value",
        "interval of what shows",
        "9/800",
        "2/79200",
        "798/800",
        "certificate",
    ):
        assert number in whole
        assert number not in open_text
    assert "terref napizram alodnog" in open_text
    assert "spelled backwards" in open_text


def test_the_gravest_verdict_stands_first(pages):
    names = re.findall(r'<h3 id="scenario-\d+">([^<]+)<', pages["leak"])
    assert names[0] == "prefix-overlap"
    assert len(names) == 4


def test_folds_are_open_in_print(pages):
    printed = Page(pages["clean"]).style.split("@media print")[1]
    assert "details::details-content { content-visibility: visible; block-size: auto; }" in printed


def test_a_scenario_that_ended_early_says_why_beside_its_verdict(evidenced):
    text = seen(unfolded(html.render(evidenced["early-leak"]())))
    assert "prefix-overlap leak settled: leak at window 2 of 450 In 1 of 3 windows" in text


def test_a_report_without_evidence_says_that_none_was_weighed(pages):
    assert "not weighed by the version that judged this" in Page(pages["clean"]).text
    assert 'class="gauge"' not in pages["clean"]


def luminance(colour):
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background_in_both_themes(pages, theme):
    style = Page(pages["clean"]).style
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    if theme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark.split("\n}\n")[0]))
    pairs = [(text, back) for text in ("ink", "quiet", "link") for back in ("page", "card")]
    pairs += [(s, f"{s}-soft") for s in ("clean", "leak", "corruption", "inconclusive", "error")]
    pairs += [("ink", "soft"), ("mark-ink", "mark"), ("ink", "heat-1"), ("ink", "heat-2")]
    colours["white"] = "#ffffff"
    pairs += [
        ("white", "heat-3"),
        ("page", "heat-4"),
        ("inconclusive", "page"),
        ("leak", "page"),
        ("clean", "page"),
    ]
    weak = {p: round(contrast(colours[p[0]], colours[p[1]]), 2) for p in pairs}
    assert not {pair: ratio for pair, ratio in weak.items() if ratio < 4.5}


def test_a_mark_of_no_length_is_shown_as_a_place(pages):
    assert '<mark class="here">' in pages["clean"]
    assert '<mark class="here">' not in pages["leak"]


def test_an_excerpt_is_captioned_as_what_it_is(samples):
    report = samples.leak()
    verdict = next(each for each in report.verdicts if each.findings)
    hit = dataclasses.replace(verdict.findings[0], anomaly="foreign-cache-hit")
    alone = dataclasses.replace(verdict, findings=(hit,))
    page = html.render(dataclasses.replace(report, verdicts=(alone,)))
    assert f"Prompt of {hit.recipient}" in page
    assert f"Answer to {hit.recipient}" not in page


def test_a_caption_says_what_the_mark_is(pages, samples):
    recipient = samples.leak_finding(0).recipient
    assert f"Answer to {recipient}; the part that shows it is marked" in Page(pages["leak"]).text
    assert "Answer to r00099; the place where it parts is marked" in Page(pages["clean"]).text
