import pytest

from leakcheck.errors import HarnessError
from leakcheck.report import document, html, markdown, write


def test_the_three_files_are_written_and_nothing_else(samples, tmp_path):
    report = samples.leak()
    paths = write(report, tmp_path)
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    written = [path.read_text(encoding="utf-8") for path in paths]
    assert written == [document.render(report), markdown.render(report), html.render(report)]


def test_writing_again_replaces_the_old_report(samples, tmp_path):
    write(samples.leak(), tmp_path)
    json_path, *_ = write(samples.clean(), tmp_path)
    assert document.load(json_path.read_bytes()) == samples.clean()


def test_a_reader_that_holds_the_old_file_keeps_it_whole(samples, tmp_path):
    json_path, *_ = write(samples.leak(), tmp_path)
    with json_path.open("rb") as held:
        write(samples.clean(), tmp_path)
        assert document.load(held.read()) == samples.leak()


def test_a_folder_that_is_not_there_is_named(samples, tmp_path):
    with pytest.raises(HarnessError, match=r"absent/report\.json cannot be written: No such file"):
        write(samples.clean(), tmp_path / "absent")


def test_a_file_that_cannot_be_replaced_leaves_no_rubbish_and_keeps_the_json(samples, tmp_path):
    (tmp_path / "report.md").mkdir()
    with pytest.raises(HarnessError, match=r"report\.md cannot be written"):
        write(samples.clean(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_hostile_text_can_be_written(samples, tmp_path):
    assert all(path.stat().st_size for path in write(samples.hostile(), tmp_path))
