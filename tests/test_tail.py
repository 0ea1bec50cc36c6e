"""What workers write is read while they write it: whole lines, once each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import runfolder
from leakcheck.errors import RunFolderError
from leakcheck.runfolder.tail import Tail


def test_each_record_is_read_once_in_the_order_of_its_shard(tmp_path):
    tail = Tail(tmp_path)
    assert tail.read().invocations == ()
    first, second = (runfolder.Shard(tmp_path, worker) for worker in range(2))
    first.invoke("a", 1, 0, 0, 5)
    second.invoke("b", 1, 1, 0, 6)
    assert [i.request_id for i in tail.read().invocations] == ["a", "b"]
    assert tail.read().invocations == ()
    first.invoke("c", 1, 0, 0, 7)
    third = runfolder.Shard(tmp_path, 0)
    third.invoke("d", 1, 0, 0, 8)
    assert [i.request_id for i in tail.read().invocations] == ["c", "d"]
    for shard in (first, second, third):
        shard.close()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 400), max_size=8))
def test_a_last_line_without_its_end_waits_for_it(tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("run")
    shard = runfolder.Shard(folder, 0)
    for number in range(5):
        shard.invoke(f"r{number}", 1, 0, 0, number)
    shard.close()
    whole = shard.path.read_bytes()
    tail, read = Tail(folder), []
    shard.path.write_bytes(b"")
    for cut in [*sorted(cuts), len(whole)]:
        with shard.path.open("ab") as file:
            file.write(whole[file.tell() : cut])
        read += [i.request_id for i in tail.read().invocations]
    assert read == [f"r{number}" for number in range(5)]


@pytest.mark.parametrize("line", [b"rubbish\n", b"{}\n", b'{"invoke":{"request_id":1}}\n'])
def test_damage_is_an_error_that_names_file_and_byte(tmp_path, line):
    shard = runfolder.Shard(tmp_path, 0)
    shard.invoke("a", 1, 0, 0, 5)
    shard.close()
    at = shard.path.stat().st_size
    with shard.path.open("ab") as file:
        file.write(line)
    with pytest.raises(RunFolderError, match=rf"observations-w00.jsonl, at byte {at}: "):
        Tail(tmp_path).read()
